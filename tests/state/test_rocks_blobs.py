"""Blobs in RocksDB: a spilling index on them, kills, and directories that are something else's."""

from __future__ import annotations

import os
import random
import re
import shutil
from pathlib import Path

import pytest

from pulsar_encore.errors import ClosedError, StateFormatError, StateInUseError
from pulsar_encore.state import SpillingIndex
from pulsar_encore.state.rocks import RocksBlobs, RocksStore


@pytest.mark.parametrize("journal", [True, False])
def test_a_spilling_index_goes_on_after_a_restart(tmp_path: Path, journal: bool) -> None:
    rng = random.Random(5)
    dues = {(1, entry, -1): rng.randrange(100_000) for entry in range(5_000)}
    index = SpillingIndex(RocksBlobs(tmp_path / "b"), journal=journal)
    for key, due in dues.items():
        index.add(key, due, 0)
        index.maintain()
    taken = list(index.pop_due(20_000))
    index.close()
    index = SpillingIndex(RocksBlobs(tmp_path / "b"), journal=journal)
    again = list(index.pop_due(20_000))  # what was not done with is due again
    assert sorted(again) == sorted(taken) == sorted(k for k, due in dues.items() if due <= 20_000)
    rest = list(index.pop_due(100_000))
    assert sorted([*again, *rest]) == sorted(dues)
    index._check()
    index.close()


def test_killed_at_any_moment_everything_is_there(tmp_path: Path) -> None:
    index = SpillingIndex(RocksBlobs(tmp_path / "b"), journal=True)
    for entry in range(3_000):
        index.add((1, entry, -1), 1_000 + entry, 0)
        index.maintain()
        if entry % 500 != 499:
            continue
        left = tmp_path / f"killed-{entry}"
        shutil.copytree(tmp_path / "b", left)
        found = SpillingIndex(RocksBlobs(left), journal=True)
        assert list(found.pop_due(10_000)) == [(1, each, -1) for each in range(entry + 1)]
        found.close()
    index.close()


def test_it_has_one_owner_who_is_named(tmp_path: Path) -> None:
    first, second = RocksBlobs(tmp_path / "b"), RocksBlobs(tmp_path / "b")
    first.open()
    with pytest.raises(StateInUseError, match=re.escape(f"process {os.getpid()} on ")):
        second.open()
    with pytest.raises(StateInUseError):
        first.open()
    first.close()
    first.close()
    second.open()
    with pytest.raises(ClosedError):
        first.write_manifest(b"", sync=False)
    second.close()


def test_what_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"beach")
    with pytest.raises(StateFormatError, match="something else"):
        RocksBlobs(tmp_path).open()
    state = tmp_path / "state"
    RocksStore(state, wall_now_ms=0).close()
    with pytest.raises(StateFormatError, match="something else"):
        RocksBlobs(state).open()
    blobs = RocksBlobs(tmp_path / "b")
    blobs.open()
    blobs.write_manifest(b"m", sync=True)
    blobs.close()
    with pytest.raises(StateFormatError):
        RocksStore(tmp_path / "b", wall_now_ms=0)
