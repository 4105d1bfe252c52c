"""Salvage keeps every record outside of the corrupted table, whichever table it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rocks_kit import opened, topic_store_of

from pulsar_encore.state.rocks import DeliveredRecord, RocksStore
from tests.harness.recalled_attempts import recall

GENERATIONS, EACH = 2, 60


def flip(share: float) -> Callable[[Path], None]:
    def damage(table: Path) -> None:
        data = bytearray(table.read_bytes())
        data[int(len(data) * share)] ^= 0x40
        table.write_bytes(data)

    return damage


def cut(share: float) -> Callable[[Path], None]:
    def damage(table: Path) -> None:
        table.write_bytes(table.read_bytes()[: int(table.stat().st_size * share)])

    return damage


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped at the beginning": flip(0),
    "flipped at 50%": flip(0.5),
    "cut in half": cut(0.5),
    "gone": Path.unlink,
}


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make tables with overlapping key ranges: generation g has the entries g, g + 2, g + 4, ..."""
    path = tmp_path_factory.mktemp("salvage") / "state"
    for generation in range(GENERATIONS):
        store = opened(path)
        topic_store, other = (
            topic_store_of(store),
            topic_store_of(store, "persistent://public/default/u"),
        )
        entries = range(generation, GENERATIONS * EACH, GENERATIONS)
        for each in (topic_store, other):
            each.records.record_deliveries(
                [DeliveredRecord(1, entry, attempt=2) for entry in entries], 0
            )
            for entry in entries:
                each.records.record_nack((1, entry, -1), 1000 + entry, 2, 0)
        store.close()
    return path


def generations_lost(store: RocksStore) -> set[int]:
    lost: set[int] = set()
    for topic in ("persistent://public/default/t", "persistent://public/default/u"):
        topic_store = topic_store_of(store, topic)
        for entry in range(GENERATIONS * EACH):
            known = recall(topic_store.records, 1, entry)
            if known is None or (known.attempts, known.due_ms) != (2, 1000 + entry):
                lost.add(entry % GENERATIONS)
    return lost


@pytest.mark.parametrize("name", DAMAGES)
def test_only_records_of_the_corrupted_table_are_lost(
    closed: Path, tmp_path: Path, name: str
) -> None:
    tables = sorted(each.name for each in (closed / "db").glob("*.sst"))
    assert len(tables) >= 2 * GENERATIONS
    lost: dict[str, set[int]] = {}
    for table in tables:
        path = tmp_path / table
        shutil.copytree(closed, path)
        DAMAGES[name](path / "db" / table)
        store = opened(path, salvage=True)
        lost[table] = generations_lost(store)
        store.close()
        store = opened(path)  # the next owner sees the same
        assert generations_lost(store) == lost[table]
        store.close()
    assert all(len(each) <= 1 for each in lost.values()), lost
    # Tables of `meta` lose no generation.
    assert sum(not each for each in lost.values()) >= GENERATIONS - 1, lost
