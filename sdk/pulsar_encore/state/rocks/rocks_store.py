"""`RocksStore`: the state directory of a process, shared by its consumers.

Consumers of the same topic and subscription share one `TopicStore`, because the broker redelivers
messages that one of them released to another. Each owner of a topic has a higher epoch than those
before, and so recognizes attempts that they did not finish.

All calls belong to the thread of the event loop, except `open` and `aclose`, which may take long.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

from pulsar_encore.core.entry import EntryKey
from pulsar_encore.core.message_key import MessageKey
from pulsar_encore.errors import (
    ClosedError,
    ConfigurationError,
    StateDamagedError,
    StateFormatError,
    StateInUseError,
    StoreError,
)
from pulsar_encore.eventloop.process import check_process
from pulsar_encore.values.message_id import MessageId

from ...eventloop.shielded_work import shielded
from ..directory_advice import advised, advised_to_make
from ..directory_lock import LOCK_FILE, DirectoryLock
from .attempt_records import MAX_BUFFERED, STAY_BUFFER_MS, AttemptRecords, CountAttempts
from .completeness import check_complete
from .database import Database
from .disk_space import check_free_space
from .fsync_thread import FsyncThread
from .owner_file import Owner, locked, read_owner, write_owner
from .salvage import salvage, salvaged_path
from .store_keys import (
    EPOCH_KEY,
    FORMAT,
    FORMAT_KEY,
    MAX_SOURCES,
    OPENINGS_KEY,
    number_bytes,
    openings_bytes,
    source_key,
)
from .store_loader import FoundRows, LoadedStore, StoredTopic, check_format, load, upgrade
from .stored_names import add_name, write_names
from .write_batch import META, STATE
from .write_journal import WriteJournal

logger: logging.Logger = logging.getLogger(__name__)

FlushMode: TypeAlias = Literal["kill", "power"]

_DATABASE: Final = "db"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreStatistics:
    """Counts of a state directory, for monitoring.

    Attributes:
        topics: Topics and partitions in the directory, each counted per subscription.
        waiting: Entries with a message that waits.
        entries: Entries with a record, on disk or in memory.
        writes: Writes since the store was opened.
        operations: Puts and deletes in these writes.
        failures: Writes that failed.
        unwritten: Puts and deletes that failed and will be retried.
        lost: Puts and deletes that failed and were too many to keep.
        unreadable: Keys and values that could not be decoded.
        syncs: Fsyncs, with `durability="power"`.
        mismatched: Messages with the id of another message, whose record was not used. The
            directory was used with another cluster, or a topic was deleted and created again.
    """

    topics: int
    waiting: int
    entries: int
    writes: int
    operations: int
    failures: int
    unwritten: int
    lost: int
    unreadable: int
    syncs: int
    mismatched: int = 0


class RocksStore:
    """One use of a state directory.

    Args:
        wall_now_ms: The time in ms since the epoch, written to the owner file.
        durability, salvage: See `RocksState`.
        remove_stale: Remove messages that were due 30 days ago, records unused for as long, and
            topics without records.

    Raises:
        StateInUseError: if another process has the directory open.
        StateFormatError: if the directory holds other files, or a newer version wrote it.
        StateDamagedError: if files are lost or corrupted.
        ConfigurationError: if the directory is open with another `durability`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        wall_now_ms: int,
        durability: FlushMode = "kill",
        salvage: bool = False,
        remove_stale: bool = True,
    ) -> None:
        if durability not in ("kill", "power"):
            raise ConfigurationError(f'durability must be "kill" or "power", not {durability!r}')
        where = Path(path).resolve()
        with _exclusive_slot(where) as slot:
            core = slot.core
            if core is None:
                lock = _lock_directory(where)
                try:
                    core = _Core(where, wall_now_ms, durability, salvage, remove_stale, lock)
                except BaseException:
                    lock.release()
                    raise
                slot.core = core
            elif core.durability != durability:
                raise ConfigurationError(
                    f'the state in {where} is open with durability="{core.durability}" already'
                )
            core.users += 1
        self._core: _Core | None = core
        self._claims = False

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        wall_now_ms: int,
        durability: FlushMode = "kill",
        salvage: bool = False,
        remove_stale: bool = True,
    ) -> RocksStore:
        """Open a directory on a thread. Takes about 1 s for each million waiting messages."""
        opening = asyncio.ensure_future(
            asyncio.to_thread(
                cls,
                path,
                wall_now_ms=wall_now_ms,
                durability=durability,
                salvage=salvage,
                remove_stale=remove_stale,
            )
        )
        try:
            return await shielded(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_abandoned)
            raise

    def topic_store(
        self,
        topic: str,
        subscription: str,
        consumer: str = "",
        *,
        count_attempts: CountAttempts = "before",
        stay_buffer_ms: int = STAY_BUFFER_MS,
        max_buffered: int = MAX_BUFFERED,
    ) -> TopicStore:
        """Return the store of a topic, with the records of earlier owners.

        Each caller must close it. `consumer` separates several owners of one subscription.
        """
        return self._opened.open_topic(
            (topic, subscription, consumer), count_attempts, stay_buffer_ms, max_buffered
        )

    def claim(self) -> None:
        """Bind the directory to this thread until every caller has closed the store."""
        core = self._opened
        with core.claiming:
            core.claim()
            core.claims += not self._claims
            self._claims = True

    @property
    def is_sole_user(self) -> bool:
        return self._opened.users == 1

    def forget(self, subscription: str, of: Callable[[str], bool]) -> None:
        """Delete all records of a deleted subscription. `of` selects the topics."""
        self._opened.forget(subscription, of)

    def topics(self, subscription: str) -> list[str]:
        return self._opened.topics(subscription)

    def batched_writes(self) -> WriteJournal:
        """Return a context manager that makes one write of all changes inside it."""
        return self._opened.journal

    @property
    def has_deferred_deletes(self) -> bool:
        return self._opened.journal.has_deferred_deletes

    def flush(self) -> bool:
        """Write deferred deletes, and retry failed writes for about 5 ms."""
        return self._opened.journal.flush()

    @property
    def last_write_failed(self) -> bool:
        """While this is False, `flush` also retries writes that failed earlier."""
        return self._opened.journal.last_write_failed

    async def synced(self) -> None:
        """With `durability="power"`, wait until all writes so far survive a loss of power."""
        core = self._opened
        if core.syncer is not None:
            if core.journal.failure is not None:  # something is in memory only
                raise core.journal.failure
            await core.syncer.synced()

    @property
    def failure(self) -> StoreError | None:
        """The reason why changes are lost, in memory only or not synced; or None."""
        return self._opened.failure

    def reopen(self) -> bool:
        """Reopen the database after a lasting failure, such as a full disk, and write all changes.

        Takes as long as opening. Returns True if the failure is over, and False during an fsync,
        which may take minutes on a failing disk.

        After a StoreError, changes stay in memory, and the data on disk stays readable, unless it
        is corrupted or the disk is lost.
        """
        return self._opened.reopen()

    def statistics(self) -> StoreStatistics:
        return self._opened.statistics()

    def close(self) -> None:
        """End this use. The last one in the process closes the directory. May raise StoreError."""
        core, self._core = self._core, None
        if core is None or core.pid != os.getpid():  # a child must not write to its parent's files
            return
        with _exclusive_slot(core.path) as slot:
            core.users -= 1
            with core.claiming:
                core.claims -= self._claims
            if core.users:
                return
            if slot.core is core:
                slot.core = None
            core.close()

    async def aclose(self) -> None:
        """Close in a thread, also if the call is cancelled."""
        # Shielded, and no task: a cancelled call, or the end of the loop, would leave the directory
        # open if the thread had not begun.
        closing = asyncio.get_running_loop().run_in_executor(None, self.close)
        await shielded(closing)

    @property
    def _opened(self) -> _Core:
        if self._core is None:
            raise ClosedError("the state is closed")
        check_process(self._core.pid, "state")
        return self._core


