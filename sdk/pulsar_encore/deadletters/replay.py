"""Receive letters, publish each one to its target topic, then ack it.

Invariant: a letter is acked after the receipt of its copy. A cancelled or failed `Replay` waits for
the copies in flight, so only a kill can leave a copy stored and its letter unacked.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..client import Client, transport_of
from ..consumer.consumer import Consumer
from ..consumer.forwarding.bounded_copy import BoundedCopy
from ..consumer.forwarding.copy_options import Destination
from ..errors import ClosedError, ConfigurationError, EncoreError
from ..letters.letter_form import form_of
from ..message import Message
from ..options.checks import text
from ..values.outgoing_message import OutgoingMessage
from .dead_letter import Letter
from .letter_errors import ReplayStoppedError
from .replay_report import ReplayReport
from .selection import Selection
from .unacked_letters import receive_unacked

_MAX_IN_FLIGHT: Final = 64  # after a kill these letters are sent again
_DRAIN_S: Final = 35.0  # longer than the send timeout of the producers
_MAX_ID_LENGTH: Final = 200


class RateLimit:
    """Limits the rate of letters, in letters per second; None for no limit.

    The letters are spaced evenly. After a delay no burst follows to catch up.
    """

    def __init__(self, rate: Any) -> None:
        self._gap_s = 0.0
        self._next = -math.inf
        if rate is None:
            return
        number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
        # With a smaller rate a step takes more than a month, which is longer than timers can wait.
        if not number or not math.isfinite(rate) or rate < 1e-6:
            raise ConfigurationError(f"rate must be letters a second, above 0, got {rate!r}")
        self._gap_s = 1 / rate

    async def step(self) -> None:
        if not self._gap_s:
            return
        now = asyncio.get_running_loop().time()
        if now < self._next:
            await asyncio.sleep(self._next - now)
            now = self._next
        self._next = now + self._gap_s


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayOptions:
    """Checked arguments of `DeadLetters.replay`."""

    dead_topic: str
    subscription: str
    schema: Any
    crypto_key_reader: Any
    text_keys: bool
    selection: Selection
    rate_limit: RateLimit
    limit: int | None
    keep_counters: bool
    target: str | None
    quiet_s: float
    on_progress: Callable[[ReplayReport], None] | None


class Replay:
    """One run over a dead letter topic. It updates `report` while it runs."""

    def __init__(self, client: Client, options: ReplayOptions, report: ReplayReport) -> None:
        self._client = client
        self._transport = transport_of(client)
        self._refuse_bytes = not (self._transport.capabilities.binary_keys or options.text_keys)
        self._options = options
        self._report = report
        self._allowed = frozenset(options.selection.real_topics or ())
        self._missing = {each for each in options.selection.ids or () if isinstance(each, str)}
        self._copies = BoundedCopy(
            self._transport,
            options.crypto_key_reader,
            options.schema,
            limit=_MAX_IN_FLIGHT,
            max_failures=_MAX_IN_FLIGHT,
            drain_s=_DRAIN_S,
        )

    async def run(self, partitions: Sequence[str]) -> None:
        """Replay one partition after the other, or raise ReplayStoppedError."""
        ended = []
        try:
            for partition in partitions:
                if self._full or self._copies.failure is not None:
                    break
                ended.append(await self._replay(partition))
        finally:
            await self._copies.close()
        failure = self._copies.failure
        if isinstance(failure, EncoreError):
            raise ReplayStoppedError(
                f"letter {self._copies.failed_at} could not be sent, {self._report.replayed} were "
                f"before it: {failure}. Run it again to go on: what was replayed is not sent again",
                self._report,
            ) from failure
        if failure is not None:
            raise failure
        self.end_report(reached_end=len(ended) == len(partitions) and all(ended))

    async def count(self, found: AsyncIterator[Letter]) -> None:
        """Do a dry run: count in the report which letters would be sent, and where."""
        async for letter in found:
            if self._full:
                return self.end_report(reached_end=False)
            judged = self._judge(letter)
            if judged is not None:
                self._report.select(judged[0].topic)
        self.end_report(reached_end=True)

    async def can_send(self, letter: Letter) -> bool:
        """Return True if the letter is to be sent and its target accepts messages.

        Otherwise the letter is counted in the report. Call `close` afterwards.
        """
        judged = self._judge(letter)
        if judged is None:
            return False
        try:
            await self._copies.open(judged[0])
        except ClosedError:
            raise
        except EncoreError as error:
            self._report.refuse(letter.id, str(error))
            return False
        return True

    async def close(self) -> None:
        await self._copies.close()

    def end_report(self, *, reached_end: bool) -> None:
        report = self._report
        report.reached_end = reached_end
        report.at_limit = self._full and not reached_end
        report.missing = [] if report.at_limit else sorted(self._missing)

    @property
    def _full(self) -> bool:
        limit = self._options.limit
        return limit is not None and self._report.selected >= limit

    async def _replay(self, partition: str) -> bool:
        """Replay one partition; return True if its last letter was seen."""
        options = self._options
        return await receive_unacked(
            self._client,
            partition,
            options.subscription,
            crypto_key_reader=options.crypto_key_reader,
            quiet_s=options.quiet_s,
            process=self._process,
            is_stopped=lambda: self._full or self._copies.failure is not None,
            # Also when cancelled: copies in flight will be stored, and their letters are acked.
            before_close=self._drain,
        )

    async def _drain(self) -> None:
        self._report.doubtful = await self._copies.drain()

    async def _process(self, consumer: Consumer, message: Message) -> None:
        letter = Letter(message)
        judged = self._judge(letter)
        if judged is None:
            return
        destination, copy = judged
        await self._options.rate_limit.step()
        if not await self._copies.wait_for_slot():
            return
        try:
            await self._copies.open(destination)
        except ClosedError as error:
            self._copies.fail(error, letter.id)
        except EncoreError as error:
            self._report.refuse(letter.id, str(error))
        else:
            self._report.select(destination.topic)
            self._copies.begin(self._send(consumer, letter, destination, copy), letter.id)

    def _judge(self, letter: Letter) -> tuple[Destination, OutgoingMessage] | None:
        """Return the destination and the copy to send; None for a letter that stays."""
        options, report = self._options, self._report
        if not options.selection.takes(letter):
            report.passed += 1
            return None
        self._missing.discard(letter.id)
        try:
            target = letter.target(options.dead_topic, options.target, self._allowed)
            destination = Destination(target, form_of(letter.message))
            copy = letter.copy(
                report.replay_id,
                keep_counters=options.keep_counters,
                refuse_bytes=self._refuse_bytes,
            )
            self._copies.check(destination)
        except EncoreError as error:
            report.refuse(letter.id, str(error))
            return None
        return destination, copy

    async def _send(
        self, consumer: Consumer, letter: Letter, destination: Destination, copy: OutgoingMessage
    ) -> None:
        try:
            await self._copies.publish(destination, copy)
        except EncoreError as error:
            self._report.unselect(destination.topic)
            if isinstance(error, ClosedError):
                raise
            self._report.refuse(letter.id, str(error))
            return
        await consumer.acknowledge(letter.message)
        self._report.replayed += 1
        if self._options.on_progress is not None:
            self._options.on_progress(self._report)


def checked_replay_id(replay_id: Any) -> str:
    if replay_id is None:
        return uuid.uuid4().hex[:12]
    checked = text(replay_id, "replay_id")
    if len(checked) > _MAX_ID_LENGTH or not checked.isprintable():
        raise ConfigurationError(f"replay_id must be at most {_MAX_ID_LENGTH} printable characters")
    return checked
