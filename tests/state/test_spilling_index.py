"""`SpillingIndex` beyond the contract of due indexes: restarts, failures and costs."""

from __future__ import annotations

import logging
import random
import zlib
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from spilling_kit import (
    DeferredExecutor,
    FaultyBlobs,
    UnsyncedBlobs,
    damage_segment,
    drained,
    full_disk,
    segments_of,
)

from pulsar_encore.core.due_index import DueBatch, MessageKey
from pulsar_encore.errors import (
    ClosedError,
    ConfigurationError,
    StateDamagedError,
    StateFormatError,
    StateInUseError,
    StoreError,
)
from pulsar_encore.state import DirectoryBlobs, MemoryBlobs, SpillingIndex
from pulsar_encore.state.spilling import head_journal as journals


def filled(blobs: object, count: int = 1000, **options: object) -> SpillingIndex:
    """Add entries 0 and up of ledger 1, due at 10 times their number, in snapshots of 100."""
    made = {"min_index_count_per_bucket": 100, "max_indexes_per_bucket_snapshot_segment": 20}
    index = SpillingIndex(blobs, **(made | options))  # type: ignore[arg-type]
    for entry in range(count):
        index.add((1, entry, -1), entry * 10, 0)
    return index


def finish_work(index: SpillingIndex) -> SpillingIndex:
    """Finish all work that has begun."""
    while index.maintain():
        pass
    return index


def test_a_reopened_index_continues(tmp_path: Path) -> None:
    index = filled(DirectoryBlobs(tmp_path))
    index.move((1, 3, -1), 77_777, 0)
    index.discard((1, 4, -1))
    index.close()
    index = SpillingIndex(DirectoryBlobs(tmp_path))
    assert len(index) == 999 and (1, 3, -1) in index and (1, 4, -1) not in index
    assert index.next_due() == 0
    assert list(index.pop_due(60)) == [(1, entry, -1) for entry in (0, 1, 2, 5, 6)]
    assert index.add((1, 4, -1), 20, 0)
    assert not index.add((1, 3, -1), 20, 0)
    index._check()
    index.close()


@pytest.mark.parametrize("journal", [True, False])
def test_keys_taken_and_not_done_are_due_after_a_restart(tmp_path: Path, journal: bool) -> None:
    index = filled(DirectoryBlobs(tmp_path), 1050, journal=journal)
    index.flush()
    taken, done = index.pop_due(100), index.pop_due(200)
    late = index.pop_due(10_500)
    assert len(taken) + len(done) + len(late) == 1050
    index.done(done)
    index.close()
    index = SpillingIndex(DirectoryBlobs(tmp_path), journal=journal)
    assert sorted(drained(index)) == sorted([*taken, *late])
    index.close()


def test_a_key_added_again_is_not_removed_by_done(tmp_path: Path) -> None:
    index = filled(DirectoryBlobs(tmp_path), 300)
    batch = index.pop_due(50)
    for key in batch:
        assert index.add(key, 9000, 0)
    index.close()
    index = SpillingIndex(DirectoryBlobs(tmp_path))
    assert len(index) == 300 and index.next_due() == 60
    assert sorted(index.pop_due(9000))[:6] == sorted(batch)
    index.close()


def test_a_closed_index_raises(tmp_path: Path) -> None:
    index = filled(DirectoryBlobs(tmp_path), 10)
    index.close()
    index.close()
    for call in (
        lambda: index.add((1, 1, -1), 5, 0),
        lambda: index.pop_due(5),
        lambda: index.discard((1, 1, -1)),
        index.flush,
    ):
        with pytest.raises(ClosedError):
            call()


def test_a_second_index_on_a_directory_raises_and_the_first_works(tmp_path: Path) -> None:
    index = filled(DirectoryBlobs(tmp_path), 150)
    with pytest.raises(StateInUseError, match="process"):
        SpillingIndex(DirectoryBlobs(tmp_path))
    assert len(drained(index)) == 150
    index.close()


