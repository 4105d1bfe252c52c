"""The report of `make bench`: its files, its progress, and its exit codes."""

from __future__ import annotations

import io
import json
import platform
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from integration.benchmarks import __main__ as command
from integration.benchmarks import suite
from integration.benchmarks.report import charts, machine, page, results
from integration.benchmarks.report.progress import Progress, remaining_s
from integration.benchmarks.rows import Row
from integration.benchmarks.trial import Benchmark, Trial

MET = Row(
    what="acks", unit="us", ours=(1.0, 2.0), other=(2.0, 3.0), beside="stock", bar=1.0, note="n"
)
MISSED = Row(what="<nacks>", unit="us", ours=(4.0, 4.0), other=(2.0, 2.0), beside="stock", bar=1.0)


def _benchmark(
    name: str, *rows: Row, error: BaseException | None = None, missing: str = ""
) -> Benchmark:
    def run(trial: Trial) -> Iterator[Row]:
        trial.step("a part")
        yield from rows
        if error is not None:
            raise error

    return Benchmark(
        name=name,
        title=f"The {name}",
        about="About it.",
        seconds=10,
        quick_s=None if name == "long" else 1,
        run=run,
        available=lambda: missing,
    )


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    monkeypatch.setenv("PYTHONPATH", "")
    output = io.StringIO()
    made = Console(file=output, width=200)
    monkeypatch.setattr(command, "Console", lambda **_: made)
    return output


def _run(
    monkeypatch: pytest.MonkeyPatch, out: Path, *benchmarks: Benchmark, words: str = ""
) -> int:
    monkeypatch.setattr(suite, "load", lambda _only: list(benchmarks))
    return command.main([*words.split(), "--out", str(out)])


def test_a_run_writes_results_charts_and_a_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shown: io.StringIO
) -> None:
    assert _run(monkeypatch, tmp_path, _benchmark("acks", MET, MISSED)) == 0
    found = results.read(tmp_path)
    assert found.rows == [MET, MISSED]
    (document,) = json.loads((tmp_path / results.FILE).read_text())["sections"]
    assert document["rows"][1]["ratio"] == {"low": 2.0, "median": 2.0, "high": 2.0}
    assert document["rows"][1]["verdict"] == "missed by 100%"
    text = (tmp_path / page.PAGE).read_text()
    assert "missed by 100%" in text
    assert "&lt;nacks&gt;" in text
    (chart,) = charts.charts_of(found.sections[0])
    assert f'src="{chart.name}.svg"' in text
    assert (tmp_path / f"{chart.name}.png").stat().st_size > 1000
    assert "1 of 2 bars were met" in shown.getvalue()
    missed = "<nacks>, beside stock: 2, and the bar is at most 1 (missed by 100%)"
    assert missed in shown.getvalue()
    assert missed.replace("<", "&lt;").replace(">", "&gt;") in text


def test_a_missed_bar_fails_a_strict_run_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shown: io.StringIO
) -> None:
    assert _run(monkeypatch, tmp_path, _benchmark("acks", MISSED), words="--strict") == 1
    assert _run(monkeypatch, tmp_path, _benchmark("acks", MET), words="--strict") == 0


def test_a_failed_benchmark_keeps_its_rows_and_does_not_stop_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shown: io.StringIO
) -> None:
    failing = _benchmark("first", MET, error=AssertionError("nobody listens there"))
    assert _run(monkeypatch, tmp_path, failing, _benchmark("second", MET)) == 1
    first, second = results.read(tmp_path).sections
    assert first.rows == second.rows == [MET]
    assert first.failure == "AssertionError: nobody listens there"
    assert "nobody listens there" in (tmp_path / page.PAGE).read_text()
    assert "first failed: AssertionError: nobody listens there" in shown.getvalue()
    assert "Failed: first: AssertionError" in shown.getvalue()


def test_a_benchmark_without_rows_has_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shown: io.StringIO
) -> None:
    assert _run(monkeypatch, tmp_path, _benchmark("empty"), _benchmark("second", MET)) == 1
    assert "empty failed: It measured nothing." in shown.getvalue()


