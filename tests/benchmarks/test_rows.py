"""Ratios, quartiles and verdicts of the rows of benchmarks."""

from __future__ import annotations

import pytest

from integration.benchmarks.own_process import OwnProcessError, in_own_process
from integration.benchmarks.rows import Row, Spread, row_of, spread, spread_text
from integration.benchmarks.spark_source import query_rows
from integration.benchmarks.trial import Trial


def _row(**fields: object) -> Row:
    return Row(**{"what": "speed", "unit": "x", "ours": (2.0, 4.0, 9.0), **fields})  # type: ignore[arg-type]


def test_the_ratio_is_the_median_of_the_ratios_of_the_pairs() -> None:
    row = _row(other=(1.0, 4.0, 3.0), beside="stock")
    assert row.ratio == Spread(1.5, 2.0, 2.5)  # of 2, 1 and 3; not 4 / 3, the ratio of medians
    assert row.figure.median == 4.0


def test_a_single_figure_is_its_own_quartiles() -> None:
    assert spread((3.0,)) == Spread(3.0, 3.0, 3.0)
    assert spread_text(spread((3.0,))) == "3"
    assert spread_text(Spread(1.0, 2.0, 3000.0)) == "2 (1 to 3,000)"


def test_there_is_no_ratio_beside_zero() -> None:
    assert _row(other=(1.0, 0.0, 1.0)).ratio is None


@pytest.mark.parametrize(
    ("bar", "higher", "verdict"),
    [
        (None, False, ""),
        (4.0, False, "met"),
        (4.0, True, "met"),
        (2.0, False, "missed by 100%"),
        (5.0, True, "missed by 20%"),
        (4.02, True, "missed by 0.5%"),
        (0.0, False, "missed"),
    ],
)
def test_a_missed_bar_says_by_how_much(bar: float | None, higher: bool, verdict: str) -> None:
    row = _row(bar=bar, higher_is_better=higher)
    assert (row.verdict, row.met) == (verdict, not verdict.startswith("missed"))


def test_a_bar_bounds_the_ratio_if_there_is_one() -> None:
    assert _row(other=(4.0, 8.0, 18.0), bar=0.5).met
    assert not _row(other=(4.0, 8.0, 18.0), bar=0.4).met


@pytest.mark.parametrize("other", [(1.0,), (1.0, 2.0)])
def test_unpaired_figures_are_refused(other: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="speed: 3 and"):
        _row(other=other)


def test_a_series_needs_the_labels_of_its_axes() -> None:
    points = ((0.0, 80.0), (1.0, 81.0))
    assert _row(series=points, x_axis="minutes", y_axis="MB").series == points
    with pytest.raises(ValueError, match="speed: a series and the labels"):
        _row(series=points, x_axis="minutes")


def test_pairs_alternate_and_name_their_steps() -> None:
    order: list[str] = []
    steps: list[str] = []

    def measure(name: str) -> float:
        order.append(name)
        return float(len(order))

    trial = Trial(pairs=3, step=steps.append)
    pairs = trial.alternate("acks", lambda: measure("ours"), lambda: measure("other"))
    assert order == ["ours", "other", "other", "ours", "ours", "other"]
    assert pairs == ((1.0, 4.0, 5.0), (2.0, 3.0, 6.0))
    assert steps == ["acks, pair 1 of 3", "acks, pair 2 of 3", "acks, pair 3 of 3"]


def test_a_row_of_two_subjects_is_named_after_the_other_one() -> None:
    found = {"ours": [{"cpu": 1.0}, {"cpu": None}], "stock": [{"cpu": 2.0}, {"cpu": 4.0}]}
    row = row_of(found, "ours", "stock", "cpu", what="acks", unit="us")
    assert (row.ours, row.other, row.beside) == ((1.0, 0.0), (2.0, 4.0), "stock")
    assert row_of(found, "ours", "stock", "cpu", what="a", unit="us", beside="C++").beside == "C++"


def test_each_row_of_the_spark_source_has_a_name_of_its_own() -> None:
    names = ("one task", "two tasks", "tuples", "loop", "Parquet", "loop to Parquet")
    subjects = (*names, "connector", "connector to Parquet")
    results = {name: [{"per_s": 1.0, "cpu_us": 1.0}] for name in subjects}
    rows = list(query_rows(results, ""))
    assert len(rows) == 9
    assert len({row.what for row in rows}) == 9
    without = {name: results[name] for name in names}
    assert [
        row.note for row in query_rows(without, "no Maven") if row.what == "rate, one task"
    ] == ["no Maven"]


def test_a_measurement_that_failed_names_its_command_and_its_error() -> None:
    with pytest.raises(OwnProcessError, match=r"leases --case none (?s:.*)invalid choice"):
        in_own_process("leases", "--case", "none", "--count", 1)
