"""The log of one topic: entries in ledgers, with their ids.

Every entry has a sequence number (`seq`, from 0, never reused), so that cursors are plain ints.
Invariant: `entries[i].seq == base + i`, and ids grow with `seq`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from ...wire.key_hashes import murmur3
from .refusal import Refusal
from .transactions import TransactionId

EARLIEST = (2**64 - 1, 2**64 - 1)  # -1:-1 in the unsigned fields of the wire
LATEST = (2**63 - 1, 2**63 - 1)


@dataclass(slots=True, eq=False)
class LogEntry:
    """One stored entry: a message, a batch or a chunk.

    Args:
        body: The bytes after the command.
        batch: `num_messages_in_batch`; 0 if the entry is not a batch.
        publish_ms: Publish time by the producer's clock, in wall ms.
        deliver_at_ms: Earliest delivery on Shared and Key_Shared, in wall ms; 0 for none.
        key: The key that Key_Shared hashes.
        chunked: An id that all chunks of a message share; empty for other entries.
        txn: The transaction in the metadata, or None.
        hidden: It is never delivered: its transaction was aborted, or it is the broker's own.
    """

    body: bytes
    batch: int = 0
    publish_ms: int = 0
    deliver_at_ms: int = 0
    key: bytes = b""
    chunked: str = ""
    txn: TransactionId | None = None
    hidden: bool = False
    messages: int = 1
    seq: int = -1
    ledger: int = -1
    entry: int = -1
    _hash: int = -1

    def __post_init__(self) -> None:
        self.messages = self.batch or 1

    @property
    def key_hash(self) -> int:
        """murmur3 of the key."""
        if self._hash < 0:
            self._hash = murmur3(self.key)
        return self._hash


class TopicLog:
    """The log of one topic or partition. `partition` is -1 for a topic without partitions."""

    def __init__(
        self,
        name: str,
        next_ledger: Callable[[], int],
        *,
        entries_per_ledger: int = 50_000,
        partition: int = -1,
    ) -> None:
        self.name = name
        self.partition = partition
        self.persistent: bool = name.startswith("persistent://")
        self.entries: list[LogEntry] = []
        self.base: int = 0
        self.end: int = 0
        self.readable_end: int = 0  # before the first message of the oldest open transaction
        self._open: dict[TransactionId, int] = {}  # the first message of each, by seq
        self._aborted: set[TransactionId] = set()
        self.terminated = False
        self._next_ledger = next_ledger
        self._per_ledger = entries_per_ledger
        self._ledger_ids: list[int] = []
        self._ledger_starts: list[int] = []
        self.roll_ledger()

    def roll_ledger(self) -> None:
        """Start a new ledger, as Pulsar does when one is full or the topic was unloaded."""
        if self._ledger_starts and self._ledger_starts[-1] == self.end:
            return
        self._ledger_ids.append(self._next_ledger())
        self._ledger_starts.append(self.end)

    def check_open(self) -> None:
        if self.terminated:
            raise Refusal("TopicTerminatedError", f"{self.name} was terminated")

    def append(self, entry: LogEntry, txn: TransactionId | None = None) -> LogEntry:
        """Store an entry and set its id. `txn` is the transaction that SEND names.

        Nothing is checked, as on Pulsar: a message that comes after the end of its transaction
        hides everything behind it, unless the transaction was aborted here.
        """
        self.check_open()
        if self.end - self._ledger_starts[-1] >= self._per_ledger:
            self.roll_ledger()
        entry.seq = self.end
        entry.ledger = self._ledger_ids[-1]
        entry.entry = self.end - self._ledger_starts[-1]
        self.entries.append(entry)
        self.end += 1
        if txn is not None:
            if txn in self._aborted:
                entry.hidden = entry.txn == txn
            else:
                self._open.setdefault(txn, entry.seq)
        if not self._open:
            self.readable_end = self.end
        return entry

    def end_transaction(self, txn: TransactionId, commit: bool, low_water: int) -> None:
        """Show or hide the messages of a transaction, and of late ones of its coordinator.

        Args:
            low_water: All transactions of this coordinator up to this counter have ended. Messages
                that came late for one of these are hidden.
        """
        late = [each for each in self._open if each != txn and each[1] <= low_water]
        for each, visible in [(txn, commit), *((each, False) for each in late)]:
            first = self._open.pop(each, None)
            if first is None:
                continue
            if not visible:
                self._aborted.add(each)
                for entry in self.entries[max(first, self.base) - self.base :]:
                    entry.hidden = entry.hidden or entry.txn == each
            if not self.terminated:
                self.append(LogEntry(b"", hidden=True))  # the marker
        self.readable_end = min(self._open.values(), default=self.end)

    def last_readable(self) -> LogEntry | None:
        """Return the last entry that a reader can get."""
        for seq in range(self.readable_end - 1, self.base - 1, -1):
            if not self.at(seq).hidden:
                return self.at(seq)
        return None

    def at(self, seq: int) -> LogEntry:
        return self.entries[seq - self.base]

    def locate(self, ledger: int, entry: int) -> int | None:
        """Return the sequence number of a stored id; None for any other id."""
        ids = self._ledger_ids
        if ledger == ids[-1]:
            at = len(ids) - 1
            stop = self.end
        else:
            at = bisect_left(ids, ledger)
            if at == len(ids) or ids[at] != ledger:
                return None
            stop = self._ledger_starts[at + 1]
        seq = self._ledger_starts[at] + entry
        return seq if self.base <= seq < stop else None

    def locate_from(self, ledger: int, entry: int) -> int:
        """Return where reading from an id starts: at it, or at the first stored one after it."""
        if (ledger, entry) == EARLIEST:
            return self.base
        at = bisect_right(self._ledger_ids, ledger) - 1
        if at < 0:
            return self.base
        stop = self._ledger_starts[at + 1] if at + 1 < len(self._ledger_starts) else self.end
        if ledger != self._ledger_ids[at]:
            return stop  # a ledger between two known ledgers
        if entry >= 2**63:
            entry = 0  # entry -1: before the first entry of the ledger
        return max(self.base, min(self._ledger_starts[at] + entry, stop))

    def locate_time(self, publish_ms: int) -> int:
        """Return the first entry published at or after a wall time, else the end."""
        return self.base + bisect_left(self.entries, publish_ms, key=lambda e: e.publish_ms)

    def id_before(self, seq: int) -> tuple[int, int]:
        """Return the id before `seq`: the mark-delete position on the wire. Entry -1 is 2**64-1."""
        if seq > self.base:
            last = self.at(seq - 1)
            return last.ledger, last.entry
        at = max(bisect_right(self._ledger_starts, seq) - 1, 0)
        return self._ledger_ids[at], (seq - self._ledger_starts[at] - 1) % 2**64

    def trim(self, acked_below: int) -> None:
        """Drop closed ledgers below `acked_below`."""
        keep = bisect_right(self._ledger_starts, acked_below) - 1
        if keep > 0:
            start = self._ledger_starts[keep]
            del self.entries[: start - self.base]
            self.base = start
            del self._ledger_ids[:keep], self._ledger_starts[:keep]