def test_a_benchmark_that_hangs_is_ended_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shown: io.StringIO
) -> None:
    def hang(_trial: Trial) -> Iterator[Row]:
        yield MET
        time.sleep(60)

    monkeypatch.setattr(suite, "limit_s", lambda *_: 0.05)
    hanging = replace(_benchmark("first"), run=hang)
    assert _run(monkeypatch, tmp_path, hanging, _benchmark("second", MET)) == 1
    first, second = results.read(tmp_path).sections
    assert first.rows == second.rows == [MET]
    assert first.failure.startswith("BenchmarkTimeoutError: ended after")


def test_a_benchmark_that_cannot_be_imported_fails_when_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shown: io.StringIO
) -> None:
    monkeypatch.setitem(sys.modules, "integration.benchmarks.latency", None)
    (broken,) = suite.load(["latency"])
    assert _run(monkeypatch, tmp_path, broken) == 1
    assert "latency failed: ModuleNotFoundError" in shown.getvalue()


def test_a_limit_is_longer_for_more_pairs() -> None:
    made = replace(_benchmark("acks"), seconds=200.0)
    assert suite.limit_s(made, Trial(pairs=1)) == suite.limit_s(made, Trial()) == 1000
    assert suite.limit_s(made, Trial(pairs=14)) == 2000
    assert suite.limit_s(made, Trial(quick=True)) == 600


@pytest.mark.parametrize(
    ("options", "shared", "build"),
    [
        (
            "'--enable-shared' '--prefix=/opt'",
            1,
            "without --enable-optimizations, shared libpython",
        ),
        (
            "'--enable-optimizations' '--with-lto'",
            0,
            "with --enable-optimizations, with LTO, static libpython",
        ),
        (None, 0, ""),
    ],
)
def test_the_report_names_the_build_of_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: str | None, shared: int, build: str
) -> None:
    build = build.format("--enable-optimizations")
    monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": options}.get)
    monkeypatch.setattr(machine, "_is_shared", lambda: bool(shared))
    described = machine.described(tmp_path)
    assert described["versions"]["python_build"] == build
    run = results.Results(command="", begun="", pairs=7, described=described)
    python = f"CPython {platform.python_version()}"
    assert f"- Python: {python}{', ' if build else ''}{build}\n" in page.markdown(run, {})


def test_the_whole_run_takes_less_than_an_hour_and_a_quick_run_three_minutes() -> None:
    benchmarks = suite.load([])
    assert sum(each.seconds for each in benchmarks) < 3600
    assert sum(each.quick_s for each in benchmarks if each.quick_s is not None) < 210


def test_an_interrupted_run_reports_the_benchmarks_that_had_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shown: io.StringIO
) -> None:
    stopped = _benchmark("second", MET, error=KeyboardInterrupt())
    assert _run(monkeypatch, tmp_path, _benchmark("first", MET), stopped) == 130
    assert [each.name for each in results.read(tmp_path).sections] == ["first"]
    assert "The first" in (tmp_path / page.PAGE).read_text()


def test_a_benchmark_that_cannot_run_here_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shown: io.StringIO
) -> None:
    assert _run(monkeypatch, tmp_path, _benchmark("java", MET, missing="no Maven")) == 0
    (section,) = results.read(tmp_path).sections
    assert (section.rows, section.skipped) == ([], "no Maven")
    assert "did not run: no Maven" in (tmp_path / page.PAGE).read_text()
    assert "Did not run: java: no Maven" in shown.getvalue()


def test_a_quick_run_leaves_out_what_takes_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shown: io.StringIO
) -> None:
    both = (_benchmark("long", MET), _benchmark("short", MET))
    assert _run(monkeypatch, tmp_path, *both, words="--quick") == 0
    found = results.read(tmp_path)
    assert [each.name for each in found.sections] == ["short"]
    assert found.pairs == 3


