"""Metrics, traces and events of a client, for monitoring systems.

Events, which a client reports to its observers:
    `observer` has the methods, `observations` their arguments. `observer_list` calls the observers
    of a client. `observed_sends` reports what a producer sends. `meters` measure calls and sends
    without an event for each.

Metrics, which `pulsar_encore.prometheus`, `pulsar_encore.otel` and the Spark part export:
    `instruments` is the table of all names. `metrics_observer` adds each consumer, producer and
    worker to an `object_registry`. A collection reads them on their event loops (`loop_reads`) and
    makes values of the instruments (`samples`, `histogram`). `topic_labels` and `error_types` keep
    the number of series small. `prometheus_families` is the only file that needs prometheus_client.
"""
