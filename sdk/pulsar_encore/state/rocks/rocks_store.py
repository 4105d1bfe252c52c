"""`RocksStore`: one directory of state for a whole process, shared by its consumers.

Owns which directories are open in this process, and how often; who has which source; the order of
opening and closing. Invariants: a directory is open once in a process and in no other; a source
is one, however many consumers of the process have it, because what one of them lets go the broker
gives to another; what an owner that ended left unfinished is told to the next, because each has a
higher epoch. Refuses to read a clock.

Opening and closing may take long when there is much; `open` and `aclose` do it on a thread.
Everything else is microseconds and is called on one thread, that of the event loop: a source of a
directory that another thread works with is refused.
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

from pulsar_encore.core.due_time import MessageKey
from pulsar_encore.core.entry import EntryKey
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

from ..directory_advice import advised, advised_to_make
from ..directory_lock import LOCK_FILE, DirectoryLock
from .attempt_records import MOST_BUFFERED, STAY_BUFFER_MS, AttemptRecords, CountAttempts
from .completeness import check_complete
from .database import Database
from .disk_space import check_free_space
from .fsync_thread import FsyncThread
from .owner_file import Owner, locked, read_owner, write_owner
from .salvage import salvage, salvaged
from .store_keys import (
    EPOCH_KEY,
    FORMAT,
    FORMAT_KEY,
    MAX_SOURCES,
    OPENINGS_KEY,
    number,
    openings,
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
        sources: Sources that something was ever written of.
        waiting: Entries of which a message waits, of all of them.
        entries: Entries with a record on disk or in memory.
        writes: Writes since the store was opened.
        operations: Puts and deletes in them.
        failures: Writes that failed.
        unwritten: Puts and deletes that failed and will be tried again.
        lost: Puts and deletes that failed and were too many to keep.
        unreadable: Keys and values that made no sense.
        syncs: Fsyncs, with `durability="power"`.
        mismatched: Messages that had the id of another one, whose record was not used. The
            directory met another cluster, or a topic that was deleted and made again.
    """

    sources: int
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
    """State in a directory.

    Args:
        path: The directory; made when it is not there. One that holds anything else is refused.
        wall_now_ms: The time, in ms since the epoch; of the owner, for whoever is refused.
        durability: "kill": what was written survives the death of the process, and that of the
            machine all but the last seconds. "power": `synced` says when it survives that too.
        salvage: What is damaged is put aside, and what can still be read of it is used; by default
            that is an error.
        tidies: What nothing is to be expected of any more is removed: what was due 30 days ago,
            records of which nothing was heard for so long, and sources of which nothing is left.

    Raises:
        StateInUseError: Another process has it; the text says which.
        StateFormatError: It holds something else, or what a newer version wrote.
        StateDamagedError: Files are lost or damaged.
        StoreError: The system does not let it be opened.
        ConfigurationError: `rocksdict` is not installed, or the options fit not those it is open
            with in this process.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        wall_now_ms: int,
        durability: FlushMode = "kill",
        salvage: bool = False,
        tidies: bool = True,
    ) -> None:
        if durability not in ("kill", "power"):
            raise ConfigurationError(f'durability must be "kill" or "power", not {durability!r}')
        where = Path(path).resolve()
        with _exclusive_slot(where) as slot:
            core = slot.core
            if core is None:
                lock = _lock_directory(where)
                try:
                    core = _Core(where, wall_now_ms, durability, salvage, tidies, lock)
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
        tidies: bool = True,
    ) -> RocksStore:
        """The same on a thread; takes 1 s or so for each million messages that wait.

        Cancelled, what was opened is closed again.
        """
        opening = asyncio.ensure_future(
            asyncio.to_thread(
                cls,
                path,
                wall_now_ms=wall_now_ms,
                durability=durability,
                salvage=salvage,
                tidies=tidies,
            )
        )
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_abandoned)
            raise

    def source(
        self,
        topic: str,
        subscription: str,
        consumer: str = "",
        *,
        count_attempts: CountAttempts = "before",
        stay_buffer_ms: int = STAY_BUFFER_MS,
        most_buffered: int = MOST_BUFFERED,
    ) -> TopicStore:
        """Have a source, with what earlier owners left of it.

        Args:
            topic: Full name; of the partition, if any.
            subscription: Its name.
            consumer: Where owners of one subscription are to be kept apart: which of them.
            count_attempts, stay_buffer_ms, most_buffered: See `AttemptRecords`.

        Asked for once more, it is the same `TopicStore`, until each who asked has closed it.

        Raises:
            StateInUseError: Another thread of this process works with the directory.
        """
        return self._opened.take(
            (topic, subscription, consumer), count_attempts, stay_buffer_ms, most_buffered
        )

    def claim(self) -> None:
        """This thread works with the directory from now on, until each who said so has closed it.

        Raises:
            StateInUseError: Another thread of this process does.
        """
        core = self._opened
        with core.claiming:
            core.claim()
            core.claims += not self._claims
            self._claims = True

    @property
    def alone(self) -> bool:
        """Nobody else of this process has the directory."""
        return self._opened.users == 1

    def forget(self, subscription: str, of: Callable[[str], bool]) -> None:
        """Nothing of a subscription counts any more: it was deleted.

        Args:
            subscription: Its name.
            of: Tells of a topic's full name, also a partition's, whether that subscription of it is
                meant.
        """
        self._opened.forget(subscription, of)

    def topics(self, subscription: str) -> list[str]:
        """The topics and partitions, by full name, of which it has something for a subscription."""
        return self._opened.topics(subscription)

    def one_batch(self) -> WriteJournal:
        """What is done inside of ``with store.one_batch():`` becomes one write at its end."""
        return self._opened.journal

    @property
    def late(self) -> bool:
        """Something is removed in memory only; `flush` writes it."""
        return self._opened.journal.late

    def flush(self) -> bool:
        """Write what may be written later, and of what failed so much that it takes 5 ms or so.
        False when `trouble` stays, as it does until all is written."""
        return self._opened.journal.flush()

    @property
    def refuses(self) -> bool:
        """The disk did not take the last write; else each `flush` writes more of what failed."""
        return self._opened.journal.refused

    async def synced(self) -> None:
        """Everything written so far survives the loss of power, with `durability="power"`.

        Raises:
            StoreError: It is not known to.
        """
        core = self._opened
        if core.syncer is not None:
            if core.journal.trouble is not None:  # something is in memory only
                raise core.journal.trouble
            await core.syncer.synced()

    @property
    def trouble(self) -> StoreError | None:
        """Why something is in memory only that should be on disk, or may go with the power that
        should not; None when nothing does."""
        return self._opened.trouble

    def mend(self) -> bool:
        """After trouble that stays, as when a disk was full: open the database anew, and write what
        is in memory only. Takes as long as opening; without trouble it does nothing.

        Returns:
            True when no trouble is left. False also while an fsync is under way, which may take
            minutes on a failing disk: try again later.

        Raises:
            StoreError: There is no room, or it cannot be opened; try again. What is in memory stays
                there, and what is on disk can be read, but for damage and a lost disk.
        """
        return self._opened.mend()

    def statistics(self) -> StoreStatistics:
        """What there is and was done."""
        return self._opened.statistics()

    def close(self) -> None:
        """End this use; the last one in the process closes the directory.

        Raises:
            StoreError: Something could not be written, and is lost with this.
        """
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
        """The same on a thread."""
        await asyncio.to_thread(self.close)

    @property
    def _opened(self) -> _Core:
        if self._core is None:
            raise ClosedError("the state is closed")
        check_process(self._core.pid, "state")
        return self._core


class StoreUser(Protocol):
    """A consumer that has a source, maybe beside others."""

    def moved(self, key: MessageKey, due_ms: int, bits: int) -> None:
        """A message waits until another time, in ms on the loop's clock."""

    def in_hands(self, key: MessageKey) -> bool:
        """Whether its application has a message."""

    def acked(self, message_id: MessageId) -> None:
        """A message was acked at another one."""

    def attempted(self, key: EntryKey, mask: int, attempt: int) -> None:
        """Another consumer has handed over messages of an entry, for the `attempt`th time."""

    def attempts_in_hands(self, key: EntryKey) -> dict[int, int]:
        """Attempts, by index, at messages of an entry that its application has."""


