"""Ack letters without a replay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..client import Client
from ..consumer.consumer import Consumer
from ..message import Message
from .dead_letter import Letter
from .letter_groups import NO_FINGERPRINT
from .selection import Selection
from .unacked_letters import receive_unacked


@dataclass(slots=True)
class DiscardReport:
    """Counts of one discard. The progress callback gets this object while the discard runs.

    Attributes:
        dry_run: True if nothing was acked, and the counts are those of the letters that would be.
        discarded: Letters that are acked.
        passed: Letters that were read and not selected. They stay on the subscription.
        fingerprints: Discarded letters by fingerprint; "-" for letters without one.
        reached_end: True if the last letter of the topic was seen. False if the limit came first,
            or if the last letters had been acked before and no more arrived.
        at_limit: True if the discard stopped at its `limit`. There may be more letters.
        missing: Requested ids for which no letter was seen: the letter does not exist, or was
            replayed or discarded before.
    """

    dry_run: bool = False
    discarded: int = 0
    passed: int = 0
    fingerprints: dict[str, int] = field(default_factory=dict)
    reached_end: bool = False
    at_limit: bool = False
    missing: list[str] = field(default_factory=list)


class Discard:
    """One run over a dead letter topic. It updates `report` while it runs."""

    def __init__(
        self,
        client: Client,
        report: DiscardReport,
        selection: Selection,
        *,
        subscription: str,
        crypto_key_reader: Any,
        limit: int | None,
        quiet_s: float,
        on_progress: Callable[[DiscardReport], None] | None,
    ) -> None:
        self._client = client
        self._report = report
        self._selection = selection
        self._subscription = subscription
        self._crypto_key_reader = crypto_key_reader
        self._limit = limit
        self._quiet_s = quiet_s
        self._on_progress = on_progress
        self._missing = {each for each in selection.ids or () if isinstance(each, str)}

    async def run(self, partitions: Sequence[str]) -> None:
        """Discard in one partition after the other."""
        ended = [
            await receive_unacked(
                self._client,
                partition,
                self._subscription,
                crypto_key_reader=self._crypto_key_reader,
                quiet_s=self._quiet_s,
                process=self._process,
                is_stopped=self._is_full,
                before_close=_nothing,
            )
            for partition in partitions
            if not self._is_full()
        ]
        self._end(reached_end=len(ended) == len(partitions) and all(ended))

    async def count(self, found: AsyncIterator[Letter]) -> None:
        """Do a dry run: count the letters that would be discarded."""
        async for letter in found:
            if self._is_full():
                return self._end(reached_end=False)
            self._take(letter)
        self._end(reached_end=True)

    async def _process(self, consumer: Consumer, message: Message) -> None:
        letter = Letter(message)
        if not self._selection.takes(letter):
            self._report.passed += 1
            return
        await consumer.acknowledge(message)
        self._take(letter)
        if self._on_progress is not None:
            self._on_progress(self._report)

    def _take(self, letter: Letter) -> None:
        report = self._report
        if not self._selection.takes(letter):
            report.passed += 1
            return
        self._missing.discard(letter.id)
        report.discarded += 1
        name = letter.fingerprint or NO_FINGERPRINT
        report.fingerprints[name] = report.fingerprints.get(name, 0) + 1

    def _is_full(self) -> bool:
        return self._limit is not None and self._report.discarded >= self._limit

    def _end(self, *, reached_end: bool) -> None:
        report = self._report
        report.reached_end = reached_end
        report.at_limit = self._is_full() and not reached_end
        report.missing = [] if report.at_limit else sorted(self._missing)


async def _nothing() -> None:
    """Closing the consumer sends its acks, and nothing else is in flight."""
