"""Counts of what happened to a consumer's messages since it was made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Counts since a consumer was made, from `Consumer.counters`. They never fall.

    Attributes:
        received: Deliveries to the application. A message that is redelivered counts again.
        acked: Messages that the application acked. The originals of letters do not count.
        nacked: Nacks by the application, `Lease.nack` included.
        redelivered: Messages that the broker was asked to send again: due nacks, ack timeouts,
            expired leases, and every unacked message of a rewound topic.
        rejected: Messages that `reject` dead-lettered. They are part of `dead_letters`.
        retry_letters: Letters that were stored in the retry letter topic.
        dead_letters: Letters that were stored in a dead letter topic.
        leases_lost: Leases that expired, or whose message was settled or taken back.
        reconnects: How often a lost connection of the subscription was restored.

    Example:
        Export the counters to a monitoring system::

            for name, value in dataclasses.asdict(consumer.counters()).items():
                gauges[name].set(value)
    """

    received: int = 0
    acked: int = 0
    nacked: int = 0
    redelivered: int = 0
    rejected: int = 0
    retry_letters: int = 0
    dead_letters: int = 0
    leases_lost: int = 0
    reconnects: int = 0