class TopicStore:
    """One topic, or partition, of one subscription. Made by `RocksStore.source`.

    Attributes:
        number: In the store; names it in keys.
        name: Topic, subscription, consumer.
        records: How often its messages were handed over, and until when they wait.
        sharers: The consumers that have it.
        waiters: Futures that `wake` ends: a message was compared with its record.
    """

    def __init__(
        self, core: _Core, number: int, name: StoredTopic, records: AttemptRecords
    ) -> None:
        self._core: _Core | None = core
        self._users = 1
        self.sharers: set[StoreUser] = set()
        self.waiters: set[asyncio.Future[None]] = set()
        self.number: int = number
        self.name: StoredTopic = name
        self.records: AttemptRecords = records

    @property
    def late(self) -> bool:
        """Something of the store is removed in memory only; see `RocksStore.late`."""
        return self._core is not None and self._core.journal.late

    def wake(self) -> None:
        """End the waiting of `waiters`."""
        for each in self.waiters:
            if not each.done():
                each.set_result(None)

    def shared(self) -> TopicStore:
        """One more has it, and will close it."""
        self._users += 1
        return self

    def close(self) -> None:
        """Write what is in memory only; the last one lets the next owner have it."""
        self._users -= 1
        if self._core is None:
            return
        if self._users > 0:
            self.records.flush_all()
            return
        core, self._core = self._core, None
        core.leave(self)


