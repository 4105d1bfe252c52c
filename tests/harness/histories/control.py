"""Measure the broker's delay with control messages, so that a slow broker is not taken for a loss.

`Control` sends one message after another through the stock client on a topic of its own, and notes
slow ones. The checker adds these delays to its bounds.
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
    """Sends control messages on a thread, from `start` to `close`.

    Attributes:
        lags: For each slow message, its arrival on the monotonic clock and its time on the way, in
            s.
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
