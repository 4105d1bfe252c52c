"""The structures and the arithmetic of the benchmarks of pending nacks."""

from __future__ import annotations

import pytest

from integration.benchmarks import nack_growth, precision, time_buckets
from integration.benchmarks.nack_structures import STRUCTURES, OurIndex, fill, in_order
from integration.benchmarks.time_buckets import Figures, Shape, Subject


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_drains_the_due_keys_once(name: str) -> None:
    structure = STRUCTURES[name]()
    filled = fill(structure.add, in_order(2, 0, 1000))
    assert (filled.keys, filled.latest) == (1000, 499)
    assert [structure.drain(now_ms) for now_ms in (99, 99, 499, 10_000)] == [200, 0, 800, 0]


@pytest.mark.parametrize("kind", precision.KINDS)
def test_rounding_is_late_by_half_a_bucket_on_average(kind: str) -> None:
    index = OurIndex()
    fill(index.add, precision.arrivals(kind, 8, 10_000))
    mean, most = precision.rounding_of(index, kind, 8, 10_000)
    assert 120 < mean < 135
    assert most == 255


def test_rounding_of_a_key_that_is_not_in_the_index_fails() -> None:
    with pytest.raises(RuntimeError, match="is due at None instead of"):
        precision.rounding_of(OurIndex(), "dense", 8, 10)


def test_nacks_wait_until_the_first_is_due() -> None:
    stream = nack_growth.Stream(3600, 1)
    assert nack_growth.waiting(30, stream, 10_000) == 18_000_000
    assert nack_growth.waiting(66, stream, 10_000) == 36_000_000


def test_simulated_nacks_are_drained_after_their_delay() -> None:
    points = nack_growth.grow(nack_growth.Stream(60, 10), 10)
    assert points[0][0] == pytest.approx(2 / 60)
    assert points[-1][0] == pytest.approx(66 / 60)


def test_an_absent_java_leaves_rows_that_say_so_and_promise_nothing() -> None:
    shape = Shape(1, 10)
    stock = Subject(name="stock", measure=lambda _shape, _entries, _drain: Figures(0, 0, 0))
    figures = {"index, 1/ms, 10 bits": [Figures(2, 300, 4e6)], "stock": [Figures(448, 3000, 0)]}
    add, drain = (
        list(time_buckets.rows_of(table, [shape], [stock], "no Java", figures))
        for table in (time_buckets.ADD, time_buckets.DRAIN)
    )
    assert [(row.beside, row.note, row.other) for row in (add[0], drain[0])] == [
        ("PIP-393 (Java)", "no Java", ())
    ] * 2
    assert {row.verdict for row in add + drain} == {""}
    assert [(row.beside, row.ours, row.other) for row in add[1:]] == [("stock", (300,), (3000,))]
    assert drain[1:] == []  # the stock client's tracker cannot be drained on demand
