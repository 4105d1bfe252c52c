"""Read chosen entries of a topic in order.

A reader reads on to a near entry. A far entry gets a new reader, so that a few messages of a long
backlog do not cost reading all of it. An entry is reported as missing only if a later entry or the
end of the topic was read instead, never because of a timeout. Topics are trimmed by whole ledgers.
If a later entry of the same ledger was read, the entry exists but cannot be read alone, like the
last chunk of a message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..client import Client
from ..core.entry import EntryKey
from ..errors import ReceiveTimeout, TransportError
from ..message import Message
from ..options import ConsumerCryptoFailureAction
from ..reader.reader import Reader
from ..values.message_id import MessageId

#: Maximum distance to the next entry, in entries, at which the same reader reads on.
NEAR: Final = 100
_MAX_QUEUED: Final = 1000
_READ_TIMEOUT_S: Final = 5.0
_MAX_READS: Final = 6


class TopicEntries:
    """Reads entries of one topic or partition, in ascending order."""

    def __init__(self, client: Client, topic: str, crypto_key_reader: Any) -> None:
        self._client = client
        self._topic = topic
        self._crypto_key_reader = crypto_key_reader
        self._reader: Reader | None = None
        self._position: EntryKey = (-1, -1)  # the last entry read
        self._read_ahead: list[Message] = []  # read and not requested yet
        self._ended = False

    async def read(self, key: EntryKey, run: Callable[[], int]) -> list[Message] | None:
        """Return all messages of an entry.

        Args:
            run: Returns about how many entries from this one on will be requested. No more are
                fetched ahead. Called when a reader is opened.

        Returns:
            The messages; [] if the topic no longer has the entry; None if the entry exists and
            cannot be read alone.
        """
        if self._read_ahead and _key(self._read_ahead[0]) < key:
            self._read_ahead = []
        if not self._read_ahead:
            if self._ended:
                return []
            if self._reader is None or not _near(self._position, key):
                await self._open(key, run())
        found: list[Message] = []
        while True:
            entry, self._read_ahead = self._read_ahead or await self._next(), []
            if entry is None:
                return found or None
            if not entry:
                self._ended = True
                return found
            self._position = position = _key(entry[0])
            if position > key:
                self._read_ahead = entry
                return None if not found and position[0] == key[0] else found
            if position == key:
                found += entry
                if len(found) >= entry[0].message_id().batch_size:
                    return found

    async def _open(self, key: EntryKey, run: int) -> None:
        await self.close()
        self._reader = await self._client.create_reader(
            self._topic,
            MessageId(-1, *key),
            receiver_queue_size=max(1, min(run, _MAX_QUEUED)),
            start_message_id_inclusive=True,
            crypto_key_reader=self._crypto_key_reader,
            crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
        )

    async def _next(self) -> list[Message] | None:
        """Return the messages of the next entry.

        Returns [] at the end of the topic, and None if the topic has only entries that are no
        messages.
        """
        assert self._reader is not None
        for _ in range(_MAX_READS):
            if not await self._reader.has_message_available():
                return []
            try:
                return await self._reader.read_entry(timeout=_READ_TIMEOUT_S)
            except ReceiveTimeout:
                if self._reader.is_connected():
                    return None
        raise TransportError(
            f"{self._topic} cannot be read, its connection is lost: check the broker",
            result="Timeout",
            retryable=True,
        )

    async def close(self) -> None:
        """Close the reader. A later `read` opens a new one, and may request lower ids."""
        reader, self._reader = self._reader, None
        self._position, self._read_ahead, self._ended = (-1, -1), [], False
        if reader is not None:
            await reader.close()


def _key(message: Message) -> EntryKey:
    message_id = message.message_id()
    return message_id.ledger_id(), message_id.entry_id()


def _near(at: EntryKey, key: EntryKey) -> bool:
    return at[0] == key[0] and 0 <= key[1] - at[1] <= NEAR
