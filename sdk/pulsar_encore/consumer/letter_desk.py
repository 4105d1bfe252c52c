"""Which messages become letters without being asked: those that had their looks, or are in the way.

Owns `LetterDesk`: the rules of the dead-letter policy on the nack and ack-timeout paths, of
`nack_overflow`, and of letters that a broker with coarse delays delivers too early. What it decides
on, `Forwarder` sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from .. import letters
from ..backoff import to_ms
from ..core.due_index import precision_bits
from ..core.entry import Entry
from ..core.in_flight import InFlight
from ..letters.counting import parked_attempts
from ..letters.evidence import evidence_of
from ..message import Message
from ..options import ConsumerOptions
from ..timer import due_in_ms, now_ms, wall_now_ms
from ..transport.base import RawMessage

if TYPE_CHECKING:
    from .forwarder import Forwarder
    from .receive_queue import ReceiveQueue
    from .redelivery import Redelivery
    from .window import Window

# A letter that is early by less waits here with its payload; by more, its redelivery is asked for.
_MOST_EARLY_MS: Final = 5_000
_MOST_WAITING: Final = 1_000


class LetterDesk:
    """Decides for one consumer.

    Args:
        options: Policy, overflow, schema.
        forwarder: Sends letters.
        queue: Gets early letters when they are due.
        redelivery: Asks for letters again that are too early to keep.
        window: How full the broker's unacked window is.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        forwarder: Forwarder,
        queue: ReceiveQueue,
        redelivery: Redelivery,
        window: Window,
    ) -> None:
        self._options = options
        self._letter_sources: dict[int, bool] = {}
        self._forwarder = forwarder
        self._queue = queue
        self._redelivery = redelivery
        self._window = window
        self._loop = asyncio.get_running_loop()
        self._most = forwarder.max_redeliver_count if options.dead_letter_policy else None
        self._waiting: set[asyncio.TimerHandle] = set()
        self._parks = options.nack_overflow is not None
        self._longest_ms = to_ms(options.nack_overflow_delay, "nack_overflow_delay")

    def takes_nack(self, message: Message, due_ms: int, error: BaseException | str | None) -> bool:
        """A nack of a held message: True when it became a letter instead of waiting here."""
        entry = message._entry
        assert entry is not None
        home: InFlight = entry.home
        evidence = None if error is None else evidence_of(error, "nack")
        if self._most is not None and message._count >= self._most:
            home.leave(entry, message._index)
            self._forwarder.bury(message, evidence, "nack")
            return True
        if home.attempts is not None:
            key = entry.due_key(message._index)
            home.attempts.failed(key, wall_now_ms(self._loop), evidence)
        delay_ms = max(0, due_ms - now_ms(self._loop))
        if self._parks and self._overflows(delay_ms):
            home.leave(entry, message._index)
            self._forwarder.park(message, delay_ms, evidence)
            return True
        return False

    def _overflows(self, delay_ms: int) -> bool:
        options = self._options
        if delay_ms > self._longest_ms:
            return True
        return self._window.nacked >= options.nack_overflow_share * self._window.size

    def sift(
        self,
        home: InFlight,
        entry: Entry,
        indexes: Sequence[int],
        messages: Sequence[RawMessage],
    ) -> tuple[Sequence[int], Sequence[RawMessage]]:
        """What of a delivery the application may see now; the rest is buried, or waits."""
        letters_here = self._letter_sources.get(home.source)
        if letters_here is None:
            letters_here = self._letter_sources[home.source] = self._options.reads_letters(
                home.topic
            )
        if letters_here:
            return self._sift_letters(home, entry, indexes, messages)
        counted = entry.looks is not None or (entry.size > 1 and home.attempts)
        if self._most is None or (entry.base <= self._most and not counted):
            return indexes, messages
        return self._bury(home, entry, indexes, messages)

    def _bury(
        self,
        home: InFlight,
        entry: Entry,
        indexes: Sequence[int],
        messages: Sequence[RawMessage],
    ) -> tuple[Sequence[int], Sequence[RawMessage]]:
        if self._most is None:
            return indexes, messages
        kept_indexes, kept_messages = [], []
        for index, raw in zip(indexes, messages, strict=True):
            count = entry.redelivery_count(index)
            if count <= self._most:
                kept_indexes.append(index)
                kept_messages.append(raw)
            elif home.leave(entry, index):
                message = Message(raw, self._options.schema, entry, index, count - 1)
                self._forwarder.bury(message, None, "redelivered too often")
        return kept_indexes, kept_messages

    def _sift_letters(
        self,
        home: InFlight,
        entry: Entry,
        indexes: Sequence[int],
        messages: Sequence[RawMessage],
    ) -> tuple[Sequence[int], Sequence[RawMessage]]:
        due = []
        wall_now = wall_now_ms(self._loop)
        for at, raw in enumerate(messages):
            properties = _properties(raw)
            if entry.size == 1:
                entry.base += parked_attempts(properties)  # which the broker's count knows not of
            early_ms = _early_ms(raw, properties, wall_now)
            if early_ms > 0:
                self._wait(home, entry, indexes[at], raw, early_ms)
            else:
                due.append(at)
        return self._bury(home, entry, [indexes[at] for at in due], [messages[at] for at in due])

    def _wait(
        self, home: InFlight, entry: Entry, index: int, raw: RawMessage, early_ms: int
    ) -> None:
        if early_ms > _MOST_EARLY_MS or len(self._waiting) >= _MOST_WAITING:
            home.overlook(entry.key, entry.size)
            bits = precision_bits(early_ms)
            home.nack(entry, index, due_in_ms(self._loop, early_ms), bits)
            self._redelivery.nacked(home)
            return

        def due() -> None:
            self._waiting.discard(handle)
            for at, message in zip(*self._bury(home, entry, [index], [raw]), strict=True):
                self._queue.push(entry, [at], [message], room=False)
            self._queue.wake(1)

        handle = self._loop.call_later(early_ms / 1000, due)
        self._waiting.add(handle)

    def close(self) -> None:
        """What waits here comes again to whoever reads the retry-letter topic next."""
        for handle in self._waiting:
            handle.cancel()


def _properties(raw: RawMessage) -> dict[str, str]:
    try:
        return raw.properties()
    except UnicodeDecodeError:
        return {}  # a foreign letter with raw bytes; its delay cannot be read


def _early_ms(raw: RawMessage, properties: dict[str, str], wall_now: int) -> int:
    """How much too early a letter is; brokers round delays to a tick (notes 9.1)."""
    text = properties.get(letters.DELAY_TIME, "")
    if (
        not (text.isascii() and text.isdigit() and len(text) < 16)
        or letters.REAL_TOPIC not in properties
    ):
        return 0
    return raw.publish_timestamp() + int(text) - wall_now
