"""Read a state directory without owning it, even while its owner uses it.

A reader sees the data that was on disk when it was opened, not what the owner has in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from pulsar_encore.core.message_key import MessageKey
from pulsar_encore.errors import StateDamagedError, StateFormatError

from .database import Database, UnknownContentError, is_unfinished
from .entry_record import EntryRecord, from_bytes
from .owner_file import Owner, read_owner
from .store_keys import due_key, entry_key, read_due_key, read_entry_key, topic_range
from .store_loader import check_format, read_sources
from .write_batch import DUE, STATE

_MAX_TRIES: Final = 5


class FoundTopic(NamedTuple):
    number: int
    topic: str
    subscription: str
    consumer: str


class FoundRecord(NamedTuple):
    topic_number: int
    ledger: int
    entry: int
    record: EntryRecord


class StateReader:
    """A read-only view of a state directory. A context manager.

    Attributes:
        owner: The present owner, or the last one (see `Owner.closed`); None if unknown.
        unreadable: Keys and values so far that were skipped.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        where = Path(path)
        self.owner: Owner | None = read_owner(where)
        self.unreadable: int = 0
        with suppress(OSError):  # `Database` reports a directory that may not be read
            if not (where / "db").exists():
                raise StateFormatError(
                    f"there is no state in {where}: name the directory that RocksState was given"
                )
        try:
            self._database = _open_with_retries(where / "db")
        except UnknownContentError as error:
            if is_unfinished(where / "db"):
                raise StateFormatError(f"there is no state in {where} yet") from error
            self._database = _open_with_retries(where / "db")  # its owner has perhaps finished it
        try:
            if not check_format(self._database):
                raise StateFormatError(f"there is no state in {where}")
        except BaseException:
            self._database.close()
            raise

    def topics(self) -> list[FoundTopic]:
        found = [FoundTopic(number, *name) for number, name in read_sources(self._database)]
        return sorted(found)

    def waiting(self) -> Iterator[tuple[int, int, MessageKey]]:
        """Iterate over waiting messages, the earliest first: due time, topic number, message key.

        Due times are in ms since the epoch. Sorts in memory: about 100 bytes for each waiting
        message.
        """
        # Packed keys take a third of the memory of tuples.
        found = [
            due_key(due_ms, each.topic_number, (each.ledger, each.entry, index))
            for each in self.records()
            for index, due_ms in each.record.dues_by_index().items()
        ]
        found += [data for data, _ in self._database.scan(DUE)]  # a directory of format 1
        for data in sorted(found):
            try:
                yield read_due_key(data)
            except ValueError:
                self.unreadable += 1

    def records(self, topic_number: int | None = None) -> Iterator[FoundRecord]:
        start, stop = (b"", b"") if topic_number is None else topic_range(topic_number)
        for data, value in self._database.scan(STATE, start, stop):
            try:
                yield FoundRecord(*read_entry_key(data), from_bytes(value))
            except ValueError:
                self.unreadable += 1

    def record(self, topic_number: int, ledger: int, entry: int) -> EntryRecord | None:
        value = self._database.get(STATE, entry_key(topic_number, ledger, entry))
        if value is None:
            return None
        try:
            return from_bytes(value)
        except ValueError:
            self.unreadable += 1
            return None

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> StateReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_with_retries(path: Path) -> Database:
    # While an owner works, a file that is missing once may have been replaced.
    for _ in range(_MAX_TRIES - 1):
        try:
            return Database(path, read_only=True)
        except StateDamagedError:
            continue
    return Database(path, read_only=True)
