"""Faults between the plan of a read and the read."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from reader_kit import TOPIC, source

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread
from pulsar_encore.devbroker.rules.cursor import Cursor
from pulsar_encore.devbroker.server import Broker

SMALL: Final = {"pulsar.reader.receiverQueueSize": "10", "maxRecordsPerBatch": "10"}


def hidden(monkeypatch: pytest.MonkeyPatch, entries: Collection[int]) -> None:
    """Hide entries from every subscription. The broker acks them itself, as it does with markers.

    Args:
        monkeypatch: Restores the broker at the end of the test.
        entries: Numbers of the entries, counted from the topic's first.
    """

    class Hiding(Cursor):
        def __init__(self, mark: int) -> None:
            super().__init__(mark)
            for entry in entries:
                self.ack(entry)

    monkeypatch.setattr("pulsar_encore.devbroker.rules.subscriptions.Cursor", Hiding)


def expire(broker: BrokerThread, upto: int) -> None:
    """Expire messages: each cursor of the topic moves past this number of first entries."""

    def go(each: Broker) -> None:
        for subscription in each.service.catalogue.topic(
            TOPIC, create=False
        ).subscriptions.values():
            subscription.cursor.ack_below(upto)

    broker.call(go)


def pass_time(broker: BrokerThread, seconds: int) -> None:
    """Advance the broker's clock. The broker then challenges clients to renew their credentials."""

    def go(each: Broker) -> None:
        each.service._started_ms -= seconds * 1000

    broker.call(go)
    deadline = time.monotonic() + 10
    while not broker.recorded("AUTH_RESPONSE", "in"):
        assert time.monotonic() < deadline, "nobody answered AUTH_CHALLENGE"
        time.sleep(0.01)


@contextmanager
def slow_read(url: str, **options: Any) -> Iterator[Iterator[list[dict[str, Any]]]]:
    """Plan a batch of the topic as one task, with its rows in small record batches."""
    made = source(url, **SMALL, **options)
    reader = made.reader(made.schema())
    [whole] = reader.partitions()
    batches = reader.read(whole)
    try:
        yield (batch.to_pylist() for batch in batches)
    finally:
        batches.close()


MADE: Final[list[tuple[encore.Client, threading.Lock]]] = []
"""What `client_with_a_lock` made."""


def client_with_a_lock(url: str, **options: Any) -> encore.Client:
    """Return a client with a lock, for `clientFactory`."""
    client = encore.Client(url, **options)
    MADE.append((client, threading.Lock()))
    return client


def no_client(url: str, **options: Any) -> object:
    """Return no client, for `clientFactory`."""
    return object()
