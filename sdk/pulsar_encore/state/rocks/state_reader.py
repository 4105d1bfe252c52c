"""Looking at a state directory without owning it, also while its owner works with it.

Owns `StateReader`. It sees what was written when it was opened; what an owner has in memory only is
not there. Invariant: it changes no state. Refuses to guess: what makes no sense is left out and
counted, and damage is an error at the place where it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from pulsar_encore.core.due_time import MessageKey
from pulsar_encore.errors import StateDamagedError, StateFormatError

from .database import Database
from .entry_record import EntryRecord, from_bytes
from .owner_file import Owner, read_owner
from .store_keys import due_key, entry_key, read_due_key, read_entry_key, source_range
from .store_loader import check_format, read_sources
from .write_batch import DUE, STATE

_MAX_TRIES: Final = 5


class FoundTopic(NamedTuple):
    """A source as it is named, and its number."""

    number: int
    topic: str
    subscription: str
    consumer: str


class FoundRecord(NamedTuple):
    """What is known of an entry."""

    source: int
    ledger: int
    entry: int
    record: EntryRecord


class StateReader:
    """A state directory, to look at. A context manager.

    Args:
        path: The directory.

    Attributes:
        owner: Who has it, or had it last (`Owner.closed`); None when that cannot be told.
        unreadable: Keys and values so far that made no sense.

    Raises:
        StateFormatError: There is no state in it, or a newer version's.
        StateDamagedError: Files are lost or damaged.
        ConfigurationError: `rocksdict` is not installed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        where = Path(path)
        self.owner: Owner | None = read_owner(where)
        self.unreadable: int = 0
        with suppress(OSError):  # one that may not be looked into is named below
            if not (where / "db").exists():
                raise StateFormatError(
                    f"there is no state in {where}: name the directory that RocksState was given"
                )
        self._database = _open_with_retries(where / "db")
        try:
            if not check_format(self._database):
                raise StateFormatError(f"there is no state in {where}")
        except BaseException:
            self._database.close()
            raise

    def sources(self) -> list[FoundTopic]:
        """All sources, by number."""
        found = [FoundTopic(number, *name) for number, name in read_sources(self._database)]
        return sorted(found)

    def waiting(self) -> Iterator[tuple[int, int, MessageKey]]:
        """(due in ms since the epoch, number of the source, key) of all that waits, the earliest
        first.

        Sorts in memory: 100 bytes or so for each message that waits.

        Raises:
            StateDamagedError: Something is damaged.
        """
        # As packed keys, which take a third of the memory of tuples.
        found = [
            due_key(due_ms, each.source, (each.ledger, each.entry, index))
            for each in self.records()
            for index, due_ms in each.record.dues_by_index().items()
        ]
        found += [data for data, _ in self._database.scan(DUE)]  # a directory of format 1
        for data in sorted(found):
            try:
                yield read_due_key(data)
            except ValueError:
                self.unreadable += 1

    def records(self, source: int | None = None) -> Iterator[FoundRecord]:
        """What is known of entries, in order of source and id.

        Args:
            source: Of this one only.

        Raises:
            StateDamagedError: What comes next is damaged.
        """
        start, stop = (b"", b"") if source is None else source_range(source)
        for data, value in self._database.scan(STATE, start, stop):
            try:
                yield FoundRecord(*read_entry_key(data), from_bytes(value))
            except ValueError:
                self.unreadable += 1

    def record(self, source: int, ledger: int, entry: int) -> EntryRecord | None:
        """What is known of one entry; None where nothing is, or what makes no sense.

        Raises:
            StoreError: It cannot be read.
        """
        value = self._database.get(STATE, entry_key(source, ledger, entry))
        if value is None:
            return None
        try:
            return from_bytes(value)
        except ValueError:
            self.unreadable += 1
            return None

    def close(self) -> None:
        """Let go of the files."""
        self._database.close()

    def __enter__(self) -> StateReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _open_with_retries(path: Path) -> Database:
    """Beside an owner files come and go: what is gone once may have been replaced."""
    for _ in range(_MAX_TRIES - 1):
        try:
            return Database(path, read_only=True)
        except StateDamagedError:
            continue
    return Database(path, read_only=True)
