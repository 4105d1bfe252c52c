"""A control message on its way around the broker, so that a slow broker is not taken for a loss.

Owns `Control`: one message after another through the stock client, on a topic of its own; what took
long is noted. Whoever judges lateness adds it to the bounds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Final

import pulsar

from .clients import QUIET

EACH_S: Final = 0.25
SLOW_S: Final = 0.1


class Control:
    """Runs on a thread from `start` to `close`.

    Attributes:
        lags: (when it came back on the monotonic clock, how long it took in s) of each slow one.
    """

    def __init__(self, url: str, topic: str) -> None:
        self.lags: list[tuple[float, float]] = []
        self._url = url
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        client = pulsar.Client(self._url, logger=QUIET)
        with contextlib.suppress(pulsar.PulsarException):
            consumer = client.subscribe(self._topic, "control")
            producer = client.create_producer(self._topic)
            while not self._stop.wait(EACH_S):
                began = time.monotonic()
                producer.send(b"")
                consumer.acknowledge(consumer.receive(60_000))
                now = time.monotonic()
                if now - began > SLOW_S:
                    self.lags.append((now, now - began))
        client.close()
