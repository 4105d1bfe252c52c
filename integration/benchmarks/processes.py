"""Where a benchmark's clients find their broker: one named by address, or one of their own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pulsar_encore.cli.broker_process import broker_process
from pulsar_encore.cli.demo.measurement import MeasurementError, measure
from pulsar_encore.cli.demo.workload import Figures

#: This package's measurements, and what they are called in tables: one for each transport.
OURS: Final = {"native": "native", "encore": "over stock"}
_ATTEMPTS: Final = 4


@contextmanager
def broker(url: str | None, *options: str) -> Iterator[str]:
    """`url`, or the address of a development broker in another process for as long as needed."""
    if url is not None:
        yield url
        return
    with broker_process(options) as made:
        yield made


def fresh_topic() -> str:
    """A name nobody has used."""
    return f"encore-bench-{uuid.uuid4().hex}"


class Runner:
    """Runs measurements, each in a process of its own, against one broker.

    Stock aborts its process now and then, mostly at its exit: one that died is given other tries.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    async def __call__(
        self, side: str, name: str, *, within_s: float, topic: str = "", **parameters: Any
    ) -> Figures:
        """See `pulsar_encore.cli.demo.measurement.measure`; `side` may be any full module name."""
        remaining = _ATTEMPTS
        while True:
            used_topic = topic or fresh_topic()
            remaining -= 1
            try:
                return await measure(
                    side, name, self.url, used_topic, within_s=within_s, **parameters
                )
            except MeasurementError as error:
                if not (error.lost and remaining):
                    raise
