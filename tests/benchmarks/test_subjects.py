"""The designs that benchmarks compare with this package keep and return every record."""

from __future__ import annotations

from pathlib import Path

from integration.benchmarks.rip73 import Rip73
from integration.benchmarks.spilling import SqliteIndex, lines_of

FIRST, SECOND, THIRD = (1, 1, -1), (1, 2, -1), (2, 1, -1)
LEASE_MS = 60_000


def test_sqlite_returns_due_ids_after_a_restart_until_they_are_done(tmp_path: Path) -> None:
    index = SqliteIndex(str(tmp_path))
    for key, due_ms in ((FIRST, 300), (SECOND, 100), (THIRD, 200), (FIRST, 900)):
        index.add(key, due_ms, 0)
    index.close()
    index = SqliteIndex(str(tmp_path))
    assert index.next_due() == 100
    assert index.pop_due(250, 10).rows == [SECOND, THIRD]
    batch = index.pop_due(250, 1)
    assert (len(batch), batch.entries) == (1, [(1, (2,))])
    index.done(batch)
    assert index.pop_due(900, 10).rows == [THIRD, FIRST]
    index.close()


def test_rip73_writes_only_records_that_stay_in_its_buffer(tmp_path: Path) -> None:
    rip = Rip73(tmp_path, buffered=True)
    rip.pop(LEASE_MS, [(1, 1), (1, 2)], 0)
    rip.ack(LEASE_MS, (1, 1))
    rip.sweep(5_000)
    assert rip.revive(2 * LEASE_MS) == 0
    rip.sweep(10_000)
    assert rip.revive(2 * LEASE_MS) == 1
    rip.database.close()


def test_rip73_moves_a_record_that_is_changed(tmp_path: Path) -> None:
    rip = Rip73(tmp_path)
    rip.pop(LEASE_MS, [(1, 1)], 0)
    rip.change(LEASE_MS, 2 * LEASE_MS, (1, 1))
    assert rip.revive(LEASE_MS + 1) == 0
    rip.change(2 * LEASE_MS, 2 * LEASE_MS, (1, 1))  # the same time loses no record
    assert rip.revive(2 * LEASE_MS + 1) == 1
    rip.database.close()


def test_lines_over_the_number_of_ids_end_where_a_subject_was_not_measured() -> None:
    figures = {"most_mib": 1.0, "open_ms": 2.0, "pop_per_s": 3.0}
    subjects = {"spilling": [figures] * 3, "memory": [figures], "sqlite": [figures]}
    found = {100_000: subjects, 1_000_000: {"spilling": [figures], "memory": [figures]}}
    series = {row.what: row.series for row in lines_of(found)}
    assert series["resident memory, spilling: to 1 M ids"] == ((1e5, 1.0), (1e6, 1.0))
    assert series["restart, SQLite: to 0.1 M ids"] == ((1e5, 2.0),)
