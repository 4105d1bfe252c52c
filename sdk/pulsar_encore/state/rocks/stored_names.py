"""A second copy of topic numbers and names, in a file beside the database.

One small table may have all names, and no record is usable without the name of its topic. If it is
lost, `salvage` reads this file. Each line has a checksum. A failed write is only logged: the
database has the names, and the next `write_names` repairs the file.
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
    if read_names(folder) == {number: name for name, number in numbers.items()}:
        return
    new = folder / f"{NAMES_FILE}.new"
    try:
        new.write_bytes(b"".join(_line(number, name) for name, number in numbers.items()))
        new.replace(folder / NAMES_FILE)
    except OSError as error:
        logger.warning("the copy of the topic names cannot be written: %s", error)


def add_name(folder: Path, number: int, name: StoredTopic) -> None:
    try:
        with (folder / NAMES_FILE).open("ab", buffering=0) as file:
            file.write(b"\n" + _line(number, name))  # the line before may be incomplete
    except OSError as error:
        logger.warning("the copy of the topic names cannot be written: %s", error)


def _line(number: int, name: StoredTopic) -> bytes:
    data = json.dumps([number, *name]).encode()
    return b"%08x %s\n" % (zlib.crc32(data), data)