def test_a_failed_start_releases_the_directory(tmp_path: Path) -> None:
    filled(DirectoryBlobs(tmp_path), 150).close()
    manifest = (tmp_path / "manifest").read_bytes()
    (tmp_path / "manifest").write_bytes(b"something else altogether")
    with pytest.raises(StateFormatError, match="manifest"):
        SpillingIndex(DirectoryBlobs(tmp_path))
    (tmp_path / "manifest").write_bytes(manifest)
    index = SpillingIndex(DirectoryBlobs(tmp_path))
    assert len(drained(index)) == 150
    index.close()


def test_a_start_detects_any_corrupted_file(tmp_path: Path) -> None:
    """A changed or missing byte of a manifest, meta or journal raises an error."""
    blobs = DirectoryBlobs(tmp_path)
    index = filled(blobs, 320)
    finish_work(index)
    index.flush()
    blobs.close()  # a crash: the head is only in the journal
    journal = next(path for path in tmp_path.glob("journal-*"))
    for path in (tmp_path / "manifest", journal):
        whole = path.read_bytes()
        end = len(whole) - (60 if path is journal else 0)  # the last record may look torn
        for at in random.Random(3).sample(range(end), min(end, 60)):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises((StateDamagedError, StateFormatError), match=r"manifest|journal"):
                SpillingIndex(DirectoryBlobs(tmp_path))
        path.write_bytes(whole)
    (tmp_path / "manifest").rename(tmp_path / "m")
    with pytest.raises(StateDamagedError, match="no manifest"):
        SpillingIndex(DirectoryBlobs(tmp_path))
    (tmp_path / "m").rename(tmp_path / "manifest")
    blob = next(path for path in tmp_path.glob("blob-*"))
    data = blob.read_bytes()
    blob.unlink()
    with pytest.raises(StateDamagedError, match="blob"):
        SpillingIndex(DirectoryBlobs(tmp_path))
    blob.write_bytes(data)
    index = SpillingIndex(DirectoryBlobs(tmp_path))
    assert len(drained(index)) == 320
    index.close()


