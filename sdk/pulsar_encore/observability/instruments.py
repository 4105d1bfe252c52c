"""All metrics that this package exports: their names, kinds, units and labels.

The names are those of OpenTelemetry's messaging conventions if they have one, then those of
Pulsar's Java client (PIP-342). The rest begin with `pulsar.client.encore.`. Names in Prometheus are
the mechanical translation of these. The metrics of PIP-195 keep the names of Pulsar's broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

TOPIC: Final = "topic"
SUBSCRIPTION: Final = "subscription"
WORKER: Final = "worker"
ERROR_TYPE: Final = "error_type"
STATE: Final = "state"

#: Bounds in seconds, as OpenTelemetry's conventions ask for.
DURATION_BOUNDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25),
    *(0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)

_UNIT_SUFFIXES: Final = {"s": "_seconds", "By": "_bytes"}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Instrument:
    """A metric. Instruments are compared by identity.

    Attributes:
        name: The name in OpenTelemetry.
        kind: "counter", "gauge" or "histogram".
        unit: Unit in UCUM's notation, such as "s", "By" or "{message}"; "" if there is none.
        help: A sentence that explains the metric.
        labels: Names of the labels in Prometheus.
        is_sum: True if a gauge can be added up over objects, False for one value of the process.
        keeps_name: True if Prometheus has the same name, without a suffix.
        operation: Name of the messaging operation, for metrics of OpenTelemetry's conventions.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...]
    is_sum: bool = True
    keeps_name: bool = False
    operation: str = ""

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus, with the unit and with `_total` for a counter."""
        if self.keeps_name:
            return self.name
        name = self.name.replace(".", "_") + _UNIT_SUFFIXES.get(self.unit, "")
        return f"{name}_total" if self.kind == "counter" else name


_OF_CONSUMER: Final = (TOPIC, SUBSCRIPTION)
_JAVA: Final = "pulsar.client."
_OWN: Final = "pulsar.client.encore."
_MESSAGE: Final = "{message}"


def _consumer(name: str, kind: Kind, text: str, unit: str = _MESSAGE) -> Instrument:
    return Instrument(name=name, kind=kind, unit=unit, help=text, labels=_OF_CONSUMER)


def _worker(name: str, kind: Kind, text: str, unit: str = _MESSAGE) -> Instrument:
    return Instrument(
        name=f"{_OWN}worker.{name}", kind=kind, unit=unit, help=text, labels=(WORKER,)
    )


# Consumers

CONSUMED: Final = Instrument(
    name="messaging.client.consumed.messages",
    kind="counter",
    unit=_MESSAGE,
    help="Deliveries to the application. A message that is redelivered counts again.",
    labels=_OF_CONSUMER,
    operation="receive",
)
ACKED: Final = _consumer(
    f"{_JAVA}consumer.message.ack",
    "counter",
    "Messages that the application acked. The originals of letters do not count.",
)
NACKED: Final = _consumer(
    f"{_JAVA}consumer.message.nack", "counter", "Messages that the application nacked."
)
DEAD_LETTERS: Final = _consumer(
    f"{_JAVA}consumer.message.dlq", "counter", "Letters that were stored in a dead letter topic."
)
CONSUMERS_OPENED: Final = _consumer(
    f"{_JAVA}consumer.opened", "counter", "Consumers that have subscribed.", "{session}"
)
CONSUMERS_CLOSED: Final = _consumer(
    f"{_JAVA}consumer.closed", "counter", "Consumers that have closed.", "{session}"
)
QUEUED: Final = _consumer(
    f"{_JAVA}consumer.receive_queue.count",
    "gauge",
    "Messages that have arrived and are not delivered to the application yet.",
)
REDELIVERED: Final = _consumer(
    f"{_OWN}consumer.redelivered",
    "counter",
    "Messages that the broker was asked to send again: due nacks, ack timeouts, expired leases and "
    "rewinds.",
)
REJECTED: Final = _consumer(
    f"{_OWN}consumer.rejected",
    "counter",
    "Messages that the application rejected. They are part of the dead letters.",
)
RETRY_LETTERS: Final = _consumer(
    f"{_OWN}consumer.retry_letters",
    "counter",
    "Letters that were stored in the retry letter topic.",
)
LEASES_LOST: Final = _consumer(
    f"{_OWN}consumer.leases.lost",
    "counter",
    "Leases that expired, or whose message was settled or taken back.",
    "{lease}",
)
RECONNECTS: Final = _consumer(
    f"{_OWN}consumer.reconnects",
    "counter",
    "How often a lost connection of a subscription was restored.",
    "{reconnect}",
)
IN_FLIGHT: Final = _consumer(
    f"{_OWN}consumer.in_flight", "gauge", "Messages that were delivered and are not settled."
)
WAITING_NACKS: Final = _consumer(
    f"{_OWN}consumer.nacks.waiting",
    "gauge",
    "Nacked messages that wait in the process for their due time.",
)
UNACKED: Final = _consumer(
    f"{_OWN}consumer.window.unacked",
    "gauge",
    "Messages that count against the unacked window: queued, in flight and waiting nacks.",
)
WINDOW: Final = _consumer(
    f"{_OWN}consumer.window.size",
    "gauge",
    "Unacked messages at which the broker stops delivering.",
)
UNSENT_ACKS: Final = _consumer(
    f"{_OWN}consumer.unsent_acks", "gauge", "Entries whose ack is not sent yet.", "{entry}"
)
LEASES: Final = _consumer(f"{_OWN}consumer.leases.active", "gauge", "Active leases.", "{lease}")
CONSUMERS_OPEN: Final = _consumer(
    f"{_OWN}consumer.open", "gauge", "Consumers that are open.", "{consumer}"
)
CONSUMERS_CONNECTED: Final = _consumer(
    f"{_OWN}consumer.connected",
    "gauge",
    "Open consumers that are connected to their broker.",
    "{consumer}",
)
STATES_FAILED: Final = _consumer(
    f"{_OWN}consumer.state.failed",
    "gauge",
    "Open consumers whose due times or attempts cannot be written to disk.",
    "{consumer}",
)

# Producers

SENT: Final = Instrument(
    name="messaging.client.sent.messages",
    kind="counter",
    unit=_MESSAGE,
    help="Messages that a producer sent, or failed to send with this type of error.",
    labels=(TOPIC, ERROR_TYPE),
    operation="send",
)
SEND_DURATION: Final = Instrument(
    name="messaging.client.operation.duration",
    kind="histogram",
    unit="s",
    help="Time from the call of send until the broker has stored the message.",
    labels=(TOPIC, ERROR_TYPE),
    operation="send",
)
SENT_SIZE: Final = Instrument(
    name=f"{_JAVA}producer.message.send.size",
    kind="counter",
    unit="By",
    help="Encoded payload of stored messages.",
    labels=(TOPIC,),
)
PENDING: Final = Instrument(
    name=f"{_JAVA}producer.message.pending.count",
    kind="gauge",
    unit=_MESSAGE,
    help="Messages that are sent and not stored yet.",
    labels=(TOPIC,),
)
PRODUCERS_OPENED: Final = Instrument(
    name=f"{_JAVA}producer.opened",
    kind="counter",
    unit="{session}",
    help="Producers that were created.",
    labels=(TOPIC,),
)
PRODUCERS_CLOSED: Final = Instrument(
    name=f"{_JAVA}producer.closed",
    kind="counter",
    unit="{session}",
    help="Producers that have closed.",
    labels=(TOPIC,),
)
PRODUCERS_CONNECTED: Final = Instrument(
    name=f"{_OWN}producer.connected",
    kind="gauge",
    unit="{producer}",
    help="Open producers that are connected to their broker.",
    labels=(TOPIC,),
)

# Workers

PROCESS_DURATION: Final = Instrument(
    name="messaging.process.duration",
    kind="histogram",
    unit="s",
    help="Duration of handler calls. A call that failed has the type of its error.",
    labels=(TOPIC, SUBSCRIPTION, WORKER, ERROR_TYPE),
    operation="process",
)
#: Counters of `Report`, by the name of its attribute.
REPORT: Final = {
    "received": _worker("received", "counter", "Messages that the worker took."),
    "succeeded": _worker("succeeded", "counter", "Messages whose handler returned."),
    "failed": _worker(
        "failed", "counter", "Handler calls that raised an error or took too long.", "{call}"
    ),
    "retried": _worker(
        "retried", "counter", "Failures and nacks that are followed by another attempt."
    ),
    "rejected": _worker("rejected", "counter", "Messages that were dead-lettered."),
    "discarded": _worker(
        "discarded", "counter", "Messages that were acked without success (dead_letters=False)."
    ),
    "published": _worker("published", "counter", "Messages that handlers published."),
    "lost": _worker(
        "lost",
        "counter",
        "Messages that another consumer took over while they were here, or whose transaction was "
        "aborted.",
    ),
    "given_back": _worker(
        "given_back", "counter", "Unfinished messages that the drain gave back to the broker."
    ),
    "abandoned": _worker(
        "abandoned", "counter", "Handlers that ignored their cancellation.", "{call}"
    ),
}
#: Gauges of `Health`, by the name of its attribute.
HEALTH: Final = {
    "running": _worker("running", "gauge", "Handlers that run now.", "{call}"),
    "waiting": _worker(
        "waiting", "gauge", "Failed messages that wait in the worker for their next attempt."
    ),
    "blocked": _worker(
        "blocked", "gauge", "Messages that wait for an earlier message of their key or partition."
    ),
    "stuck_handlers": _worker(
        "stuck", "gauge", "Handlers that still run after their cancellation.", "{call}"
    ),
}
LONG_HANDLERS: Final = _worker(
    "long", "gauge", "Handlers that have been running for more than 5 minutes.", "{call}"
)
READY: Final = _worker("ready", "gauge", "Workers that are ready.", "{worker}")
#: States of a worker that runs.
WORKER_STATES: Final = ("starting", "running", "paused", "draining")
IN_STATE: Final = Instrument(
    name=f"{_OWN}worker.state",
    kind="gauge",
    unit="{worker}",
    help="Workers that are starting, running, paused, draining or failed. A failed worker counts "
    "until one of the same name starts.",
    labels=(WORKER, STATE),
)
BREAKER_OPEN: Final = _worker("breaker.open", "gauge", "Workers with an open breaker.", "{worker}")
BREAKER_OPENINGS: Final = _worker(
    "breaker.openings", "counter", "How often the breaker opened.", "{opening}"
)
WORKERS_STARTED: Final = _worker("started", "counter", "Workers that began.", "{worker}")
WORKERS_ENDED: Final = Instrument(
    name=f"{_OWN}worker.ended",
    kind="counter",
    unit="{worker}",
    help="Workers that have ended. Those that failed have the type of their error.",
    labels=(WORKER, ERROR_TYPE),
)

# The exporter itself

SNAPSHOT_AGE: Final = Instrument(
    name=f"{_OWN}snapshot.age",
    kind="gauge",
    unit="s",
    help="Age of the values of an event loop that does not answer; 0 while all loops answer.",
    labels=(),
    is_sum=False,
)


# PIP-195


def _pip_195(name: str, kind: Kind, text: str, *labels: str) -> Instrument:
    return Instrument(
        name=f"pulsar_delayed_message_index_{name}",
        kind=kind,
        unit="",
        help=text,
        labels=(*_OF_CONSUMER, *labels),
        keeps_name=True,
    )


PIP_195: Final = {
    each.name: each
    for each in (
        _pip_195("bucket_total", "gauge", "Buckets of the index of nacks on disk."),
        _pip_195("loaded", "gauge", "Message ids of the index that are in memory."),
        _pip_195("bucket_snapshot_size_bytes", "gauge", "Bytes of bucket snapshots in the store."),
        _pip_195("bucket_op_count", "counter", "Operations on bucket snapshots.", "state", "type"),
        _pip_195(
            "bucket_op_latency_ms",
            "counter",
            "Operations by latency: over the threshold before `quantile`, up to `quantile` ms.",
            "type",
            "quantile",
        ),
        _pip_195(
            "bucket_op_latency_ms_count",
            "counter",
            "Operations whose latency was measured.",
            "type",
        ),
        _pip_195(
            "bucket_op_latency_ms_sum",
            "counter",
            "Milliseconds that the measured operations took.",
            "type",
        ),
    )
}

INSTRUMENTS: Final[tuple[Instrument, ...]] = (
    *(CONSUMED, ACKED, NACKED, DEAD_LETTERS, RETRY_LETTERS, REJECTED, REDELIVERED, RECONNECTS),
    *(QUEUED, IN_FLIGHT, WAITING_NACKS, UNACKED, WINDOW, UNSENT_ACKS, LEASES, LEASES_LOST),
    *(CONSUMERS_OPENED, CONSUMERS_CLOSED, CONSUMERS_OPEN, CONSUMERS_CONNECTED, STATES_FAILED),
    *(SENT, SEND_DURATION, SENT_SIZE, PENDING),
    *(PRODUCERS_OPENED, PRODUCERS_CLOSED, PRODUCERS_CONNECTED),
    PROCESS_DURATION,
    *REPORT.values(),
    *HEALTH.values(),
    *(LONG_HANDLERS, READY, IN_STATE, BREAKER_OPEN, BREAKER_OPENINGS),
    *(WORKERS_STARTED, WORKERS_ENDED, SNAPSHOT_AGE),
    *PIP_195.values(),
)
