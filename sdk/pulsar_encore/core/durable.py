"""The interface between a topic's state and the durable state that outlives the process.

Times are ms on the caller's clock unless stated otherwise. Waiting messages and attempts must be
reported before they can have any effect. Acks may be reported late, because the broker does not
send acked messages again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from ..values.message_id import MessageId
from .entry import EntryKey
from .fingerprint import NO_FINGERPRINT
from .message_key import MessageKey


class Recall(NamedTuple):
    """Records of the messages of one entry, by index: attempts in any process, due times in ms."""

    attempts: Mapping[int, int]
    dues: Mapping[int, int]


class Durable(Protocol):
    """The durable state of one topic or partition of one subscription.

    `key` is a message or an entry; a new due time replaces an earlier one. `bits`: see
    `DueIndex.add`. `size`: messages in the entry. `fingerprint`: of the entry, 0 if only the id is
    known. `attempt` counts from 1.
    """

    def __bool__(self) -> bool:
        """Return True if anything is remembered."""

    @property
    def is_shared(self) -> bool:
        """True if other consumers of this process may hold messages of this topic."""

    def has_record(self, key: EntryKey) -> bool:
        """Return True if an entry has records. Called for every entry."""

    def compare(self, key: EntryKey, fingerprint: int) -> bool:
        """Return True if the records are of the entry that arrived; if not, drop them.

        Ids begin again in another cluster, and in a topic that was created again.
        """

    def recall(self, key: EntryKey) -> Recall:
        """Return the records of an entry."""

    def first_ms(self, key: EntryKey) -> int | None:
        """Return the time of an entry's first delivery, in ms since the epoch; None if unknown."""

    def record_nack(
        self,
        key: MessageKey,
        due_ms: int,
        bits: int,
        attempts: int,
        size: int,
        fingerprint: int = NO_FINGERPRINT,
    ) -> None:
        """Remember that a message waits until `due_ms`. A higher count of attempts stays."""

    def record_failure(
        self, key: MessageKey, attempts: int, size: int, fingerprint: int = NO_FINGERPRINT
    ) -> None:
        """Remember that an attempt failed, and that the message does not wait for a due time."""

    def record_lease(
        self,
        key: MessageKey,
        due_ms: int,
        bits: int,
        attempt: int,
        size: int,
        fingerprint: int = NO_FINGERPRINT,
    ) -> None:
        """Remember that a message is leased until `due_ms`.

        If this process ends sooner, the message waits until then, and its attempt has failed.
        """

    def leased_until(self, key: MessageKey, attempt: int) -> int | None:
        """Return the end of a lease with that attempt.

        Returns:
            None if the message was settled or delivered since, the lease is over, or `is_trusted`
            is not True.
        """

    def is_trusted(self, key: EntryKey) -> bool | None:
        """Return True if records may be used for their id alone, before the entry has arrived.

        None until a message has shown whether the records belong to this cluster.
        """

    def next_comparison(self) -> Awaitable[None]:
        """Return an awaitable that ends when `is_trusted` may have changed, or on close."""

    def set_due_at_owner(
        self, key: MessageKey, due_ms: int, bits: int, size: int, *, leased: bool
    ) -> None:
        """Let a message that was delivered in another process wait, at whichever consumer it waits.

        With `leased` its lease goes on; otherwise its attempt has failed.
        """

    def ack_at_owner(self, message_id: MessageId) -> None:
        """Ack a message by id, at whichever consumer it waits."""

    def record_return(self, key: EntryKey, attempts: Mapping[int, int]) -> None:
        """Remember that messages were released without a failure.

        `attempts` are the failed ones before the present one, by index.
        """

    def record_due(self, keys: Iterable[MessageKey]) -> None:
        """Remember that the due times of these messages have come."""

    def cancel_due_times(self, keys: Iterable[MessageKey]) -> None:
        """Remember that these messages wait no longer, though they may not be due."""

    def record_ack(self, key: EntryKey, mask: int | None = None) -> None:
        """Remember that messages of an entry are acked: all of them if `mask` is None."""

    def record_dead_lettered(self, key: EntryKey, mask: int, whole: bool) -> None:
        """Remember that letters of messages are stored; `whole` if that acks the whole entry.

        If the ack is lost with the process, the redelivered messages must not be attempted again.
        """

    def one_write(self) -> AbstractContextManager[object]:
        """Return a context in which all reports become one write."""

    def record_ack_through(self, key: EntryKey) -> None:
        """Remember that an entry and all entries before it are acked."""

    def clear(self) -> None:
        """Forget everything after a seek."""
