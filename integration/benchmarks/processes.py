"""Brokers and processes for benchmarks: an existing broker, or a development broker of their
own.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pulsar_encore.cli.broker_process import broker_process
from pulsar_encore.cli.demo.measurement import MeasurementError, measure
from pulsar_encore.cli.demo.workload import Figures

#: Labels of this package's measurements and their names in tables: one for each transport.
OURS: Final = {"native": "native", "encore": "over stock"}
_ATTEMPTS: Final = 4


@contextmanager
def broker(url: str | None, *options: str) -> Iterator[str]:
    """Yield `url`, or the address of a development broker in another process."""
    if url is not None:
        yield url
        return
    with broker_process(options) as made:
        yield made


def fresh_topic() -> str:
    """Return an unused topic name."""
    return f"encore-bench-{uuid.uuid4().hex}"


class Runner:
    """Runs measurements against one broker, each in a process of its own.

    The stock client sometimes aborts its process, mostly at exit. A measurement whose process was
    killed by a signal or took too long is repeated up to three times.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    async def __call__(
        self,
        side: str,
        name: str,
        *,
        within_s: float,
        topic: str = "",
        new_subscription: bool = False,
        attempts: int = _ATTEMPTS,
        **parameters: Any,
    ) -> Figures:
        """See `pulsar_encore.cli.demo.measurement.measure`.

        Args:
            side: May be any full module name.
            new_subscription: Give the measurement the parameter `subscription`, with another name
                at each attempt: a process that died may have acked the messages.
            attempts: How often a process that was killed or took too long is started.
        """
        remaining = attempts
        while True:
            used_topic = topic or fresh_topic()
            if new_subscription:
                parameters["subscription"] = uuid.uuid4().hex
            remaining -= 1
            try:
                return await measure(
                    side, name, self.url, used_topic, within_s=within_s, **parameters
                )
            except MeasurementError as error:
                if not (error.lost and remaining):
                    raise

    def consume(
        self, side: str, name: str, *, topic: str, count: int, within_s: float, **parameters: Any
    ) -> Figures:
        """Let a new subscription read `count` messages of a topic, from outside an event loop.

        The transport of this package's clients is native, unless `parameters` name another.
        """
        chosen = {"transport": "native", "count": count, **parameters}
        return asyncio.run(
            self(side, name, within_s=within_s, topic=topic, new_subscription=True, **chosen)
        )
