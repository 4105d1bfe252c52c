"""What tests of state on disk share: directories, and what a kill leaves of one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from pulsar_encore.state.rocks import RocksStore, Source

TOPIC = "persistent://public/default/t"
copies = count()


def opened(path: Path, *, now: int = 0, **options: Any) -> RocksStore:
    return RocksStore(path, wall_now_ms=now, **options)


def source_of(store: RocksStore, topic: str = TOPIC, **options: Any) -> Source:
    return store.source(topic, "s", **options)


def killed(path: Path) -> Path:
    """A copy of the directory as it is now: what a process that is killed now leaves behind."""
    copy = path.with_name(f"{path.name}.{next(copies)}")
    while True:
        try:
            shutil.copytree(path, copy)
            return copy
        except shutil.Error:  # RocksDB tidied up meanwhile
            shutil.rmtree(copy)


@contextmanager
def after_kill(path: Path, **options: Any) -> Iterator[Source]:
    """The source of the same name, as its next owner finds it."""
    store = opened(killed(path))
    try:
        yield source_of(store, **options)
    finally:
        store.close()
