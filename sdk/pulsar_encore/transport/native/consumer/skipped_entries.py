"""Entries of one topic that are not delivered: broken, not decryptable, or the broker's own.

A durable subscription acks them. A reader has no acks and reports them to its listener, so that the
reader of a range knows where the range ends and which entries are missing.
"""

from __future__ import annotations

import logging
from typing import Final

from ....options import ConsumerCryptoFailureAction
from ....wire import pulsar_pb2 as pb
from ....wire.entries import EntryError
from ...interface import SkippedEntry, SkipReason
from .ack_writer import AckWriter
from .entry_contents import UndecryptableEntry
from .read_position import EntryKey
from .topic_events import TopicEvents

_MOST_REMEMBERED: Final = 1_000  # broken entries


class SkippedEntries:
    """Acks or reports the entries of one topic that are not delivered."""

    def __init__(
        self,
        number: int,
        topic: str,
        acks: AckWriter,
        listener: TopicEvents,
        log: logging.Logger,
        *,
        durable: bool,
    ) -> None:
        self._log = log
        self._number = number
        self._topic = topic
        self._acks = acks
        self._listener = listener
        self._durable = durable
        self._unreported: list[SkippedEntry] = []
        self._broken: set[EntryKey] = set()  # entries that arrived broken once

    def skip_marker(self, ledger: int, entry: int) -> None:
        self._acks.ack_skipped([(ledger, entry)])
        self.report(ledger, entry, SkipReason.MARKER)

    def skip_undecryptable(self, ledger: int, entry: int, withheld: UndecryptableEntry) -> None:
        is_acked = withheld.action is ConsumerCryptoFailureAction.DISCARD
        outcome = "acked" if is_acked else "neither delivered nor acked"
        text = "%s: entry %d:%d is %s: %s"
        self._log.error(text, self._topic, ledger, entry, outcome, withheld.error)
        self.report(ledger, entry, SkipReason.ENCRYPTED, withheld.error)
        if is_acked:
            self._acks.discard((ledger, entry), pb.CommandAck.DecryptionError)

    def skip_if_broken_again(self, ledger: int, entry: int, error: EntryError) -> bool:
        """Skip an entry that was broken before; return False if the broker has to send it again.

        An entry that was damaged between broker and client is whole when it is sent again. An entry
        that is broken twice is broken in the store.
        """
        key = (ledger, entry)
        if key not in self._broken:
            if len(self._broken) >= _MOST_REMEMBERED:
                self._broken.clear()
            self._broken.add(key)
            self._log.warning("%s: entry %d:%d is requested again: %s", self._topic, *key, error)
            return False
        self._broken.discard(key)
        text = "%s: entry %d:%d is broken and %s: %s"
        self._log.error(text, self._topic, *key, self._outcome, error)
        self._acks.ack_unreadable([key], error.validation_error)
        self.report(ledger, entry, SkipReason.BROKEN, error)
        return True

    def skip_broken_message(
        self, ledger: int, entry: int, chunks: tuple[EntryKey, ...], error: EntryError
    ) -> None:
        text = "%s: chunked message %d:%d is broken and %s: %s"
        self._log.error(text, self._topic, *chunks[0], self._outcome, error)
        self._acks.ack_unreadable(chunks, error.validation_error)
        self.report(ledger, entry, SkipReason.BROKEN, error)

    @property
    def _outcome(self) -> str:
        return "acked" if self._durable else "passed over"

    def report(
        self, ledger: int, entry: int, reason: SkipReason, error: Exception | None = None
    ) -> None:
        """Report an entry, if this is a reader."""
        if not self._durable:
            self._unreported.append(SkippedEntry(ledger, entry, reason, error))

    def send_reports(self) -> None:
        """Report the skipped entries. All messages before them have been delivered."""
        if self._unreported:
            entries, self._unreported = self._unreported, []
            self._listener.on_skipped(self._number, entries)

    def drop_reports(self) -> None:
        """Drop the reports of a lost connection. The broker sends those entries again."""
        self._unreported.clear()
