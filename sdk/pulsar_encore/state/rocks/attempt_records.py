"""`AttemptRecords`: delivery attempts and due times of a topic's messages, across restarts.

With `count_attempts="before"`, every delivery is written before it happens. With "lazy", deliveries
are buffered in memory, as in RocketMQ's pop buffer, so messages that are settled soon are never
written. Nacks and leases are always written at once. Deletes of acked messages wait for another
write: if one is lost, a record stays of a message that is never redelivered.

`compare` checks by fingerprint that a record belongs to the message with its id. A record that
differs is deleted once another message has matched a record that is as old or older, which proves
that this is the cluster of that record. Until then the record is *suspect*: it stays on disk, and
the counts of the new message stay in memory. A match with a newer record proves nothing: an owner
connected to the wrong cluster may have written it.

A count falls only in `record_return`. A record that cannot be read is therefore never overwritten:
new counts stay in `_unmerged` until they can be merged with it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeAlias

from pulsar_encore.core.bucket_width import bucket_edge
from pulsar_encore.core.fingerprint import NO_FINGERPRINT, differ, fuller
from pulsar_encore.core.message_key import MAX_BATCH_INDEX, MAX_ID_BITS, MessageKey
from pulsar_encore.errors import (
    ConfigurationError,
    StateDamagedError,
    StoreError,
)

from . import entry_record
from .entry_record import EntryRecord
from .entry_set import EntryKey, EntrySet
from .store_keys import entries_through, entry_key, topic_range
from .write_batch import STATE
from .write_journal import WriteJournal

logger: logging.Logger = logging.getLogger(__name__)

CountAttempts: TypeAlias = Literal["before", "lazy"]

_MAX_RECENT: Final = 256
_MAX_DUE_MS: Final = (1 << MAX_ID_BITS) - 1
MAX_DIFFERENT: Final = 100  # if so many records are suspect: another cluster
_REFRESH_AFTER_MS: Final = 15 * 24 * 3600 * 1000  # half of `STALE_MS`
STAY_BUFFER_MS: Final = 10_000  # RocketMQ's popCkStayBufferTime
MAX_BUFFERED: Final = 50_000  # the broker's unacked window; about 20 MB


class DeliveredRecord(NamedTuple):
    """Messages of one entry that are about to be delivered with the same attempt number.

    Attributes:
        size: Messages in the entry; 1 if it is not a batch.
        mask: Bit i for batch index i; 1 if it is not a batch.
    """

    ledger: int
    entry: int
    size: int = 1
    mask: int = 1
    attempt: int = 1
    fingerprint: int = NO_FINGERPRINT


class AttemptRecords:
    """Delivery attempts and due times of one topic.

    Args:
        stored: Entries with a record on disk.
        waiting: Entries with a message that waits. Due times on disk of other entries are void.
        count_attempts: "before" writes a delivery before it happens, in case it kills the process.
            "lazy" writes it only if the message is not settled for `stay_buffer_ms`.

    Attributes:
        unreadable: Corrupted or newer records. They stay on disk.
        failure: Why records cannot be read now, and so not written; or None.
        matched: Messages that matched a record of an earlier owner.
    """

    def __init__(
        self,
        journal: WriteJournal,
        topic_number: int,
        epoch: int,
        stored: EntrySet,
        waiting: EntrySet,
        *,
        count_attempts: CountAttempts = "before",
        stay_buffer_ms: int = STAY_BUFFER_MS,
        max_buffered: int = MAX_BUFFERED,
    ) -> None:
        if count_attempts not in ("before", "lazy"):
            raise ConfigurationError(
                f'count_attempts must be "before" or "lazy", not {count_attempts!r}'
            )
        if stay_buffer_ms < 0 or max_buffered < 1:
            raise ConfigurationError(
                "stay_buffer_ms must not be negative and max_buffered at least 1, got "
                f"{stay_buffer_ms} and {max_buffered}"
            )
        self._journal = journal
        self._topic_number = topic_number
        self._epoch = epoch
        self._stored = stored
        self._waiting = waiting
        self._writes_before = count_attempts == "before"
        self._stay_buffer_ms = stay_buffer_ms
        self._max_buffered = max_buffered
        # Time of the first unwritten change (ms) and record, by entry; the oldest first.
        self._buffer: dict[EntryKey, tuple[int, EntryRecord]] = {}
        self._buffered = EntrySet()  # the keys of `_buffer`, in order
        # Cache of records on disk: the messages of a batch come one after another.
        self._recent: OrderedDict[EntryKey, EntryRecord] = OrderedDict()
        # Entries whose record on disk cannot be read, or is suspect.
        self._unread: set[EntryKey] = set()
        self._suspects: dict[EntryKey, int] = {}  # the suspect ones, with their records' epochs
        # Records of this epoch or later belong to this cluster: a message matched one.
        self._proven = epoch
        self._unmerged: dict[EntryKey, EntryRecord] = {}  # new counts of entries in `_unread`
        # Entries with due times on disk that have passed, and since when (ms).
        self._passed: dict[EntryKey, int] = {}
        self._matched_entries = EntrySet()
        self._now_ms = 0  # the time of the last call
        self.matched: int = 0
        self.mismatched: int = 0
        self.unreadable: int = 0
        self.failure: StoreError | None = None

    # Deliveries

    def record_deliveries(self, deliveries: Iterable[DeliveredRecord], wall_now_ms: int) -> None:
        """Record deliveries before they happen, each entry once, in at most one write.

        Raises StoreError with "before" if the write failed. The counts stay in memory and are
        written later, so the messages may still be delivered.
        """
        self._now_ms = wall_now_ms
        buffer, stored, epoch = self._buffer, self._stored, self._epoch
        with self._journal:
            for ledger, entry, size, mask, attempt, fingerprint in deliveries:
                key = (ledger, entry)
                record: EntryRecord | None
                if key in buffer:
                    since_ms, record = buffer[key]
                else:
                    since_ms = wall_now_ms
                    record = self._record_of(key) if key in stored else None
                if record is None:
                    record = entry_record.new_record(size, wall_now_ms, epoch, fingerprint)
                elif record.size < size or record.fingerprint != fingerprint:
                    record = _updated(record, size, fingerprint)
                record = entry_record.with_delivery(record, mask, attempt, epoch)
                if self._writes_before:
                    self._write(key, record)
                else:
                    self._buffer_record(key, record, since_ms)
            while len(buffer) > self._max_buffered:
                key, (_, record) = next(iter(buffer.items()))
                self._write(key, record)
        if self._writes_before:
            self._require_written()

    def record_nack(
        self,
        key: MessageKey,
        due_wall_ms: int,
        attempts: int,
        wall_now_ms: int,
        *,
        bits: int = 0,
        size: int = 1,
        fingerprint: int = NO_FINGERPRINT,
    ) -> None:
        """Record an attempt that ended without an ack, and the message's due time. Writes at once.

        Args:
            key: The message; all of its entry with index -1.
            due_wall_ms: In ms since the epoch; `bits` round it up as in `DueIndex.add`.
            attempts: A higher recorded count stays.
            size: Messages in its entry, needed if no delivery was recorded.
        """
        entry, edge = _checked(key, due_wall_ms, bits)
        self._now_ms = wall_now_ms
        record, mask = self._record_and_mask(key, size, fingerprint)
        self._write(entry, entry_record.with_attempt_ended(record, mask, attempts, edge))

    def record_failure(
        self,
        key: MessageKey,
        attempts: int,
        wall_now_ms: int,
        *,
        size: int = 1,
        fingerprint: int = NO_FINGERPRINT,
    ) -> None:
        """Record an attempt that failed, without a due time. Writes at once."""
        self._now_ms = wall_now_ms
        record, mask = self._record_and_mask(key, size, fingerprint)
        record = entry_record.without_due(record, mask)
        self._write(key[:2], entry_record.with_attempt_ended(record, mask, attempts))

    def record_lease(
        self,
        key: MessageKey,
        due_wall_ms: int,
        attempt: int,
        wall_now_ms: int,
        *,
        bits: int = 0,
        size: int = 1,
        fingerprint: int = NO_FINGERPRINT,
    ) -> None:
        """Record an unfinished attempt and a lease until `due_wall_ms`. Writes at once."""
        entry, edge = _checked(key, due_wall_ms, bits)
        self._now_ms = wall_now_ms
        record, mask = self._record_and_mask(key, size, fingerprint)
        self._write(entry, entry_record.with_delivery(record, mask, attempt, self._epoch, edge))

    def change_due(self, key: MessageKey, due_wall_ms: int, bits: int = 0) -> None:
        entry, edge = _checked(key, due_wall_ms, bits)
        record = self._record_of(entry)
        if record is not None:
            self._write(entry, entry_record.with_due(record, _mask_of(key, record), edge))

    def _record_and_mask(
        self, key: MessageKey, size: int, fingerprint: int
    ) -> tuple[EntryRecord, int]:
        index = key[2]
        if size <= index:
            size = index + 1
        record = self._record_of(key[:2])
        if record is None:
            record = entry_record.new_record(size, self._now_ms, self._epoch, fingerprint)
        elif record.size < size or record.fingerprint != fingerprint:
            record = _updated(record, size, fingerprint)
        return record, _mask_of(key, record)

    def leased_until(self, key: MessageKey, attempt: int) -> int | None:
        """Return the end of a lease (ms since the epoch); None after a result or new attempt."""
        record = self._record_of(key[:2]) if key[:2] in self._waiting else None
        if record is None or not record.held >> max(key[2], 0) & 1:
            return None
        return record.due_of(key[2]) if record.attempts_of(key[2]) == attempt else None

    # Due times that no longer apply

    def record_due(self, keys: Iterable[MessageKey]) -> None:
        """Drop due times that have come. A later write, or `flush`, removes them from the disk."""
        waiting, passed = self._waiting, self._passed
        for key in keys:
            entry = key[:2]
            if entry not in waiting:
                continue
            record = self._buffer[entry][1] if entry in self._buffer else None
            if record is None and (key[2] >= 0 or entry in self._unmerged):
                record = self._record_of(entry)
            if record is not None:
                record = entry_record.without_due(record, _mask_of(key, record))
                self._buffer_record(entry, record, self._now_ms)
            else:
                self._recent.pop(entry, None)
                waiting.discard(entry)
                passed[entry] = self._now_ms

    def cancel_due_times(self, keys: Iterable[MessageKey]) -> None:
        """Drop due times, with one write at once: a kill must not bring them back."""
        with self._journal:
            for key in keys:
                entry = key[:2]
                record = self._record_of(entry) if entry in self._waiting else None
                if record is None:
                    continue
                rest = entry_record.without_due(record, _mask_of(key, record))
                if rest is not record:
                    self._write(entry, rest)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def entries_waiting(self) -> list[tuple[EntryKey, EntryRecord]]:
        found = ((key, self._record_of(key)) for key in sorted(self._waiting))
        return [(key, record) for key, record in found if record is not None and record.dues]

    def record_return(
        self, ledger: int, entry: int, attempts: Mapping[int, int], wall_now_ms: int
    ) -> None:
        """Undo deliveries that were no failed attempts: `attempts` are left, by batch index."""
        self._now_ms = wall_now_ms
        record = self._record_of((ledger, entry))
        if record is None:
            return
        before = record
        for index, count in attempts.items():
            record = entry_record.with_fewer_attempts(record, 1 << index, count)
        if record != before:
            self._buffer_record((ledger, entry), record, wall_now_ms)

    def end_attempts(self, ledger: int, entry: int, mask: int, wall_now_ms: int) -> None:
        """End attempts without an ack or a due time. The counts stay.

        Without this, the next owner would see the attempts as unfinished.
        """
        self._now_ms = wall_now_ms
        record = self._record_of((ledger, entry))
        if record is not None and record.held & mask:
            self._buffer_record(
                (ledger, entry), entry_record.with_attempt_ended(record, mask, 0), wall_now_ms
            )

    # Lookups

    def has_record(self, key: EntryKey) -> bool:
        return key in self._stored or key in self._buffer

    def __bool__(self) -> bool:
        return bool(self._stored) or bool(self._buffer)

    def recall_entry(self, ledger: int, entry: int) -> EntryRecord | None:
        key = (ledger, entry)
        if key not in self._buffer and key not in self._stored:
            return None
        record = self._record_of(key)
        if (
            record is not None
            and record.epoch < self._epoch
            and not record.held
            and not (record.dues and record.dues[-1][0] > self._now_ms)
            and record.first_ms < self._now_ms - _REFRESH_AFTER_MS
        ):  # came after a long wait: keep the record from becoming stale before a delivery
            record = record._replace(epoch=self._epoch, dues=())
            self._write(key, record)
        return record

    def compare(self, ledger: int, entry: int, fingerprint: int) -> bool:
        """Return False if an entry differs from its record, which is then not used.

        An unknown fingerprint differs from none and matches none.
        """
        key = (ledger, entry)
        record = self._record_of(key)
        if record is None:
            return True
        if not differ(record.fingerprint, fingerprint):
            if record.fingerprint and fingerprint:
                self._matched_entries.add(key)
                if record.epoch < self._epoch:
                    self.matched += 1
                if record.epoch < self._proven:
                    self._proven = record.epoch
                    self._drop_suspects()
            elif fingerprint:
                self._write(key, record._replace(fingerprint=fingerprint))
            return True
        if self._count_mismatch(record):
            if key in self._buffer:  # keep the newer record on disk
                self._write(key, record)
            self._drop_cached(key)
            self._unread.add(key)
            self._suspects[key] = record.epoch
        else:
            self.record_ack(ledger, entry)
        return False

    def _count_mismatch(self, record: EntryRecord) -> bool:
        """Count a mismatch. Return False if a match has shown that the record can be deleted."""
        self.mismatched += 1
        return record.epoch < self._proven

    def drop_mismatched(self) -> None:
        """Delete suspect records now, and records that differ later at once."""
        self._proven = 0
        self._drop_suspects()

    def _drop_suspects(self) -> None:
        proven = [key for key, epoch in self._suspects.items() if epoch >= self._proven]
        if not proven:
            return
        with self._journal:
            for key in proven:
                del self._suspects[key]
                newer = self._forget_unread(key)
                if key in self._buffer:
                    newer = self._buffer[key][1]
                if newer is None:
                    self.record_ack(*key)
                else:
                    self._write(key, newer)
        self._journal.flush()

    def restore_suspects(self) -> None:
        """Forget the messages with the ids of suspect records, because this owner ends."""
        for key in self._suspects:
            self._forget_unread(key)
            self._waiting.add(key)
            record = self._record_of(key)
            if record is not None and not record.dues:
                self._waiting.discard(key)
        self._suspects.clear()

    def is_trusted(self, key: EntryKey) -> bool | None:
        """Return whether the record of an entry may be used before the entry comes.

        True if this entry matched, or others did and none differed. None before any entry came.
        """
        record = self._record_of(key)
        if record is None or not record.fingerprint or key in self._matched_entries:
            return True
        if record.epoch == self._epoch or (record.epoch >= self._proven and not self.mismatched):
            return True
        return False if self.mismatched else None

    @property
    def foreign(self) -> bool:
        """True if at least `MAX_DIFFERENT` entries differ from records whose owner no match has
        confirmed."""
        return len(self._suspects) >= MAX_DIFFERENT

    # Acks

    def record_ack(self, ledger: int, entry: int, mask: int | None = None) -> None:
        """Drop the records of acked or dead-lettered messages of an entry.

        The delete is deferred to a later write.

        Args:
            mask: The messages; all of the entry if None.
        """
        key = (ledger, entry)
        buffered = self._buffer.get(key)
        if buffered is None and key not in self._stored:
            return
        if mask is not None:
            record = self._record_of(key)
            if record is not None:
                record = entry_record.with_settled(record, mask)
                if not record.is_settled:
                    self._buffer_record(key, record, self._now_ms)
                    return
        if buffered is not None:
            del self._buffer[key]
            self._buffered.discard(key)
        self._drop_cached(key)
        if key in self._suspects:  # the record on disk belongs to another message
            self._unmerged.pop(key, None)
            return
        if self._unread:
            self._forget_unread(key)
        if self._stored.discard(key):
            self._journal.delete_later(STATE, entry_key(self._topic_number, ledger, entry))
            self._journal.commit()

    def _drop_cached(self, key: EntryKey) -> None:
        self._recent.pop(key, None)
        self._waiting.discard(key)
        self._matched_entries.discard(key)
        self._passed.pop(key, None)

    def record_ack_through(self, ledger: int, entry: int) -> None:
        if self._suspects:
            # The range may contain records of another cluster. A later ack, after a match, deletes
            # the records of the messages that were acked.
            known = [*self._buffered, *self._unmerged]
            for key in [key for key in known if key <= (ledger, entry)]:
                self.record_ack(*key)
            return
        for key in self._buffered.take_through(ledger, entry):
            del self._buffer[key]
        self._recent.clear()
        self._waiting.take_through(ledger, entry)
        self._matched_entries.take_through(ledger, entry)
        for key in [key for key in self._passed if key <= (ledger, entry)]:
            del self._passed[key]
        for key in [key for key in self._unread if key <= (ledger, entry)]:
            self._forget_unread(key)
        if self._stored.take_through(ledger, entry):
            span = entries_through(self._topic_number, ledger, entry)
            self._journal.delete_range_later(STATE, span)
            self._journal.commit()

    def clear(self) -> None:
        self._buffer.clear()
        self._buffered.clear()
        self._recent.clear()
        self._waiting.clear()
        self._matched_entries.clear()
        self._passed.clear()
        self._suspects.clear()
        for key in list(self._unread):
            self._forget_unread(key)
        if self._stored:
            self._stored.clear()
            self._journal.delete_range(STATE, *topic_range(self._topic_number))
            self._journal.commit()

    # The buffer

    def flush(self, wall_now_ms: int, limit: int = 500) -> int:
        """Write records that were in memory for `stay_buffer_ms`.

        Records that seem to be from the future are written too: the clock was set back.

        Returns:
            The number of entries that left the buffer, at most `limit`; 500 take about 3 ms.
        """
        self._now_ms = wall_now_ms
        self._merge_unread(limit)
        count = 0
        with self._journal:
            for key, (since_ms, record) in list(islice(self._buffer.items(), limit)):
                if since_ms + self._stay_buffer_ms > wall_now_ms >= since_ms:
                    break
                self._write(key, record)
                count += 1
            for key, since_ms in list(islice(self._passed.items(), limit - count)):
                if since_ms + self._stay_buffer_ms > wall_now_ms >= since_ms:
                    break
                del self._passed[key]
                old = self._record_of(key)
                if old is not None and key not in self._buffer:
                    self._write(key, old)
                count += 1
        return count

    def flush_all(self) -> None:
        """Write all records, except those that cannot be merged with unreadable ones."""
        with self._journal:
            for key, (_, record) in list(self._buffer.items()):
                self._write(key, record)
            for key in list(self._passed):
                old = self._record_of(key)
                if old is not None:
                    self._write(key, old)
            self._passed.clear()
        self._merge_unread(len(self._unread))

    @property
    def buffered(self) -> int:
        return len(self._buffer) + self.unmerged + len(self._passed)

    @property
    def unmerged(self) -> int:
        return len(self._unmerged) - sum(key in self._unmerged for key in self._suspects)

    @property
    def only_buffered(self) -> int:
        return sum(key not in self._stored for key in self._buffer)

    def __len__(self) -> int:
        return len(self._stored) + self.only_buffered

    # Reading and writing

    def _record_of(self, key: EntryKey) -> EntryRecord | None:
        buffered = self._buffer.get(key)
        if buffered is not None:
            return buffered[1]
        if key in self._unread:
            return self._unmerged.get(key)
        if key not in self._stored:
            return None
        record = self._recent.get(key)
        if record is not None:
            return record
        try:
            return self._read(key)
        except StoreError as error:
            # Keep the entry: it has a record, and its message may have used up its attempts.
            self._unread.add(key)
            self._read_failed(error)
            return None

    def _read(self, key: EntryKey) -> EntryRecord | None:
        """Return the record on disk or in the journal; None if it cannot be decoded."""
        try:
            data = self._journal.get(STATE, entry_key(self._topic_number, *key))
            record = None if data is None else entry_record.from_bytes(data)
        except (ValueError, StateDamagedError) as error:
            # A corrupted record must not stop the delivery of other messages.
            self.unreadable += 1
            logger.error("the record of entry %d:%d cannot be read: %s", *key, error)
            return None
        if record is not None and record.dues and key not in self._waiting:
            record = record._replace(dues=())
        return record

    def _read_failed(self, error: StoreError) -> None:
        if self.failure is None:
            logger.error("attempts on disk cannot be read for now: %s", error)
        self.failure = error

    def _merge_unread(self, limit: int) -> None:
        unread = (key for key in self._unread if key not in self._suspects)
        for key in list(islice(unread, limit)):
            try:
                record = self._read(key)
            except StoreError as error:
                self._read_failed(error)
                return
            buffered = self._buffer.get(key)
            newer = self._unmerged.get(key) if buffered is None else buffered[1]
            if record is not None and newer is not None:
                if not differ(record.fingerprint, newer.fingerprint):
                    newer = entry_record.merged(record, newer)
                elif self._count_mismatch(record):
                    self._suspects[key] = record.epoch
                    self._clear_failure()
                    continue
            self._forget_unread(key)
            if newer is None:
                continue
            if newer.is_settled:
                self.record_ack(*key)
            elif buffered is not None:
                self._buffer[key] = (buffered[0], newer)
            else:
                self._write(key, newer)

    def _forget_unread(self, key: EntryKey) -> EntryRecord | None:
        self._unread.discard(key)
        self._clear_failure()
        return self._unmerged.pop(key, None)

    def _clear_failure(self) -> None:
        """Clear `failure` if only suspect records, which are readable, are left in `_unread`."""
        if len(self._unread) <= len(self._suspects):
            self.failure = None

    def _buffer_record(self, key: EntryKey, record: EntryRecord, since_ms: int) -> None:
        buffered = self._buffer.get(key)
        self._buffer[key] = (since_ms if buffered is None else buffered[0], record)
        if buffered is None:
            self._buffered.add(key)
        self._update_waiting(key, record)

    def _write(self, key: EntryKey, record: EntryRecord) -> None:
        if self._buffer and self._buffer.pop(key, None) is not None:
            self._buffered.discard(key)
        self._update_waiting(key, record)
        if self._unread and key in self._unread:
            self._unmerged[key] = record
            return
        self._stored.add(key)
        recent = self._recent
        recent[key] = record
        if len(recent) > _MAX_RECENT:
            recent.popitem(last=False)
        packed = entry_key(self._topic_number, *key)
        self._journal.write(STATE, packed, entry_record.to_bytes(record))

    def _update_waiting(self, key: EntryKey, record: EntryRecord) -> None:
        if record.dues:
            self._waiting.add(key)
        elif self._waiting:
            self._waiting.discard(key)
        if self._passed:
            self._passed.pop(key, None)

    def _require_written(self) -> None:
        failure = self._journal.failure or self.failure
        if failure is not None:
            raise StoreError(f"attempts are counted in memory only: {failure}") from failure

    def _check(self) -> None:
        assert set(self._buffered) == self._buffer.keys()
        for key in self._waiting:
            known = self._record_of(key)
            assert known is not None and known.dues, key
        assert not any(key in self._waiting for key in self._passed)
        for key in self._stored:
            assert self._journal.get(STATE, entry_key(self._topic_number, *key)) is not None, key
        for _, record in self._buffer.values():
            assert entry_record.from_bytes(entry_record.to_bytes(record)) == record
            assert not record.is_settled


def _checked(key: MessageKey, due_wall_ms: int, bits: int) -> tuple[EntryKey, int]:
    ledger, entry, index = key
    if (ledger | entry) >> MAX_ID_BITS or not -1 <= index <= MAX_BATCH_INDEX:
        raise ConfigurationError(
            f"an id must be 0 to 2**63 - 1 and a batch index -1 to {MAX_BATCH_INDEX}, got {key}"
        )
    # A due time that is valid on the loop's clock may be out of range on the wall clock.
    return (ledger, entry), bucket_edge(min(due_wall_ms, _MAX_DUE_MS), bits)


def _mask_of(key: MessageKey, record: EntryRecord) -> int:
    return 1 << key[2] if key[2] >= 0 else (1 << record.size) - 1


def _updated(record: EntryRecord, size: int, fingerprint: int) -> EntryRecord:
    return record._replace(
        size=max(record.size, size), fingerprint=fuller(record.fingerprint, fingerprint)
    )
