"""`AttemptRecords`: attempts and due times of the messages of one source, across the lives of a
process.

Owns the memory before the disk, as RocketMQ's pop buffer: what is settled soon was never written.
What is not is written by `flush`, which its owner calls; with `count_attempts="before"` it is
written before the message is handed over, and a process that is killed while it has it has counted
the attempt. A due time is written at once. Removing what is settled is never written on its own:
what comes of a loss is a record of a message that does not come again.

A record is only used for the message that it was written for: their fingerprints are compared when
the message comes (`compare`). If they differ, the record is not used. It is deleted once another
message matched a record that is as old or older, because then this is the cluster that the record
belongs to. Until then it is suspect: it stays on disk, and the counts of the new message are kept
in memory. A match with a newer record proves nothing: an owner that was at the wrong cluster, and
failed, may have written it there.

Invariants: an entry is in the buffer, on disk, or in both, and then the buffer is newer; a count
never falls while its entry is known, so what a disk does not let read is never written over: what
is counted meanwhile is kept apart and joined with it. `_waiting` has the entries of which a message
waits; the due times that the disk has of any other are void. Refuses to know the time: each call
that needs it is told.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeAlias

from pulsar_encore.core.due_time import (
    MAX_BATCH_INDEX,
    MAX_ID_BITS,
    MessageKey,
    bucket_edge,
)
from pulsar_encore.core.fingerprint import NO_FINGERPRINT, differ, fuller
from pulsar_encore.errors import (
    ConfigurationError,
    StateDamagedError,
    StoreError,
)

from . import entry_record
from .entry_record import EntryRecord
from .entry_set import EntryKey, EntrySet
from .store_keys import entries_through, entry_packed, source_range
from .write_batch import STATE
from .write_journal import WriteJournal

logger: logging.Logger = logging.getLogger(__name__)

CountAttempts: TypeAlias = Literal["before", "lazy"]

_MAX_RECENT: Final = 256
_MAX_DUE_MS: Final = (1 << MAX_ID_BITS) - 1
MOST_DIFFERENT: Final = 100  # entries that all differ from their records: it is another cluster
_REFRESH_AFTER_MS: Final = 15 * 24 * 3600 * 1000  # half of what makes it stale
STAY_BUFFER_MS: Final = 10_000  # RocketMQ's popCkStayBufferTime
MOST_BUFFERED: Final = 50_000  # the broker's window of a consumer; some 20 MB


class DeliveredRecord(NamedTuple):
    """Messages of one entry that are about to be handed over, all for the same time.

    Attributes:
        ledger: Of the entry.
        entry: Of the entry.
        size: Messages in it; 1 for one that is no batch.
        mask: Which of them: bit i for batch index i, 1 for one that is no batch.
        attempt: For how many times now: 1 for the first.
        fingerprint: See `core.fingerprint`; 0 where it is unknown.
    """

    ledger: int
    entry: int
    size: int = 1
    mask: int = 1
    attempt: int = 1
    fingerprint: int = NO_FINGERPRINT


class RecalledAttempts(NamedTuple):
    """What is known of one message.

    Attributes:
        attempts: How often it was handed over.
        due_ms: Until when it waits, ms since the epoch; None when it does not.
        first_ms: When a message of its entry was handed over first, ms since the epoch.
        unfinished: It was handed over by an owner that ended before it said what became of it: a
            process that was killed, perhaps by this very message.
        settled: It was acked, and others of its entry were not.
    """

    attempts: int
    due_ms: int | None
    first_ms: int
    unfinished: bool
    settled: bool


class AttemptRecords:
    """Attempts of one source. Made by `RocksStore.source`.

    Args:
        journal: Where writes go.
        source: The number of the source.
        epoch: Of this owner, higher than that of any before.
        stored: Entries that have a record on disk.
        waiting: Those of them of which a message waits.
        count_attempts: "before" writes what is handed over before it is; "lazy" only what is not
            settled for `stay_buffer_ms`, so a kill forgets the attempts of that time.
        stay_buffer_ms: How long what is handed over stays in memory only.
        most_buffered: At most so many entries do.

    Attributes:
        unreadable: Records that were found damaged, or of a newer version. They stay on disk.
        trouble: Why what is on disk cannot be read, and so not be written either; None when it can.
        matched: Messages that came and were those of records that an earlier owner wrote.
        mismatched: Messages that came and were not those of their records.
    """

    def __init__(
        self,
        journal: WriteJournal,
        source: int,
        epoch: int,
        stored: EntrySet,
        waiting: EntrySet,
        *,
        count_attempts: CountAttempts = "before",
        stay_buffer_ms: int = STAY_BUFFER_MS,
        most_buffered: int = MOST_BUFFERED,
    ) -> None:
        if count_attempts not in ("before", "lazy"):
            raise ConfigurationError(
                f'count_attempts must be "before" or "lazy", not {count_attempts!r}'
            )
        if stay_buffer_ms < 0 or most_buffered < 1:
            raise ConfigurationError(
                "stay_buffer_ms must not be negative and most_buffered at least 1, got "
                f"{stay_buffer_ms} and {most_buffered}"
            )
        self._journal = journal
        self._source = source
        self._epoch = epoch
        self._stored = stored
        self._waiting = waiting
        self._writes_before = count_attempts == "before"
        self._stay_buffer_ms = stay_buffer_ms
        self._max_buffered = most_buffered
        # By entry, the longest there first: since when, in ms, and what is to be written.
        self._buffer: dict[EntryKey, tuple[int, EntryRecord]] = {}
        self._buffered = EntrySet()  # the same entries, in order
        # Of those on disk, the last ones read or written: the messages of a batch come in a row.
        self._recent: OrderedDict[EntryKey, EntryRecord] = OrderedDict()
        # On disk and not to be read: which, and what was counted of them since.
        self._unread: set[EntryKey] = set()
        # Those of them that differ from the message with their id, with their epochs.
        self._suspects: dict[EntryKey, int] = {}
        # Records of this epoch, and of later ones, are of this cluster: a message matched.
        self._proven = epoch
        self._unmerged: dict[EntryKey, EntryRecord] = {}
        # Entries that waited until their due times passed: since when they are not in `_waiting`.
        # The disk still has those due times until the record is written again.
        self._passed: dict[EntryKey, int] = {}
        self._matched_entries = EntrySet()  # entries that came and were those of their records
        self._now_ms = 0  # as last told
        self.matched: int = 0
        self.mismatched: int = 0
        self.unreadable: int = 0
        self.trouble: StoreError | None = None

    # Hand-overs

    def started(self, handed: Iterable[DeliveredRecord], wall_now_ms: int) -> None:
        """These, each entry once, are about to be handed over: one write for all of them, or none
        (see `count_attempts`).

        Raises:
            StoreError: With "before": it is not on disk. It is kept in memory, and is written as
                soon as the disk takes it; the messages may be handed over all the same.
        """
        self._now_ms = wall_now_ms
        buffer, stored, epoch = self._buffer, self._stored, self._epoch
        with self._journal:
            for ledger, entry, size, mask, attempt, fingerprint in handed:
                key = (ledger, entry)
                record: EntryRecord | None
                if key in buffer:
                    since_ms, record = buffer[key]
                else:
                    since_ms = wall_now_ms
                    record = self._record_of(key) if key in stored else None
                if record is None:
                    record = entry_record.fresh(size, wall_now_ms, epoch, fingerprint)
                elif record.size < size or record.fingerprint != fingerprint:
                    record = _updated(record, size, fingerprint)
                record = entry_record.handed_over(record, mask, attempt, epoch)
                if self._writes_before:
                    self._write(key, record)
                else:
                    self._buffer_record(key, record, since_ms)
            while len(buffer) > self._max_buffered:
                key, (_, record) = next(iter(buffer.items()))
                self._write(key, record)
        if self._writes_before:
            self._require_written()

    def waits(
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
        """An attempt ended without an ack and the message waits: one write of one record.

        Args:
            key: Which message; with index -1 all of its entry.
            due_wall_ms: Until when, in ms since the epoch; rounded up as in `DueIndex.add`.
            attempts: How often it was handed over by now; a count that is higher stays.
            wall_now_ms: The time, in ms since the epoch.
            bits: See `DueIndex.add`.
            size: Messages in its entry, where no hand-over was told of.
            fingerprint: Of the entry; 0 where it is unknown.

        Raises:
            ConfigurationError: The key or bits are out of range, or the due time is negative;
                nothing has changed.
        """
        entry, edge = _checked(key, due_wall_ms, bits)
        self._now_ms = wall_now_ms
        record, mask = self._record_and_mask(key, size, fingerprint)
        self._write(entry, entry_record.given_back(record, mask, attempts, edge))

    def leased(
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
        """A message that is handed over for the `attempt`th time is its holder's until then: one
        write of one record, also with "lazy". As `waits`, but that it is `unfinished`.
        """
        entry, edge = _checked(key, due_wall_ms, bits)
        self._now_ms = wall_now_ms
        record, mask = self._record_and_mask(key, size, fingerprint)
        self._write(entry, entry_record.handed_over(record, mask, attempt, self._epoch, edge))

    def moved(self, key: MessageKey, due_wall_ms: int, bits: int = 0) -> None:
        """A message that has a record waits until another time, and nothing else changes."""
        entry, edge = _checked(key, due_wall_ms, bits)
        record = self._record_of(entry)
        if record is not None:
            self._write(entry, entry_record.waits(record, _mask_of(key, record), edge))

    def _record_and_mask(
        self, key: MessageKey, size: int, fingerprint: int
    ) -> tuple[EntryRecord, int]:
        """The record of a message's entry, and the message's mask in it."""
        index = key[2]
        if size <= index:
            size = index + 1
        record = self._record_of(key[:2])
        if record is None:
            record = entry_record.fresh(size, self._now_ms, self._epoch, fingerprint)
        elif record.size < size or record.fingerprint != fingerprint:
            record = _updated(record, size, fingerprint)
        return record, _mask_of(key, record)

    def leased_until(self, key: MessageKey, attempt: int) -> int | None:
        """When a lease ends that was granted with that attempt, in ms since the epoch; None when it
        was settled, or failed, or the message was handed over again."""
        record = self._record_of(key[:2]) if key[:2] in self._waiting else None
        if record is None or not record.held >> max(key[2], 0) & 1:
            return None
        return record.due_of(key[2]) if record.attempts_of(key[2]) == attempt else None

    # Due times that are void

    def passed(self, keys: Iterable[MessageKey]) -> None:
        """The due times of these messages have come. Writes nothing: a due time in the past is as
        good as none, and is removed from the disk by a later write, or by `flush`."""
        waiting, passed = self._waiting, self._passed
        for key in keys:
            entry = key[:2]
            if entry not in waiting:
                continue
            record = self._buffer[entry][1] if entry in self._buffer else None
            if record is None and (key[2] >= 0 or entry in self._unmerged):
                record = self._record_of(entry)
            if record is not None:
                record = entry_record.clear_due(record, _mask_of(key, record))
                self._buffer_record(entry, record, self._now_ms)
            else:
                self._recent.pop(entry, None)
                waiting.discard(entry)
                passed[entry] = self._now_ms

    def ends_waiting(self, keys: Iterable[MessageKey]) -> None:
        """These messages wait no longer, though their time may be yet to come: one write, at once,
        so that not even a kill that comes now brings the due times back."""
        with self._journal:
            for key in keys:
                entry = key[:2]
                record = self._record_of(entry) if entry in self._waiting else None
                if record is None:
                    continue
                rest = entry_record.clear_due(record, _mask_of(key, record))
                if rest is not record:
                    self._write(entry, rest)

    @property
    def waiting(self) -> int:
        """Entries of which a message waits."""
        return len(self._waiting)

    def entries_waiting(self) -> list[tuple[EntryKey, EntryRecord]]:
        """Entries of which a message waits, with their records, in order; those whose record
        cannot be read are left out."""
        found = ((key, self._record_of(key)) for key in sorted(self._waiting))
        return [(key, record) for key, record in found if record is not None and record.dues]

    def returned(
        self, ledger: int, entry: int, attempts: Mapping[int, int], wall_now_ms: int
    ) -> None:
        """Messages went back and nobody failed at them: that they were handed over counts no more,
        and so many attempts are left, by index."""
        self._now_ms = wall_now_ms
        record = self._record_of((ledger, entry))
        if record is None:
            return
        before = record
        for index, count in attempts.items():
            record = entry_record.lowered(record, 1 << index, count)
        if record != before:
            self._buffer_record((ledger, entry), record, wall_now_ms)

    def given_back(self, ledger: int, entry: int, mask: int, wall_now_ms: int) -> None:
        """Attempts ended without an ack, and nothing waits: another owner, or a close in order.

        Their counts stay; they are not `unfinished` for who comes next. Written by `flush`.
        """
        self._now_ms = wall_now_ms
        record = self._record_of((ledger, entry))
        if record is not None and record.held & mask:
            self._buffer_record(
                (ledger, entry), entry_record.given_back(record, mask, 0), wall_now_ms
            )

    # What is known

    def knows(self, key: EntryKey) -> bool:
        """Whether anything is known of an entry."""
        return key in self._stored or key in self._buffer

    def __bool__(self) -> bool:
        return bool(self._stored) or bool(self._buffer)

    def recall(self, ledger: int, entry: int, index: int = -1) -> RecalledAttempts | None:
        """What is known of a message that came (index -1: it is its entry); None, without a look at
        the disk, when nothing is."""
        record = self.recall_entry(ledger, entry)
        if record is None:
            return None
        bit = 1 << max(index, 0)
        return RecalledAttempts(
            record.attempts_of(index),
            record.due_of(index),
            record.first_ms,
            entry_record.unfinished(record, self._epoch) & bit != 0,
            record.settled & bit != 0,
        )

    def recall_entry(self, ledger: int, entry: int) -> EntryRecord | None:
        """The same of all messages of an entry."""
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
        ):  # it came after a long wait: it is not stale, should it not be handed over now
            record = record._replace(epoch=self._epoch, dues=())
            self._write(key, record)
        return record

    def compare(self, ledger: int, entry: int, fingerprint: int) -> bool:
        """Return True if the record of an entry is of the entry that came; else it is not used.

        An unknown fingerprint on either side is taken for a match, and is not counted as one. A
        record without a fingerprint gets that of the message.
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
        if self._is_suspect(record):
            if key in self._buffer:  # newer than on disk, where it stays
                self._write(key, record)
            self._drop_cached(key)
            self._unread.add(key)
            self._suspects[key] = record.epoch
        else:
            self.settled(ledger, entry)
        return False

    def _is_suspect(self, record: EntryRecord) -> bool:
        """Count a record that differs. True if nothing has shown yet that it may be dropped."""
        self.mismatched += 1
        return record.epoch < self._proven

    def drop_mismatched(self) -> None:
        """Drop every record that differs, without waiting for a message that matches."""
        self._proven = 0
        self._drop_suspects()

    def _drop_suspects(self) -> None:
        """Replace each suspect record by that of the message which has its id now, or delete it."""
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
                    self.settled(*key)
                else:
                    self._write(key, newer)
        self._journal.flush()

    def restore_suspects(self) -> None:
        """Forget the messages that have the ids of suspect records: this owner ends."""
        for key in self._suspects:
            self._forget_unread(key)
            self._waiting.add(key)
            record = self._record_of(key)
            if record is not None and not record.dues:
                self._waiting.discard(key)
        self._suspects.clear()

    def trusts(self, key: EntryKey) -> bool | None:
        """True if what is known of an entry may be used though the entry has not come: it came
        before, or others came and none differed from its record. None before any came."""
        record = self._record_of(key)
        if record is None or not record.fingerprint or key in self._matched_entries:
            return True
        if record.epoch == self._epoch or (record.epoch >= self._proven and not self.mismatched):
            return True
        return False if self.mismatched else None

    @property
    def foreign(self) -> bool:
        """True if `MOST_DIFFERENT` entries differed from their records, and none matched a record
        that is as old or older. Counts records of earlier owners only."""
        return len(self._suspects) >= MOST_DIFFERENT

    # Endings

    def settled(self, ledger: int, entry: int, mask: int | None = None) -> None:
        """Messages of an entry, with None all of it, are acked, or letters of them stored: nothing
        of them is kept. Writes nothing."""
        key = (ledger, entry)
        held = self._buffer.get(key)
        if held is None and key not in self._stored:
            return
        if mask is not None:
            record = self._record_of(key)
            if record is not None:
                record = entry_record.settled(record, mask)
                if not record.done:
                    self._buffer_record(key, record, self._now_ms)
                    return
        if held is not None:
            del self._buffer[key]
            self._buffered.discard(key)
        self._drop_cached(key)
        if key in self._suspects:  # the record on disk is not of this message
            self._unmerged.pop(key, None)
            return
        if self._unread:
            self._forget_unread(key)
        if self._stored.discard(key):
            self._journal.delete_later(STATE, entry_packed(self._source, ledger, entry))
            self._journal.commit()

    def _drop_cached(self, key: EntryKey) -> None:
        """Forget what memory says of the record on disk of an entry."""
        self._recent.pop(key, None)
        self._waiting.discard(key)
        self._matched_entries.discard(key)
        self._passed.pop(key, None)

    def settled_through(self, ledger: int, entry: int) -> None:
        """This entry and all before it are acked, as by a cumulative ack. Writes nothing."""
        if self._suspects:
            # The range may be full of records of another cluster. Those of messages that were acked
            # here are deleted by a later ack, once a message matched.
            known = [*self._buffered, *self._unmerged]
            for key in [key for key in known if key <= (ledger, entry)]:
                self.settled(*key)
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
            span = entries_through(self._source, ledger, entry)
            self._journal.delete_range_later(STATE, span)
            self._journal.commit()

    def clear(self) -> None:
        """Nothing is known any more, as after a seek."""
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
            self._journal.delete_range(STATE, *source_range(self._source))
            self._journal.commit()

    # The buffer

    def flush(self, wall_now_ms: int, limit: int = 500) -> int:
        """Write what was in memory for longer than `stay_buffer_ms`, the longest there first.

        Also what is in memory since a time that is yet to come: then the clock was set back.

        Returns:
            How many were written; `limit`, which takes 3 ms or so, says that there may be more.
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
        """Write everything that is in memory only, but for what cannot be joined with the disk."""
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
        """Entries that are in memory, newer than on disk."""
        return len(self._buffer) + self.apart + len(self._passed)

    @property
    def apart(self) -> int:
        """Entries that were counted and cannot be joined with what is on disk, for now."""
        return len(self._unmerged) - sum(key in self._unmerged for key in self._suspects)

    @property
    def only_buffered(self) -> int:
        """Entries that are in memory and not on disk. Walks them all: for statistics."""
        return sum(key not in self._stored for key in self._buffer)

    def __len__(self) -> int:
        """Entries that something is known of. Walks what is in memory."""
        return len(self._stored) + self.only_buffered

    # Reading and writing

    def _record_of(self, key: EntryKey) -> EntryRecord | None:
        held = self._buffer.get(key)
        if held is not None:
            return held[1]
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
            # It is not known, which is not to be unknown: a message may have had all its attempts.
            self._unread.add(key)
            self._read_failed(error)
            return None

    def _read(self, key: EntryKey) -> EntryRecord | None:
        """What is on disk, or about to be; None where that makes no sense.

        Raises:
            StoreError: The disk does not let it be read, now.
        """
        try:
            data = self._journal.get(STATE, entry_packed(self._source, *key))
            record = None if data is None else entry_record.from_bytes(data)
        except (ValueError, StateDamagedError) as error:
            # One that is damaged keeps no other from being handed over.
            self.unreadable += 1
            logger.error("what is known of entry %d:%d cannot be read: %s", *key, error)
            return None
        if record is not None and record.dues and key not in self._waiting:
            record = record._replace(dues=())
        return record

    def _read_failed(self, error: StoreError) -> None:
        if self.trouble is None:
            logger.error("attempts that are on disk cannot be read for now: %s", error)
        self.trouble = error

    def _merge_unread(self, limit: int) -> None:
        """What could not be read is read, if the disk lets it, and written with what is newer."""
        unread = (key for key in self._unread if key not in self._suspects)
        for key in list(islice(unread, limit)):
            try:
                record = self._read(key)
            except StoreError as error:
                self._read_failed(error)
                return
            held = self._buffer.get(key)
            newer = self._unmerged.get(key) if held is None else held[1]
            if record is not None and newer is not None:
                if not differ(record.fingerprint, newer.fingerprint):
                    newer = entry_record.merged(record, newer)
                elif self._is_suspect(record):
                    self._suspects[key] = record.epoch
                    self._clear_trouble()
                    continue
            self._forget_unread(key)
            if newer is None:
                continue
            if newer.done:
                self.settled(*key)
            elif held is not None:
                self._buffer[key] = (held[0], newer)
            else:
                self._write(key, newer)

    def _forget_unread(self, key: EntryKey) -> EntryRecord | None:
        """What is on disk of an entry is known, or counts no more; what was counted meanwhile."""
        self._unread.discard(key)
        self._clear_trouble()
        return self._unmerged.pop(key, None)

    def _clear_trouble(self) -> None:
        """No record is left that the disk does not let read; suspect records could be read."""
        if len(self._unread) <= len(self._suspects):
            self.trouble = None

    def _buffer_record(self, key: EntryKey, record: EntryRecord, since_ms: int) -> None:
        held = self._buffer.get(key)
        self._buffer[key] = (since_ms if held is None else held[0], record)
        if held is None:
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
        packed = entry_packed(self._source, *key)
        self._journal.write(STATE, packed, entry_record.to_bytes(record))

    def _update_waiting(self, key: EntryKey, record: EntryRecord) -> None:
        """Keep `_waiting` and `_passed` true for a record that has changed."""
        if record.dues:
            self._waiting.add(key)
        elif self._waiting:
            self._waiting.discard(key)
        if self._passed:
            self._passed.pop(key, None)

    def _require_written(self) -> None:
        trouble = self._journal.trouble or self.trouble
        if trouble is not None:
            raise StoreError(f"attempts are counted in memory only: {trouble}") from trouble

    def _check(self) -> None:
        """Walk every invariant and raise AssertionError on the first broken one; for tests."""
        assert set(self._buffered) == self._buffer.keys()
        for key in self._waiting:
            known = self._record_of(key)
            assert known is not None and known.dues, key
        assert not any(key in self._waiting for key in self._passed)
        for key in self._stored:
            assert self._journal.get(STATE, entry_packed(self._source, *key)) is not None, key
        for _, record in self._buffer.values():
            assert entry_record.from_bytes(entry_record.to_bytes(record)) == record
            assert not record.done


def _checked(key: MessageKey, due_wall_ms: int, bits: int) -> tuple[EntryKey, int]:
    """The entry, and the due time rounded up.

    Raises:
        ConfigurationError: Something is out of range.
    """
    ledger, entry, index = key
    if (ledger | entry) >> MAX_ID_BITS or not -1 <= index <= MAX_BATCH_INDEX:
        raise ConfigurationError(
            f"an id must be 0 to 2**63 - 1 and a batch index -1 to {MAX_BATCH_INDEX}, got {key}"
        )
    # By the loop's clock it may be possible and by the wall's be out of range.
    return (ledger, entry), bucket_edge(min(due_wall_ms, _MAX_DUE_MS), bits)


def _mask_of(key: MessageKey, record: EntryRecord) -> int:
    return 1 << key[2] if key[2] >= 0 else (1 << record.size) - 1


def _updated(record: EntryRecord, size: int, fingerprint: int) -> EntryRecord:
    return record._replace(
        size=max(record.size, size), fingerprint=fuller(record.fingerprint, fingerprint)
    )