class StoreUser(Protocol):
    def change_due(self, key: MessageKey, due_ms: int, bits: int) -> None:
        """Change the due time of a message, in ms on the loop's clock."""

    def is_held(self, key: MessageKey) -> bool:
        """Return whether the application of this consumer holds a message."""

    def ack_here(self, message_id: MessageId) -> None:
        """Handle an ack of a message by another consumer."""

    def attempted(self, key: EntryKey, mask: int, attempt: int) -> None:
        """Count the `attempt`th delivery of messages of an entry to another consumer."""

    def held_attempts(self, key: EntryKey) -> dict[int, int]:
        """Return the attempts, by batch index, of an entry's messages that this consumer holds."""


class TopicStore:
    """The state of one topic or partition of one subscription.

    Attributes:
        waiters: Completed after a message was compared with its record.
    """

    def __init__(
        self, core: _Core, number: int, name: StoredTopic, records: AttemptRecords
    ) -> None:
        self._core: _Core | None = core
        self._users = 1
        self.users: set[StoreUser] = set()
        self.waiters: set[asyncio.Future[None]] = set()
        self.number: int = number
        self.name: StoredTopic = name
        self.records: AttemptRecords = records

    @property
    def has_deferred_deletes(self) -> bool:
        return self._core is not None and self._core.journal.has_deferred_deletes

    def wake(self) -> None:
        for each in self.waiters:
            if not each.done():
                each.set_result(None)

    def add_user(self) -> TopicStore:
        """Return this store to one more user, which will close it."""
        self._users += 1
        return self

    def close(self) -> None:
        """Write pending records. The last user's call frees the topic for its next owner."""
        self._users -= 1
        if self._core is None:
            return
        if self._users > 0:
            self.records.flush_all()
            return
        core, self._core = self._core, None
        core.close_topic(self)


