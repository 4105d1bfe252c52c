"""Nacks that wait in the negative-ack tracker of the C++ client."""

from __future__ import annotations

import gc
import statistics
from time import process_time
from typing import Any, Final

import _pulsar
import psutil
import pulsar

from pulsar_encore.cli.demo.workload import Figures

from .nack_structures import PER_LEDGER

_DELAY_MS: Final = 24 * 3_600_000  # none is due during the measurement


def pending(url: str, topic: str, *, count: int) -> Figures:
    """Nack `count` ids that no message has: the client does not check them.

    The tracker rounds due times to 256 ns instead of 256 ms, so its memory hardly depends on the
    rate of the nacks.
    """
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(
        topic,
        "nacks",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=_DELAY_MS,
    )
    for number in range(1000):  # so that no code is loaded later
        consumer.negative_acknowledge(_message_id(number + PER_LEDGER * count))
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    times = []
    for first in range(0, count, 1000):
        ids = [_message_id(number) for number in range(first, first + 1000)]
        start = process_time()
        for message_id in ids:
            consumer.negative_acknowledge(message_id)
        times.append((process_time() - start) / len(ids))
    gc.collect()
    weight = process.memory_info().rss - before
    client.close()
    return {"bytes": weight, "add_ns": statistics.median(times) * 1e9}


def _message_id(number: int) -> Any:
    return _pulsar.MessageId(-1, number // PER_LEDGER, number % PER_LEDGER, -1)
