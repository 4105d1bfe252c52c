"""RocketMQ's pop records (RIP-73) on the RocksDB of this package, as a subject of benchmarks.

Layout and order of work are those of RocketMQ's broker, in Python and without the broker: keys of 8
bytes of time and the names as text, values of JSON (about 180 bytes), one write for a new record
and one for the removal of the old record, and removal of due records after scans of 16,384. Records
cannot be looked up by message. RocketMQ's broker fsyncs each write. Here it does not, as our state
does not. `docs/notes/delayed-delivery.md` describes the design.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from struct import pack
from typing import Final

from pulsar_encore.state.rocks.database import Database
from pulsar_encore.state.rocks.write_batch import DUE, WriteBatch

SCAN: Final = 16_384
STAY_BUFFER_MS: Final = 10_000
_SWEEP_MS: Final = 1_000  # interval of the sweeps of the buffer

EntryKey = tuple[int, int]


class Rip73:
    """Pop records by due time. A record is found only if its due time is known.

    Args:
        buffered: Keep new records in memory for 10 s; records of messages that are acked by then
            are never written.
    """

    def __init__(self, path: Path, *, buffered: bool = False) -> None:
        self.database = Database(path)
        self._buffered = buffered
        # Since when (ms) and due time, by message; the oldest first.
        self._buffer: dict[EntryKey, tuple[int, int]] = {}
        self._next_sweep_ms = 0

    def key(self, due_ms: int, key: EntryKey) -> bytes:
        """Return the due time and the unique part of a key."""
        names = f"billing@orders@{key[0]}@".encode()
        return pack(">Q", due_ms) + names + pack(">q", key[1])

    def value(self, due_ms: int, key: EntryKey) -> bytes:
        """Return the value of a pop consumer record."""
        fields = {
            "popTime": due_ms - 60_000,
            "groupId": "billing",
            "topicId": "orders",
            "queueId": key[0],
            "retryFlag": 0,
            "invisibleTime": 60_000,
            "offset": key[1],
            "attemptTimes": 0,
            "attemptId": "f3b1c8d2-5c0e-4a0f-9f0e-2b1d6d1f7a11",
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    def pop(self, due_ms: int, keys: Iterable[EntryKey], now_ms: int) -> None:
        """Record deliveries that are invisible until `due_ms`."""
        if self._buffered:
            for key in keys:
                self._buffer[key] = now_ms, due_ms
        else:
            self.put([(due_ms, key) for key in keys])

    def ack(self, due_ms: int, key: EntryKey) -> None:
        """Remove a record from the buffer, or with a write."""
        if self._buffer.pop(key, None) is None:
            self.remove([self.key(due_ms, key)])

    def change(self, old_ms: int, due_ms: int, key: EntryKey) -> None:
        """Write the new record, then remove the old one, as changeInvisibleTime does."""
        self.put([(due_ms, key)])
        if due_ms != old_ms:
            self.ack(old_ms, key)

    def sweep(self, now_ms: int) -> None:
        """Write the records that were in the buffer for 10 s, once a second."""
        if now_ms < self._next_sweep_ms:
            return
        self._next_sweep_ms = now_ms + _SWEEP_MS
        staged = []
        for key, (since_ms, due_ms) in self._buffer.items():
            if since_ms + STAY_BUFFER_MS > now_ms:
                break
            staged.append((due_ms, key))
        self.put(staged)
        for _, key in staged:
            del self._buffer[key]

    def put(self, records: Sequence[tuple[int, EntryKey]]) -> None:
        """Put new records in one write."""
        if not records:
            return
        writes = WriteBatch()
        for due_ms, key in records:
            writes.put(DUE, self.key(due_ms, key), self.value(due_ms, key))
        self.database.write(writes)

    def remove(self, keys: Iterable[bytes]) -> None:
        """Remove records in one write."""
        writes = WriteBatch()
        for key in keys:
            writes.delete(DUE, key)
        self.database.write(writes)

    def revive(self, now_ms: int) -> int:
        """Remove due records, one scan and one write at a time. Return their number."""
        cursor, count = b"", 0
        while True:
            found = []
            rows = self.database.scan(DUE, cursor, pack(">Q", now_ms))
            for key, value in rows:
                json.loads(value)
                found.append(key)
                if len(found) == SCAN:
                    break
            rows.close()  # type: ignore[attr-defined]
            if not found:
                return count
            self.remove(found)
            cursor = found[-1]
            count += len(found)