class _Core:
    def __init__(
        self,
        path: Path,
        wall_now_ms: int,
        durability: FlushMode,
        salvages: bool,
        remove_stale: bool,
        lock: DirectoryLock,
    ) -> None:
        self.path: Path = path
        self._dir_lock: DirectoryLock = lock
        self.pid: int = os.getpid()
        self.durability: FlushMode = durability
        self.users: int = 0
        self.claiming: threading.Lock = threading.Lock()  # protects `claims`; held briefly
        self.claims: int = 0  # uses that have called `claim`
        self._thread: int | None = None  # the thread that uses the directory
        self._loop: asyncio.AbstractEventLoop | None = None
        self.syncer: FsyncThread | None = None
        self._topics: dict[StoredTopic, TopicStore] = {}
        try:
            database, loaded = _open_database(path, wall_now_ms, remove_stale)
        except StateDamagedError:
            if not salvages:
                raise
            before = read_owner(path)
            with _owner_in_error(path), locked(path / _DATABASE):
                salvage(path / _DATABASE, before)
                (path / "owner.json").unlink(missing_ok=True)
            database, loaded = _open_database(path, wall_now_ms, remove_stale)
        self._numbers = loaded.numbers
        self._rows = loaded.topics
        self._unreadable = loaded.unreadable
        self._mismatched = 0  # of topics that were closed
        self._epoch = loaded.epoch + 1
        self.journal: WriteJournal = WriteJournal(database)
        try:
            for key in loaded.stale:
                self.journal.delete(STATE, key)
            # In one write with the records of the topic: a new topic may get its number.
            for name in loaded.empty:
                self.journal.delete(META, source_key(*name))
            new_openings = loaded.openings_with(self._epoch, wall_now_ms)
            self.journal.put(META, OPENINGS_KEY, openings_bytes(new_openings))
            if loaded.is_new:
                self.journal.put(META, FORMAT_KEY, number_bytes(FORMAT))
            self.journal.put(META, EPOCH_KEY, number_bytes(self._epoch))
            if not self.journal.commit() and self.journal.failure is not None:
                raise self.journal.failure
            # The owner file records how much is on disk, so a log that is lost later is noticed.
            database.sync()
            self._owner = Owner.here(wall_now_ms, self._epoch, database.sequence)
            write_owner(path, self._owner)
            write_names(path, self._numbers)
        except OSError as error:
            database.close()
            raise StoreError(f"the state in {path}: {advised(error)}") from error
        except StoreError:
            database.close()
            raise
        if durability == "power":
            self.syncer = FsyncThread(self.journal, self._schedule_reopen)
            self.journal.on_write = self.syncer.note_write
            self.syncer.start()

    def _schedule_reopen(self) -> None:
        """Reopen the database on the loop's thread; called on the fsync thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._reopen_or_log)

    def _reopen_or_log(self) -> None:
        if self.users:
            try:
                self.reopen()
            except StoreError as error:
                logger.warning("the state is not synced yet, retrying later: %s", error)

    def open_topic(
        self,
        name: StoredTopic,
        count_attempts: CountAttempts,
        stay_buffer_ms: int,
        max_buffered: int,
    ) -> TopicStore:
        self.claim()
        if (existing := self._topics.get(name)) is not None:
            return existing.add_user()
        name_key = source_key(*name)  # checks the names
        at = self._numbers.get(name)
        if at is None:
            at = max(self._rows, default=-1) + 1
            if at > MAX_SOURCES:
                raise ConfigurationError(f"a store has at most {MAX_SOURCES} topics")
        found = self._rows.get(at) or FoundRows()
        records = AttemptRecords(
            self.journal,
            at,
            self._epoch,
            found.entries,
            found.waiting,
            count_attempts=count_attempts,
            stay_buffer_ms=stay_buffer_ms,
            max_buffered=max_buffered,
        )
        if name not in self._numbers:
            self._numbers[name] = at
            self._rows[at] = found
            self.journal.put(META, name_key, number_bytes(at))
            add_name(self.path, at, name)
        self._epoch += 1  # for the next owner of any topic
        self.journal.put(META, EPOCH_KEY, number_bytes(self._epoch))
        self.journal.commit()
        topic_store = self._topics[name] = TopicStore(self, at, name, records)
        return topic_store

    def claim(self) -> None:
        if (self._topics or self.claims) and self._thread != threading.get_ident():
            raise StateInUseError(
                f"an event loop on another thread of this process works with the state in "
                f"{self.path}: give each thread a directory of its own"
            )
        self._thread = threading.get_ident()
        with suppress(RuntimeError):  # there is no running loop
            self._loop = asyncio.get_running_loop()

    def topics(self, subscription: str) -> list[str]:
        return [topic for topic, each, _ in self._numbers if each == subscription]

    def forget(self, subscription: str, of: Callable[[str], bool]) -> None:
        matching = [name for name in self._numbers if name[1] == subscription and of(name[0])]
        for name in matching:
            topic_store = self.open_topic(name, "before", STAY_BUFFER_MS, MAX_BUFFERED)
            topic_store.records.clear()
            topic_store.close()

    def close_topic(self, topic_store: TopicStore) -> None:
        if self._topics.pop(topic_store.name, None) is None:
            return
        topic_store.records.flush_all()
        topic_store.records.restore_suspects()
        self.journal.lost += topic_store.records.unmerged
        self._mismatched += topic_store.records.mismatched

    @property
    def failure(self) -> StoreError | None:
        if self.journal.failure is not None:
            return self.journal.failure
        if self.syncer is not None and self.syncer.failure is not None:
            return self.syncer.failure
        failures = (topic_store.records.failure for topic_store in self._topics.values())
        failure = next(filter(None, failures), None)
        if failure is None and self.journal.lost:
            return StoreError(
                f"{self.journal.lost} changes of the state in {self.path} were too many to keep "
                "while the disk took none, and are not on it"
            )
        return failure

    def reopen(self, *, waits: bool = False) -> bool:
        syncer = self.syncer
        unsynced = syncer is not None and syncer.failure is not None
        if (self.journal.failure is None or self.journal.flush_all()) and not unsynced:
            return True
        check_free_space(self.path / _DATABASE)  # do not close a database that cannot be reopened
        if syncer is not None and not syncer.syncing.acquire(blocking=waits):
            return False
        try:
            self.journal.database.close(failed=True)
            self.journal.database = Database(self.path / _DATABASE)
        except StoreError as error:
            self.journal.failure = error
            self._open_read_only()
            raise
        finally:
            if syncer is not None:
                syncer.syncing.release()
        if syncer is not None:
            syncer.note_reopened()
        return self.journal.flush_all()

    def _open_read_only(self) -> None:
        try:  # the lock of the directory still excludes other processes
            self.journal.database = Database(self.path / _DATABASE, read_only=True)
        except StoreError as error:
            logger.warning("%s", error)

    def statistics(self) -> StoreStatistics:
        journal = self.journal
        used = [topic_store.records for topic_store in self._topics.values()]
        return StoreStatistics(
            topics=len(self._rows),
            waiting=sum(len(found.waiting) for found in self._rows.values()),
            entries=sum(len(found.entries) for found in self._rows.values())
            + sum(records.only_buffered for records in used),
            writes=journal.writes,
            operations=journal.operations,
            failures=journal.failures,
            unwritten=journal.unwritten,
            lost=journal.lost,
            unreadable=self._unreadable + sum(records.unreadable for records in used),
            syncs=0 if self.syncer is None else self.syncer.syncs,
            mismatched=self._mismatched + sum(records.mismatched for records in used),
        )

    def close(self) -> None:
        for topic_store in list(self._topics.values()):
            self.close_topic(topic_store)
        written = self.journal.flush_all()
        if self.syncer is not None:
            if self.syncer.failure is not None:
                with suppress(StoreError):
                    self.reopen(waits=True)
            self.syncer.stop()
        database = self.journal.database
        try:
            database.flush()
            write_owner(self.path, replace(self._owner, sequence=database.sequence, closed=written))
        except (StoreError, OSError) as error:
            raise StoreError(f"the state in {self.path} was closed, but: {error}") from error
        finally:
            database.close()
            self._dir_lock.release()
        if self.journal.failure is not None:
            raise StoreError(
                f"{self.journal.unwritten} changes of the state in {self.path} are lost: "
                f"{self.journal.failure}"
            ) from self.journal.failure


def _close_abandoned(opening: asyncio.Future[RocksStore]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        threading.Thread(target=opening.result().close, name="pulsar-encore-state").start()


class _Slot:
    """A directory that is open in this process, or is being opened or closed.

    Attributes:
        pid: A forked child inherits slots and does not use them.
        changing: Held while the directory is opened or closed, which may take long.
    """

    def __init__(self, path: Path) -> None:
        self.path: Path = path
        self.pid: int = os.getpid()
        self.changing: threading.Lock = threading.Lock()
        self.core: _Core | None = None
        self.waiting: int = 0  # threads that hold `changing` or wait for it

    def is_in(self, path: Path) -> bool:
        """Return whether `path` is another name of the directory, as with a bind mount."""
        with suppress(OSError):
            return self.path.samefile(path)
        return False


_slots: Final[dict[Path, _Slot]] = {}
# Protects `_slots`. Never held while a directory is opened or closed.
_slots_lock: Final = threading.Lock()


@contextmanager
def _exclusive_slot(path: Path) -> Iterator[_Slot]:
    with _slots_lock:
        slot = _slots.get(path) or next((s for s in _slots.values() if s.is_in(path)), None)
        if slot is None or slot.pid != os.getpid():  # a child may not use its parent's directory
            slot = _slots[path] = _Slot(path)
        slot.waiting += 1
    try:
        with slot.changing:
            yield slot
    finally:
        with _slots_lock:
            slot.waiting -= 1
            if slot.core is None and not slot.waiting and _slots.get(slot.path) is slot:
                del _slots[slot.path]


def _prepare_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        names = {each.name for each in path.iterdir()}
    except OSError as error:
        raise StoreError(f"the state in {path}: {advised_to_make(error)}") from error
    known = {_DATABASE, "owner.json", LOCK_FILE, salvaged_path(path / _DATABASE).name}
    if names and not names & known:
        nacks = any(each.startswith("spilled-") for each in names)
        raise StateFormatError(
            f"{path} holds something else ({', '.join(sorted(names)[:3])}"
            f"{', so it is the directory of a nack_index' if nacks else ''}): name a directory of "
            "its own for the state"
        )


def _lock_directory(path: Path) -> DirectoryLock:
    _prepare_directory(path)
    with _owner_in_error(path):
        return DirectoryLock(path / LOCK_FILE)


def _open_database(
    path: Path, wall_now_ms: int, remove_stale: bool
) -> tuple[Database, LoadedStore]:
    before = read_owner(path)
    folder = path / _DATABASE
    with _owner_in_error(path):
        # RocksDB deletes unknown files when it opens a directory for writing, so check the files
        # first. The lock is needed because the files of a live owner change meanwhile.
        with locked(folder):
            check_complete(path, before, check_format)
        database = Database(folder)
    try:
        upgrade(database)
        return database, load(database, wall_now_ms, remove_stale=remove_stale)
    except BaseException:
        database.close()
        raise


@contextmanager
def _owner_in_error(path: Path) -> Iterator[None]:
    try:
        yield
    except StateInUseError as error:
        owner = read_owner(path)
        raise StateInUseError(
            f"the state in {path} belongs to {owner or 'another process'}: each process needs a "
            "directory of its own"
        ) from error
