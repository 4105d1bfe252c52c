"""Helpers for tests of state on disk: directories, and copies of them as a kill leaves them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from pulsar_encore.core.message_key import MessageKey
from pulsar_encore.state.rocks import RocksStore, TopicStore, rocks_store

TOPIC = "persistent://public/default/t"
copies = count()


def opened(path: Path, *, now: int = 0, **options: Any) -> RocksStore:
    return RocksStore(path, wall_now_ms=now, **options)


def topic_store_of(store: RocksStore, topic: str = TOPIC, **options: Any) -> TopicStore:
    return store.topic_store(topic, "s", **options)


def opened_for_topic(path: Path, **options: Any) -> tuple[RocksStore, TopicStore]:
    """Open the store and the records of its topic."""
    store = opened(path, **options)
    return store, topic_store_of(store)


def open_directories() -> list[Path]:
    """Return the directories that the stores of this process hold open."""
    return list(rocks_store._slots)


def nack(topic_store: TopicStore, key: MessageKey, due_ms: int, bits: int = 0) -> None:
    """Nack a message without a recorded delivery."""
    size = 1 if key[2] < 0 else max(key[2] + 1, 2)
    topic_store.records.record_nack(key, due_ms, 0, 0, bits=bits, size=size)


def waiting(topic_store: TopicStore) -> list[tuple[int, MessageKey]]:
    """Return (due time, key) of all waiting messages, by due time."""
    return sorted(
        (due_ms, (*entry, index))
        for entry, record in topic_store.records.entries_waiting()
        for index, due_ms in record.dues_by_index().items()
    )


def keys_of(topic_store: TopicStore) -> list[MessageKey]:
    """Return the keys of all waiting messages, by due time."""
    return [key for _, key in waiting(topic_store)]


def killed(path: Path) -> Path:
    """Copy the directory as it is now, which is how a kill would leave it."""
    copy = path.with_name(f"{path.name}.{next(copies)}")
    while True:
        try:
            shutil.copytree(path, copy)
            return copy
        except shutil.Error:  # RocksDB removed a file meanwhile
            shutil.rmtree(copy)


@contextmanager
def after_kill(path: Path, **options: Any) -> Iterator[TopicStore]:
    """Yield the topic store as the next owner after a kill would see it."""
    store = opened(killed(path))
    try:
        yield topic_store_of(store, **options)
    finally:
        store.close()
