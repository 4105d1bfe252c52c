"""The stored messages of a transaction. They tell how it has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ....values.message_id import MessageId
from ....values.transaction_id import TxnId
from .commit_decision import Decision


class StoredMessages:
    """The ids that the owner needs to find out how its transaction has ended.

    Args:
        is_visible: Returns whether a message of an ended transaction is visible, or None if that
            cannot be found out.
        is_here: Returns whether the client is connected to the cluster of the transaction.
        log: Gets a warning if a topic cannot be asked.
    """

    def __init__(
        self,
        txn_id: TxnId,
        is_visible: Callable[[MessageId], Awaitable[bool | None]],
        is_here: Callable[[], bool],
        log: logging.Logger,
    ) -> None:
        self._txn_id = txn_id
        self._is_visible = is_visible
        self._is_here = is_here
        self._log = log
        self._first: MessageId | None = None
        self._last: dict[str, MessageId] = {}  # by topic or partition

    def __bool__(self) -> bool:
        return self._first is not None

    def add(self, message_id: MessageId) -> None:
        if message_id.ledger_id() < 0:
            return  # it was dropped as a duplicate
        if self._first is None:
            self._first = message_id
        last = self._last.get(message_id.topic)
        if last is None or message_id > last:  # receipts of two producers may be in any order
            self._last[message_id.topic] = message_id

    async def find_outcome(self) -> Decision:
        """Ask the topic of the first message how the transaction has ended."""
        assert self._first is not None
        visible = await self._find(self._first)
        if visible is None:
            return Decision.UNKNOWN
        return Decision.COMMITTED if visible else Decision.ABORTED

    async def are_complete(self) -> bool:
        """Return True if a commit that made the first message visible included the last ones.

        Another client may have committed by the id too early. The broker answers later messages as
        usual, although they have no effect.
        """
        first = self._first
        assert first is not None
        last = [each for each in self._last.values() if not _in_one_entry(each, first)]
        return all(await asyncio.gather(*(self._find(each) for each in last)))

    async def _find(self, message_id: MessageId) -> bool | None:
        """Return whether a message is visible, or None if that cannot be found out."""
        try:
            visible = await self._is_visible(message_id)
        except Exception as error:
            self._log.warning("cannot find out how transaction %s ended: %s", self._txn_id, error)
            return None
        return visible if self._is_here() else None  # another cluster has other messages


def _in_one_entry(one: MessageId, other: MessageId) -> bool:
    return (one.topic, one.ledger_id(), one.entry_id()) == (
        other.topic,
        other.ledger_id(),
        other.entry_id(),
    )