@pytest.mark.parametrize("cut", [1, 9, 20, 49])
def test_the_torn_end_of_a_journal_is_no_error(
    tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    blobs = DirectoryBlobs(tmp_path)
    filled(blobs, 50).flush()
    blobs.close()
    (journal,) = tmp_path.glob("journal-*")
    journal.write_bytes(journal.read_bytes()[:-cut] + b"\0" * (cut == 20) * 300)
    with caplog.at_level(logging.WARNING):
        index = SpillingIndex(DirectoryBlobs(tmp_path))
    assert "cut its last" in caplog.text
    assert index.statistics().journal_torn_bytes > 0
    assert len(drained(index)) == (49 if cut < 49 else 48)
    index.close()


def test_the_error_names_an_unsupported_journal_version() -> None:
    blobs = MemoryBlobs()
    filled(blobs, 50).flush()
    (journal,) = blobs.journals()
    data = bytearray(blobs.read_journal(journal))
    data[4] = 9
    blobs.delete_journal(journal)
    blobs.append(journal, data, sync=True)
    with pytest.raises(StateFormatError, match="version 9"):
        SpillingIndex(blobs)


def test_a_corrupted_segment_loses_no_id(tmp_path: Path) -> None:
    """Its ids are in the meta, and come at the latest due time of the segment."""
    blobs = FaultyBlobs()
    index = finish_work(filled(blobs, 100))
    index.close()
    index = SpillingIndex(blobs)
    (generation,) = blobs.generations()
    damage_segment(blobs, generation, 2)
    index.discard((1, 45, -1))
    assert len(index.pop_due(390)) == 40
    assert not index.pop_due(500), "keys 40 to 59 must not be early"
    assert index.next_due() == 590
    assert list(index.pop_due(590)) == [(1, entry, -1) for entry in range(40, 60) if entry != 45]
    assert len(index.pop_due(10_000)) == 40
    assert index.statistics().segments_rescued == 1
    index._check()


def test_an_unreadable_segment_is_retried() -> None:
    blobs = FaultyBlobs()
    index = finish_work(filled(blobs, 100))
    index.close()
    index = SpillingIndex(blobs)
    assert len(index.pop_due(190)) == 20
    read, blobs.segment = blobs.segment, unreadable  # type: ignore[method-assign]
    assert len(index.pop_due(1000)) == 20, "keys in memory must be due"
    for _ in range(3):
        assert not index.pop_due(1000)
    head = index.next_due()
    assert head is not None and head > 1000, "an alarm would ring repeatedly"
    assert len(index) == 60
    blobs.segment = read  # type: ignore[method-assign]
    assert len(index.pop_due(head)) == 60
    assert index.statistics().operations["load"].failed == 1


def unreadable(generation: int, number: int) -> bytes:
    raise StoreError("could not read: Input/output error")


class Clock:
    """A clock in seconds, set by the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("seed", range(8))
def test_a_full_disk_loses_no_key_and_writing_resumes(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    blobs, clock = FaultyBlobs(), Clock()
    index = filled(
        blobs, 130, min_index_count_per_bucket=20, max_num_buckets=2, clock=clock, retry_s=60
    )
    start = blobs.writes + rng.randrange(40)
    blobs.judge = full_disk(start, start + 10**9)
    for entry in range(130, 400):
        index.add((1, entry, -1), entry * 10, 0)
        clock.now += 0.3
    due = index.pop_due(390)
    assert len(due) == 40
    index.done(due)
    index._check()
    with pytest.raises(StoreError, match="No space left"):
        index.flush()
    statistics = index.statistics()
    failed = statistics.journal_failed + sum(each.failed for each in statistics.operations.values())
    assert failed and ("will be retried" in caplog.text or "until the retry" in caplog.text)
    blobs.judge = lambda number: None
    clock.now += 61
    index.add((1, 400, -1), 4000, 0)
    index.flush()
    index._check()
    again = SpillingIndex(blobs.fork())
    expected = [(1, entry, -1) for entry in range(40, 401)]
    assert drained(again) == expected, f"seed {seed}"
    assert drained(index) == expected


ALWAYS_FULL = full_disk(0, 10**9)


@pytest.mark.parametrize("wait_s", [0, 61])
def test_removed_keys_stay_removed_after_a_failed_trim(wait_s: int) -> None:
    blobs, clock = FaultyBlobs(), Clock()
    index = finish_work(filled(blobs, 100, clock=clock))
    for entry in range(100):
        index.add((2, entry, -1), 9_000_000, 0)
    finish_work(index)
    assert index.discard_through(1, 99) == 100
    blobs.judge = ALWAYS_FULL
    finish_work(index)
    assert blobs.generations() == [0, 1], "no manifest was written"
    blobs.judge = lambda number: None
    clock.now += wait_s
    index.add((1, 5, -1), 8_000_000, 0)  # added again, with a later due time
    for entry in range(100, 199):
        index.add((1, entry, -1), 9_500_000, 0)
    finish_work(index)
    index._check()
    again = SpillingIndex(blobs.fork())
    for each in (index, again):
        assert len(each) == 200
        assert not each.pop_due(7_999_999), "the old due time, or a discarded key"
        assert list(each.pop_due(8_000_000)) == [(1, 5, -1)]
    clock.now += 61
    finish_work(index)
    assert 0 not in blobs.generations(), "the trim was not retried"


@pytest.mark.parametrize("call", ["done", "discard"])
@pytest.mark.parametrize("full", ["before", "after"])
def test_flush_and_close_raise_if_the_journal_cannot_be_written(call: str, full: str) -> None:
    blobs = FaultyBlobs()
    index = filled(blobs, 5)
    index.flush()
    if full == "before":
        blobs.judge = ALWAYS_FULL
    if call == "done":
        index.done(index.pop_due(1000))
    else:
        for entry in range(5):
            index.discard((1, entry, -1))
    blobs.judge = ALWAYS_FULL
    for _ in range(2):
        with pytest.raises(StoreError, match="No space left"):
            index.flush()
    assert full == "after" or len(drained(SpillingIndex(blobs.fork()))) == 5
    if full == "before":
        with pytest.raises(StoreError, match="No space left"):
            index.close()
    else:
        blobs.judge = lambda number: None
        index.close()
        assert not drained(SpillingIndex(blobs))


def test_flush_needs_a_snapshot_after_lost_journal_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journals, "_MAX_BACKLOG_BYTES", 2000)
    blobs, clock = FaultyBlobs(), Clock()
    index = filled(blobs, 50, min_index_count_per_bucket=1000, clock=clock)
    blobs.judge = ALWAYS_FULL
    for entry in range(50, 150):
        index.add((1, entry, -1), entry * 10, 0)
    finish_work(index)
    assert len(SpillingIndex(blobs.fork())) == 50
    with pytest.raises(StoreError, match="No space left"):
        index.flush()
    blobs.judge = lambda number: None
    index.flush()
    assert drained(SpillingIndex(blobs.fork())) == [(1, entry, -1) for entry in range(150)]


def test_a_sync_covers_writes_before_it_began() -> None:
    """A write during the sync is not covered, even if the head is sealed meanwhile."""
    blobs, clock, executor = UnsyncedBlobs(), Clock(), DeferredExecutor()
    index = filled(blobs, 10, clock=clock, executor=executor)
    clock.now += 2
    index.maintain()
    index.maintain()

    def meanwhile() -> None:
        blobs.meanwhile = lambda: None
        for entry in range(10, 100):
            index.add((1, entry, -1), entry * 10, 0)
        index.maintain()

    blobs.meanwhile = meanwhile
    executor.run()
    assert len(index) == 100
    index.maintain()
    index.flush()
    assert len(SpillingIndex(blobs.without_power())) == 100


@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_flush_syncs_journals_of_a_killed_process(fsync: str) -> None:
    for how in ("flush", "close", "wait"):
        blobs, clock = UnsyncedBlobs(), Clock()
        filled(blobs, 5, fsync_interval_s=3600)
        index = filled(blobs, 0, fsync=fsync, clock=clock)
        if how == "wait":
            clock.now += 2
            finish_work(index)
        else:
            getattr(index, how)()
        assert len(SpillingIndex(blobs.without_power())) == 5, how


def test_taken_keys_are_copied_to_a_new_journal_in_steps() -> None:
    """The old journal has thousands of keys that were taken and are not done."""
    blobs = UnsyncedBlobs()
    filled(blobs, 5000, min_index_count_per_bucket=10**4)
    index = filled(blobs, 0, min_index_count_per_bucket=10**4, max_journal_bytes=10_000)
    assert len(index.pop_due(49_999)) == 5000

    def written() -> int:
        return sum(len(blobs.read_journal(number)) for number in blobs.journals())

    steps, before = 0, written()
    while index.maintain():
        assert written() - before < 40_000
        steps, before = steps + 1, written()
        if steps == 3:  # during the copy: keys that are copied, and keys that are not
            for entry in (0, 2999):
                index.move((1, entry, -1), 10**6, 0)
            index.done(DueBatch([(1, range(3000, 5000))]))
        assert steps < 50, "repeated although the journal is as long"
    assert steps > 5
    index._check()
    again = SpillingIndex(blobs)
    assert len(again.pop_due(99_999)) == 2998
    assert list(again.pop_due(10**6)) == [(1, 0, -1), (1, 2999, -1)]


@pytest.mark.parametrize("how", ["moved", "taken"])
def test_a_snapshot_kept_for_one_id_does_not_cause_repeated_work(how: str) -> None:
    blobs = FaultyBlobs()
    index = finish_work(filled(blobs, 100))
    for entry in range(100):
        index.add((2, entry, -1), 10**7, 0)
    finish_work(index)
    kept = index.pop_due(0)
    if how == "moved":
        index.add((1, 0, -1), 10**7, 0)
    index.done(index.pop_due(1000))
    steps = sum(1 for _ in islice(iter(index.maintain, False), 100))
    assert steps < 30
    writes = blobs.writes
    for entry in range(50):
        index.add((3, entry, -1), 10**7, 0)
        index.discard((2, entry, -1))
    assert blobs.writes == writes + 100, "only the journal may be written"
    assert blobs.generations() == [0, 1]
    if how == "moved":
        index.discard((1, 0, -1))
    else:
        index.done(kept)
    finish_work(index)
    assert blobs.generations() == [1], "an unneeded snapshot must be removed"


def test_a_corrupted_segment_far_ahead_blocks_only_its_own_merge() -> None:
    blobs, clock = FaultyBlobs(), Clock()
    index = finish_work(filled(blobs, 100, max_num_buckets=3, clock=clock, retry_s=60))
    damage_segment(blobs, 0, 0)
    for entry in range(100, 3000):
        index.add((1, entry, -1), entry * 10, 0)
        clock.now += 0.2
        assert index.statistics().loaded < 250, "seals must not wait for the merge"
    finish_work(index)
    assert index.statistics().operations["merge"].failed == 1
    assert len(blobs.generations()) <= 6
    assert 0 in blobs.generations(), "kept until it is due"
    blobs.close()
    index = SpillingIndex(blobs)
    assert sorted(drained(index)) == [(1, entry, -1) for entry in range(3000)]


@pytest.mark.parametrize("cancel", [True, False])
def test_an_executor_that_was_shut_down_loses_no_key(cancel: bool) -> None:
    blobs, executor = MemoryBlobs(), DeferredExecutor()
    index = filled(blobs, 150, executor=executor)
    if not cancel:
        executor.run()
    executor.shutdown(cancel_futures=cancel)
    for entry in range(150, 400):
        index.add((1, entry, -1), entry * 10, 0)
    finish_work(index)
    assert len(blobs.generations()) > 1
    index._check()
    again = SpillingIndex(blobs)
    assert drained(again) == [(1, entry, -1) for entry in range(400)]
    index.close()


def test_a_clock_set_back_delays_and_loses_no_key() -> None:
    blobs = MemoryBlobs()
    index = filled(blobs, 300)
    assert len(index.pop_due(1000)) == 101
    assert not index.pop_due(500)
    index.add((2, 1, -1), 700, 0)
    assert index.next_due() == 700
    assert list(index.pop_due(700)) == [(2, 1, -1)]
    assert len(index.pop_due(3000)) == 199


def test_a_cleared_index_is_empty_after_a_restart() -> None:
    blobs = FaultyBlobs()
    index = filled(blobs, 350)
    index.clear()
    assert len(index) == 0 and index.next_due() is None
    assert not drained(SpillingIndex(blobs.fork())), "the clear must be durable at once"
    finish_work(index)
    assert not blobs.generations()
    index.add((1, 5, -1), 7, 0)
    index.close()
    assert drained(SpillingIndex(blobs)) == [(1, 5, -1)]


def test_snapshots_that_are_used_up_are_removed() -> None:
    blobs = MemoryBlobs()
    index = filled(blobs, 1000)
    drained(index)
    finish_work(index)
    index.flush()
    assert blobs.generations() == []
    assert index.statistics().bucket_snapshot_size_bytes == 0
    assert index._membership.left.to_array().tolist() == []


def test_discard_through_removes_snapshots() -> None:
    blobs = MemoryBlobs()
    index = finish_work(filled(blobs, 1000))
    assert len(blobs.generations()) == 9
    assert index.discard_through(1, 879) == 880
    finish_work(index)
    assert blobs.generations() == [8]
    assert len(drained(index)) == 120


def test_more_snapshots_than_allowed_are_merged() -> None:
    blobs = FaultyBlobs()
    index = filled(blobs, 3000, max_num_buckets=4)
    finish_work(index)
    assert len(blobs.generations()) <= 5
    assert index.statistics().operations["merge"].succeed >= 5
    index._check()
    assert drained(index) == [(1, entry, -1) for entry in range(3000)]


def test_an_id_is_copied_a_logarithmic_number_of_times() -> None:
    def written(count: int) -> float:
        blobs = FaultyBlobs()
        index = finish_work(filled(blobs, count, max_num_buckets=8, journal=False))
        index.close()
        return blobs.writes / count

    assert written(16_000) < 2.5 * written(2000)


def test_a_start_reads_no_segment_and_a_drain_each_one_once() -> None:
    blobs = FaultyBlobs()
    index = finish_work(filled(blobs, 2000))
    index.close()
    blobs.reads = 0
    index = SpillingIndex(blobs)
    assert blobs.reads == 0
    assert (1, 700, -1) in index and len(index) == 2000
    assert blobs.reads == 0
    segments = sum(len(segments_of(blobs, each)) for each in blobs.generations())
    drained(index)
    assert blobs.reads == segments >= 100


def test_only_segments_that_are_near_are_in_memory() -> None:
    blobs = MemoryBlobs()
    index = filled(blobs, 0, min_index_count_per_bucket=500)
    rng = random.Random(5)
    for entry in range(10_000):
        index.add((1, entry, -1), rng.randrange(10**6), 0)
        assert index.statistics().loaded < 2000
    finish_work(index)
    while index:
        head = index.next_due()
        assert head is not None
        index.done(index.pop_due(head))
        assert index.statistics().loaded < 2000


def test_keys_of_one_due_time_span_segments_in_order() -> None:
    blobs = MemoryBlobs()
    index = SpillingIndex(
        blobs, min_index_count_per_bucket=500, max_indexes_per_bucket_snapshot_segment=50
    )
    keys: list[MessageKey] = [(ledger, entry, -1) for ledger in (1, 2) for entry in range(1000)]
    for key in random.Random(1).sample(keys, len(keys)):
        index.add(key, 5000, 0)
    finish_work(index)
    first = list(index.pop_due(5000, 120))
    assert len(first) == 120 and first == sorted(first)
    batch = index.pop_due(5000)
    assert sorted([*first, *batch]) == keys
    assert [ledger for ledger, _ in batch.entries] == [1, 2]


def test_segments_end_with_the_time_step() -> None:
    blobs = MemoryBlobs()
    index = finish_work(filled(blobs, 100, max_time_step_per_bucket_snapshot_segment_seconds=0.1))
    (generation,) = blobs.generations()
    assert len(segments_of(blobs, generation)) == 10
    assert len(drained(index)) == 100


def test_an_index_with_an_executor_gives_the_same_keys(tmp_path: Path) -> None:
    rng = random.Random(8)
    with ThreadPoolExecutor(1) as executor:
        index = SpillingIndex(
            DirectoryBlobs(tmp_path),
            executor=executor,
            min_index_count_per_bucket=200,
            max_indexes_per_bucket_snapshot_segment=30,
            max_num_buckets=3,
            fsync="none",
        )
        model: dict[MessageKey, int] = {}
        now_ms = 0
        for entry in range(8000):
            key = (1, entry, -1)
            model[key] = now_ms + rng.randrange(3000)
            index.add(key, model[key], 0)
            if not entry % 5:
                other = (1, rng.randrange(entry + 1), -1)
                assert index.discard(other) is (model.pop(other, None) is not None)
            if not entry % 50:
                now_ms += 100
                batch = index.pop_due(now_ms)
                assert sorted(batch) == sorted(key for key in model if model[key] <= now_ms)
                for key in batch:
                    del model[key]
                index.done(batch)
        assert len(index) == len(model)
        index._check()
        index.close()
        index = SpillingIndex(DirectoryBlobs(tmp_path), executor=executor)
        assert sorted(drained(index)) == sorted(model)
        index.close()


@pytest.mark.parametrize("fsync", ["none", "interval", "always"])
def test_every_sync_policy_survives_the_death_of_the_process(fsync: str) -> None:
    blobs = FaultyBlobs()
    index = filled(blobs, 130, fsync=fsync, fsync_interval_s=0)
    index.discard((1, 7, -1))
    again = SpillingIndex(blobs.fork())
    assert len(drained(again)) == 129
    index.close()


def test_the_error_names_an_argument_out_of_range() -> None:
    for name, value in (
        ("min_index_count_per_bucket", 0),
        ("max_time_step_per_bucket_snapshot_segment_seconds", 0),
        ("max_indexes_per_bucket_snapshot_segment", 0),
        ("max_num_buckets", -2),
        ("fsync", "sometimes"),
        ("fsync_interval_s", -1),
        ("max_journal_bytes", 0),
        ("retry_s", -1),
    ):
        with pytest.raises(ConfigurationError, match=name):
            SpillingIndex(MemoryBlobs(), **{name: value})  # type: ignore[arg-type]


def test_a_journal_exceeds_its_limit_only_briefly() -> None:
    blobs = MemoryBlobs()
    index = SpillingIndex(blobs, max_journal_bytes=20_000)
    for turn in range(3000):
        index.add((1, turn % 5, -1), turn, 0)
        index.discard((1, turn % 5, -1))
    finish_work(index)
    size = sum(len(blobs.read_journal(number)) for number in blobs.journals())
    assert size < 25_000


def test_journal_size_bytes_is_the_amount_a_start_reads() -> None:
    """This includes the journals of a head that is not in a snapshot yet."""
    blobs = FaultyBlobs()

    def there() -> int:
        return sum(len(blobs.read_journal(number)) for number in blobs.journals())

    index = filled(blobs, 70)
    assert index.statistics().journal_size_bytes == there() > 0
    index = filled(blobs, 0)
    assert index.statistics().journal_size_bytes == there()
    write, blobs.write_manifest = blobs.write_manifest, unwritable  # type: ignore[method-assign]
    for entry in range(70, 150):
        index.add((1, entry, -1), entry * 10, 0)
    assert len(blobs.journals()) > 1
    assert index.statistics().journal_size_bytes == there()
    blobs.write_manifest = write  # type: ignore[method-assign]
    index.flush()
    index.close()
    assert index.statistics().journal_size_bytes == there()


def unwritable(data: bytes, *, sync: bool) -> None:
    raise StoreError("could not write: Input/output error")


def test_stored_values_begin_with_magic_and_version() -> None:
    blobs = MemoryBlobs()
    finish_work(filled(blobs, 150))
    manifest = blobs.read_manifest()
    assert manifest is not None and manifest[:6] == b"PEMF\x01\x00"
    assert int.from_bytes(manifest[12:16], "little") == zlib.crc32(manifest[16:])
    assert blobs.meta(0)[:6] == b"PESN\x01\x00"
    assert blobs.read_journal(blobs.journals()[-1])[:6] == b"PEJL\x01\x00"


# Wrong arguments


@pytest.mark.parametrize(
    ("key", "due_ms", "bits"),
    [
        ((1, 2), 5, 0),
        (None, 5, 0),
        ("abc", 5, 0),
        ((1.0, 2, -1), 5, 0),
        ((1, 2, None), 5, 0),
        ((1, 2, -1), 5.5, 0),
        ((1, 2, -1), None, 0),
        ((1, 2, -1), 5, None),
        ((1, 2, -1), 5, "8"),
        ((1, 2, -2), 5, 0),
        ((1, 2, -1), -5, 0),
    ],
)
def test_an_invalid_key_or_time_raises_and_changes_nothing(
    key: Any, due_ms: Any, bits: Any
) -> None:
    with SpillingIndex(MemoryBlobs()) as index:
        index.add((1, 2, -1), 7, 0)
        for call in (index.add, index.move):
            with pytest.raises(ConfigurationError):
                call(key, due_ms, bits)
        if key != (1, 2, -1):
            with pytest.raises(ConfigurationError):
                index.discard(key)
        assert list(index.pop_due(7)) == [(1, 2, -1)] and not len(index)


@pytest.mark.parametrize(
    "options",
    [
        {"blobs": None},
        {"blobs": "somewhere"},
        {"min_index_count_per_bucket": 1.5},
        {"min_index_count_per_bucket": "5"},
        {"max_time_step_per_bucket_snapshot_segment_seconds": float("inf")},
        {"max_indexes_per_bucket_snapshot_segment": 0},
        {"max_num_buckets": True},
        {"retry_s": float("nan")},
        {"fsync_interval_s": "1"},
        {"journal": "yes"},
        {"executor": 5},
        {"fsync": "often"},
    ],
)
def test_the_error_names_an_invalid_option(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        SpillingIndex(**{"blobs": MemoryBlobs(), **options})


def test_a_limit_that_is_not_a_number_raises() -> None:
    limit: Any
    with SpillingIndex(MemoryBlobs()) as index:
        for limit in (1.5, "1", -1):
            with pytest.raises(ConfigurationError, match="limit"):
                index.pop_due(5, limit)
    with pytest.raises(ClosedError):
        index.add((1, 2, -1), 5, 0)