def test_the_error_for_an_unknown_benchmark_lists_the_names(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert command.main(["--only", "speed", "--out", str(tmp_path)]) == 2
    assert "'speed'; there are: demo, throughput" in capsys.readouterr().err


def test_every_listed_benchmark_has_its_name() -> None:
    assert [each.name for each in suite.load([])] == list(suite.NAMES)


def test_a_row_of_a_single_pair_has_no_chart() -> None:
    once = Row(what="once", unit="s", ours=(1.0,), other=(2.0,), beside="stock")
    section = results.Section(name="s", title="S", about="", rows=[once, MET])
    assert [chart.rows for chart in charts.charts_of(section)] == [(MET,)]


def test_a_figure_that_is_measured_once_is_drawn_as_a_bar(tmp_path: Path) -> None:
    def row(what: str, other: float, beside: str) -> Row:
        once = {"unit": "MB", "ours": (2.0,), "other": (other,), "beside": beside}
        return Row(what=what, chart="Memory", bars=True, **once)  # type: ignore[arg-type]

    rows = [row("1/ms", 448.0, "stock"), row("1/ms", 90.0, "heap"), row("8/ms", 447.0, "stock")]
    section = results.Section(name="memory", title="M", about="", rows=[*rows, MET])
    ratios, bars = charts.charts_of(section)
    assert (ratios.rows, bars.kind) == ((MET,), "bars")
    assert bars.text == (
        "1/ms: 2 MB pulsar-encore, 448 MB stock, 90 MB heap; 8/ms: 2 MB pulsar-encore, 447 MB stock"
    )
    charts.draw(bars, tmp_path)
    text = (tmp_path / f"{bars.name}.svg").read_text()
    assert text.count(">pulsar-encore<") == 2
    assert all(f">{word}<" in text for word in ("Memory", "1/ms", "heap", "448", "MB"))


def test_a_series_is_kept_in_the_results(tmp_path: Path) -> None:
    row = Row(
        what="memory",
        unit="MB",
        ours=(80.0,),
        series=((0.0, 80.0), (1.0, 81.5)),
        x_axis="minutes",
        y_axis="MB",
    )
    section = results.Section(name="hour", title="H", about="", rows=[row])
    described = {"machine": {}, "versions": {}, "commit": ""}
    run = results.Results(command="", begun="", pairs=1, described=described, sections=[section])
    run.write(tmp_path)
    assert results.read(tmp_path).rows == [row]


def test_series_of_one_chart_are_drawn_as_lines(tmp_path: Path) -> None:
    growing = [
        Row(
            what=what,
            unit="MB",
            ours=(2.0,),
            chart="Growth",
            series=((0.0, 1.0), (1.0, 2.0)),
            x_axis="minutes",
            y_axis="MB",
            label=label,
        )
        for what, label in (("one", ""), ("most of two", "two"))
    ]
    section = results.Section(name="hour", title="H", about="", rows=[*growing, MET])
    ratios, lines = charts.charts_of(section)
    assert (ratios.rows, ratios.kind) == ((MET,), "ratios")
    assert (lines.rows, lines.kind) == (tuple(growing), "lines")
    charts.draw(lines, tmp_path)
    text = (tmp_path / f"{lines.name}.svg").read_text()
    assert all(f">{word}<" in text for word in ("Growth", "minutes", "one", "two"))
    assert "most of" not in text


def test_results_of_another_version_are_refused(tmp_path: Path) -> None:
    (tmp_path / results.FILE).write_text('{"sections": [], "speed": 1}')
    with pytest.raises(ValueError, match="another version"):
        results.read(tmp_path)


def test_the_remaining_time_follows_the_pace_of_the_machine() -> None:
    assert remaining_s([], None, [10, 20]) == 30
    assert remaining_s([], (10, 4), [20]) == 26
    assert remaining_s([(10, 30)], (10, 10), [20]) == 80  # three times slower than expected
    assert remaining_s([], (10, 15), []) == 0


def test_a_file_gets_a_line_in_fifteen_seconds() -> None:
    now = 0.0
    output = io.StringIO()
    progress = Progress(Console(file=output, width=200), [60, 600], now=lambda: now)
    progress.begin("Acks")
    for now in range(40):
        progress.step(f"part {now}")
    assert progress.end() == 39
    progress.begin("Nacks")
    lines = output.getvalue().splitlines()
    assert lines == [
        "1 of 2: Acks · about 11 min left",
        "1 of 2: Acks · part 15 · about 11 min left",
        "1 of 2: Acks · part 30 · about 10 min left",
        "2 of 2: Nacks · about 6 min left",
    ]
