"""Where a benchmark's clients find their broker: one named by address, or one of their own."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

from pulsar_encore.cli.broker_process import broker_process
from pulsar_encore.cli.demo.measuring import measure
from pulsar_encore.cli.demo.workload import Figures


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
    """Runs measurements, each in a process of its own, against one broker."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(
        self, side: str, name: str, *, within_s: float, topic: str = "", **parameters: Any
    ) -> Awaitable[Figures]:
        """See `pulsar_encore.cli.demo.measuring.measure`; `side` may be any module's full name."""
        topic = topic or fresh_topic()
        return measure(side, name, self.url, topic, within_s=within_s, **parameters)
