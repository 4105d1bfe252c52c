"""What of a source outlives the process, as its state asks for it: `Durable`.

A protocol, because what keeps it is above this room. Times are ms on the clock of the caller, but
where it says otherwise; what keeps them translates. Rules: what waits, and how often it was
attempted, is told before anything can come of it; what is settled may be told late, because the
broker does not send that again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from ..values.message_id import MessageId
from .due_time import MessageKey
from .entry import EntryKey
from .fingerprint import NO_FINGERPRINT


class Recall(NamedTuple):
    """What is known of the messages of one entry, by their index in it.

    Attributes:
        attempts: How often each was handed over, where ever it was.
        dues: Until when each waits, in ms.
    """

    attempts: Mapping[int, int]
    dues: Mapping[int, int]


class Durable(Protocol):
    """The memory of one topic or partition of one subscription."""

    def __bool__(self) -> bool:
        """Whether anything is known."""
        ...

    def knows(self, key: EntryKey) -> bool:
        """Whether anything is known of an entry. Asked for each that comes, so it is cheap."""
        ...

    def is_of(self, key: EntryKey, fingerprint: int) -> bool:
        """True if what is known of an entry is of the one that came; else it is not used.

        Ids begin again in another cluster, and in a topic that was made again.

        Args:
            key: The entry, of which something is known.
            fingerprint: Of the entry that came (`core.fingerprint`).
        """
        ...

    def recall(self, key: EntryKey) -> Recall:
        """What is known of an entry."""
        ...

    def first_ms(self, key: EntryKey) -> int | None:
        """When a message of an entry was handed over first, in ms since the epoch; None where that
        is not known."""
        ...

    def waits(
        self,
        key: MessageKey,
        due_ms: int,
        bits: int,
        attempts: int,
        size: int,
        fingerprint: int = NO_FINGERPRINT,
    ) -> None:
        """A message waits until `due_ms`, and was handed over `attempts` times.

        Args:
            key: Which; an earlier due time of it is void.
            due_ms: Until when.
            bits: See `DueIndex.add`.
            attempts: A count that is higher stays.
            size: Messages in its entry.
            fingerprint: Of its entry; 0 where only the id is known.
        """
        ...

    def leased(
        self,
        key: MessageKey,
        due_ms: int,
        bits: int,
        attempt: int,
        size: int,
        fingerprint: int = NO_FINGERPRINT,
    ) -> None:
        """A message that is handed over is its holder's until `due_ms`, whatever becomes of this
        process; where it ends before, the message waits until then, and has failed.

        Args:
            key: Which; an earlier due time of it is void.
            due_ms: Until when.
            bits: See `DueIndex.add`.
            attempt: For how many times it was handed over, this one included.
            size: Messages in its entry.
            fingerprint: Of its entry; 0 where only the id is known.
        """
        ...

    def leased_until(self, key: MessageKey, attempt: int) -> int | None:
        """When a message comes that was leased with that attempt, of which nothing was heard since;
        None where something was, that time is over, or `trusts` is not true."""
        ...

    def trusts(self, key: EntryKey) -> bool | None:
        """True if what is known of an entry may be used for its id alone, though the entry has not
        come: what is known is of this cluster. None while no message has shown whether it is."""
        ...

    def compared(self) -> Awaitable[None]:
        """Return what is done once `trusts` may have changed, or this was closed."""
        ...

    def waits_anywhere(
        self, key: MessageKey, due_ms: int, bits: int, size: int, *, leased: bool
    ) -> None:
        """A message that was handed over in another process waits until `due_ms`, with whichever
        consumer it does.

        Args:
            key: Which.
            due_ms: Until when.
            bits: See `DueIndex.add`.
            size: Messages in its entry.
            leased: Its lease goes on; else it has failed, and that attempt is over.
        """
        ...

    def acked_anywhere(self, message_id: MessageId) -> None:
        """A message was acked by its id: with whichever consumer it waits, it is done."""
        ...

    def returned(self, key: EntryKey, attempts: Mapping[int, int]) -> None:
        """Messages went back to the broker with others, and nobody failed at them.

        Args:
            key: Their entry.
            attempts: By index: attempts that failed before this one, which does not count.
        """
        ...

    def passed(self, keys: Iterable[MessageKey]) -> None:
        """The time of these has come."""
        ...

    def ends_waiting(self, keys: Iterable[MessageKey]) -> None:
        """These wait no longer, though their time may be yet to come."""
        ...

    def settled(self, key: EntryKey, mask: int | None = None) -> None:
        """Messages of an entry are acked, all of them with None."""
        ...

    def buried(self, key: EntryKey, mask: int, whole: bool) -> None:
        """Letters of messages of an entry are stored, and with that they are acked.

        Should the ack be lost with the process, they come again, and are not to be attempted anew.

        Args:
            key: Their entry.
            mask: Which of its messages.
            whole: With them all of the entry is acked.
        """
        ...

    def one_write(self) -> AbstractContextManager[object]:
        """What is told inside is one write."""
        ...

    def settled_through(self, key: EntryKey) -> None:
        """That entry and all before it are acked."""
        ...

    def clear(self) -> None:
        """Nothing counts any more, as after a seek."""
        ...