class _Core:
    """The directory, as long as anyone in the process uses it."""

    def __init__(
        self,
        path: Path,
        wall_now_ms: int,
        durability: FlushMode,
        salvages: bool,
        tidies: bool,
        lock: DirectoryLock,
    ) -> None:
        self.path: Path = path
        self._dir_lock: DirectoryLock = lock
        self.pid: int = os.getpid()
        self.durability: FlushMode = durability
        self.users: int = 0
        self.claiming: threading.Lock = threading.Lock()  # held for a moment only
        self.claims: int = 0  # of them, who work with it on one thread
        self._thread: int | None = None  # of the event loop that works with it
        self._loop: asyncio.AbstractEventLoop | None = None
        self.syncer: FsyncThread | None = None
        self._topics: dict[StoredTopic, TopicStore] = {}
        try:
            database, loaded = _open_database(path, wall_now_ms, tidies)
        except StateDamagedError:
            if not salvages:
                raise
            before = read_owner(path)
            with _owner_in_error(path), locked(path / _DATABASE):
                salvage(path / _DATABASE, before)
                (path / "owner.json").unlink(missing_ok=True)
            database, loaded = _open_database(path, wall_now_ms, tidies)
        self._numbers = loaded.numbers
        self._rows = loaded.sources
        self._unreadable = loaded.unreadable
        self._mismatched = 0  # of sources that were closed
        self._epoch = loaded.epoch + 1
        self.journal: WriteJournal = WriteJournal(database)
        try:
            for key in loaded.stale:
                self.journal.delete(STATE, key)
            for name in loaded.empty:  # in one write with what was in it: its number is free then
                self.journal.delete(META, source_key(*name))
            new_openings = loaded.opened(self._epoch, wall_now_ms)
            self.journal.put(META, OPENINGS_KEY, openings(new_openings))
            if loaded.is_new:
                self.journal.put(META, FORMAT_KEY, number(FORMAT))
            self.journal.put(META, EPOCH_KEY, number(self._epoch))
            if not self.journal.commit() and self.journal.trouble is not None:
                raise self.journal.trouble
            # A log that is lost later is noticed: it has at least this.
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
        self._start_fsync_thread()

    def _start_fsync_thread(self) -> None:
        if self.durability == "power":
            self.syncer = FsyncThread(self._schedule_reopen)
            self.journal.written = self.syncer.written
            self.syncer.start(self.journal)

    def _schedule_reopen(self) -> None:
        """Have the loop, whose thread works with the database, open it anew."""
        if self._loop is not None:
            with suppress(RuntimeError):  # it was closed
                self._loop.call_soon_threadsafe(self._reopen_or_log)

    def _reopen_or_log(self) -> None:
        if self.users:
            try:
                self.mend()
            except StoreError as error:
                logger.warning("not yet synced, tried again later: %s", error)

    def take(
        self, name: StoredTopic, count_attempts: CountAttempts, stay_ms: int, most: int
    ) -> TopicStore:
        self.claim()
        if (existing := self._topics.get(name)) is not None:
            return existing.shared()
        name_key = source_key(*name)
        at = self._numbers.get(name)
        if at is None:
            at = max(self._rows, default=-1) + 1
            if at > MAX_SOURCES:
                raise ConfigurationError(f"a store has no more than {MAX_SOURCES} sources")
        found = self._rows.get(at) or FoundRows()
        records = AttemptRecords(
            self.journal,
            at,
            self._epoch,
            found.entries,
            found.waiting,
            count_attempts=count_attempts,
            stay_buffer_ms=stay_ms,
            most_buffered=most,
        )
        if name not in self._numbers:
            self._numbers[name] = at
            self._rows[at] = found
            self.journal.put(META, name_key, number(at))
            add_name(self.path, at, name)
        self._epoch += 1  # the next one, of this source or another
        self.journal.put(META, EPOCH_KEY, number(self._epoch))
        self.journal.commit()
        source = self._topics[name] = TopicStore(self, at, name, records)
        return source

    def claim(self) -> None:
        if (self._topics or self.claims) and self._thread != threading.get_ident():
            raise StateInUseError(
                f"an event loop on another thread of this process works with the state in "
                f"{self.path}: give each thread a directory of its own"
            )
        self._thread = threading.get_ident()
        with suppress(RuntimeError):  # it is used without a loop
            self._loop = asyncio.get_running_loop()

    def topics(self, subscription: str) -> list[str]:
        return [topic for topic, each, _ in self._numbers if each == subscription]

    def forget(self, subscription: str, of: Callable[[str], bool]) -> None:
        matching = [name for name in self._numbers if name[1] == subscription and of(name[0])]
        for name in matching:
            source = self.take(name, "before", STAY_BUFFER_MS, MOST_BUFFERED)
            source.records.clear()
            source.close()

    def leave(self, source: TopicStore) -> None:
        if self._topics.pop(source.name, None) is None:
            return
        source.records.flush_all()
        source.records.restore_suspects()
        self.journal.lost += source.records.apart
        self._mismatched += source.records.mismatched

    @property
    def trouble(self) -> StoreError | None:
        if self.journal.trouble is not None:
            return self.journal.trouble
        if self.syncer is not None and self.syncer.trouble is not None:
            return self.syncer.trouble
        troubles = (source.records.trouble for source in self._topics.values())
        trouble = next(filter(None, troubles), None)
        if trouble is None and self.journal.lost:
            return StoreError(
                f"{self.journal.lost} changes of the state in {self.path} were too many to keep "
                "while the disk took none, and are not on it"
            )
        return trouble

    def mend(self, *, waits: bool = False) -> bool:
        syncer = self.syncer
        unsynced = syncer is not None and syncer.trouble is not None
        if (self.journal.trouble is None or self.journal.flush_all()) and not unsynced:
            return True
        check_free_space(self.path / _DATABASE)  # what is closed in vain cannot be read meanwhile
        if syncer is not None and not syncer.syncing.acquire(blocking=waits):
            return False
        try:
            self.journal.database.close(failed=True)
            self.journal.database = Database(self.path / _DATABASE)
        except StoreError as error:
            self.journal.trouble = error
            self._open_read_only()
            raise
        finally:
            if syncer is not None:
                syncer.syncing.release()
        if syncer is not None:
            syncer.mended()
        return self.journal.flush_all()

    def _open_read_only(self) -> None:
        """It can be read while it cannot be written. The lock keeps other processes out."""
        try:
            self.journal.database = Database(self.path / _DATABASE, read_only=True)
        except StoreError as error:
            logger.warning("%s", error)

    def statistics(self) -> StoreStatistics:
        journal = self.journal
        used = [source.records for source in self._topics.values()]
        return StoreStatistics(
            sources=len(self._rows),
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
        for source in list(self._topics.values()):
            self.leave(source)
        written = self.journal.flush_all()
        if self.syncer is not None:
            if self.syncer.trouble is not None:
                with suppress(StoreError):
                    self.mend(waits=True)
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
        if self.journal.trouble is not None:
            raise StoreError(
                f"{self.journal.unwritten} changes of the state in {self.path} are lost: "
                f"{self.journal.trouble}"
            ) from self.journal.trouble


def _close_abandoned(opening: asyncio.Future[RocksStore]) -> None:
    """Nobody waited for it any more."""
    if not opening.cancelled() and opening.exception() is None:
        threading.Thread(target=opening.result().close, name="pulsar-encore-state").start()


class _Slot:
    """A directory that is open in this process, or is being opened or closed.

    Attributes:
        path: The directory.
        pid: The process; a child has the slots of its parent, and does not use them.
        changing: Held while the directory is opened or closed, which may take long.
        core: The directory; None if it is not open.
        waiting: Threads that hold `changing` or wait for it.
    """

    def __init__(self, path: Path) -> None:
        self.path: Path = path
        self.pid: int = os.getpid()
        self.changing: threading.Lock = threading.Lock()
        self.core: _Core | None = None
        self.waiting: int = 0

    def is_in(self, path: Path) -> bool:
        """True if `path` is another name of the directory, as with a bind mount."""
        with suppress(OSError):
            return self.path.samefile(path)
        return False


_slots: Final[dict[Path, _Slot]] = {}
# Protects `_slots`. Never held while a directory is opened or closed.
_slots_lock: Final = threading.Lock()


@contextmanager
def _exclusive_slot(path: Path) -> Iterator[_Slot]:
    """Have a directory alone, to open or to close it."""
    with _slots_lock:
        slot = _slots.get(path) or next((s for s in _slots.values() if s.is_in(path)), None)
        if slot is None or slot.pid != os.getpid():  # the lock of the parent refuses its child
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
    """The directory is there and it is one of ours, or empty."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        names = {each.name for each in path.iterdir()}
    except OSError as error:
        raise StoreError(f"the state in {path}: {advised_to_make(error)}") from error
    known = {_DATABASE, "owner.json", LOCK_FILE, salvaged(path / _DATABASE).name}
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


def _open_database(path: Path, wall_now_ms: int, tidies: bool) -> tuple[Database, LoadedStore]:
    before = read_owner(path)
    folder = path / _DATABASE
    with _owner_in_error(path):
        # RocksDB deletes what it does not know when it opens a directory to write: look first. Not
        # beside an owner, whose files come and go meanwhile.
        with locked(folder):
            check_complete(path, before, check_format)
        database = Database(folder)
    try:
        upgrade(database)
        return database, load(database, wall_now_ms, tidies=tidies)
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
