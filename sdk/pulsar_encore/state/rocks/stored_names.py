"""A second copy of the numbers and names of sources, in a file beside the database.

A record names its source by a number. All names may be in one small table of the database, without
which no record can be used: `salvage` then takes them from this file. A line that is damaged is
skipped, because each has a checksum.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from .store_loader import StoredTopic

logger: logging.Logger = logging.getLogger(__name__)

NAMES_FILE: Final = "sources"


def read_names(folder: Path) -> dict[int, StoredTopic]:
    """Return the names by number; none if the file is missing."""
    names: dict[int, StoredTopic] = {}
    try:
        lines = (folder / NAMES_FILE).read_bytes().splitlines()
    except OSError:
        return names
    for line in lines:
        with suppress(ValueError):
            if int(line[:8], 16) == zlib.crc32(line[9:]):
                number, topic, subscription, consumer = json.loads(line[9:])
                names[number] = (topic, subscription, consumer)
    return names


def write_names(folder: Path, numbers: Mapping[StoredTopic, int]) -> None:
    """Replace the file if it says anything else. A failure is logged: nothing depends on it yet."""
    if read_names(folder) == {number: name for name, number in numbers.items()}:
        return
    new = folder / f"{NAMES_FILE}.new"
    try:
        new.write_bytes(b"".join(_line(number, name) for name, number in numbers.items()))
        new.replace(folder / NAMES_FILE)
    except OSError as error:
        logger.warning("the copy of the names of sources cannot be written: %s", error)


def add_name(folder: Path, number: int, name: StoredTopic) -> None:
    """Append a source. A failure is logged; the next `write_names` makes up for it."""
    try:
        with (folder / NAMES_FILE).open("ab", buffering=0) as file:
            file.write(b"\n" + _line(number, name))  # the line before may have no end
    except OSError as error:
        logger.warning("the copy of the names of sources cannot be written: %s", error)


def _line(number: int, name: StoredTopic) -> bytes:
    data = json.dumps([number, *name]).encode()
    return b"%08x %s\n" % (zlib.crc32(data), data)
