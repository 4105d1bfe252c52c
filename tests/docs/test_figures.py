"""The README and the page of benchmarks show the published results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.figures.why import CHART, RESULTS, chart, comparisons, throughput
from integration.benchmarks import publish
from integration.benchmarks.report.charts import charts_of
from integration.benchmarks.report.results import Results, read

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.fixture
def results() -> Results:
    return read(RESULTS)


def test_the_committed_chart_is_the_chart_of_the_results(results: Results) -> None:
    assert CHART.read_text("utf-8") == chart(results), "run python -m docs.figures.why"


def test_the_chart_follows_the_results(results: Results) -> None:
    demo = next(section for section in results.sections if section.name == "demo")
    place, row = next((at, row) for at, row in enumerate(demo.rows) if row.unit == "MB")
    demo.rows[place] = replace(row, ours=(777.7,))
    texts = [each.text for each in ElementTree.fromstring(chart(results)).iter()]
    assert "777.7 MB" in texts


def test_each_line_of_the_readme_states_the_figures_of_one_comparison(results: Results) -> None:
    section = README.read_text("utf-8").partition("## Why")[2].partition("\n## ")[0]
    lines = [each for each in section.splitlines() if each.startswith("- ")]
    compared = comparisons(results)
    assert len(lines) == len(compared) == 6
    for line, each in zip(lines, compared, strict=True):
        for text in each.texts:
            assert f" {text}" in line, each.title
    sync = throughput(results, "stock sync").other_figure
    assert sync is not None
    assert f"{sync.median:,.0f}" in lines[-1]
    versions = results.described["versions"]
    assert f"`pulsar-client` {versions['pulsar-client']} " in section
    assert f"{versions['python']} ({versions['python_build']})" in section


def test_the_published_tables_are_those_of_the_results(results: Results) -> None:
    text = (publish.FOLDER / publish.TABLES).read_text("utf-8")
    assert text == publish.tables(results), "run python -m integration.benchmarks.publish"
    names = {f"{each.name}.svg" for section in results.sections for each in charts_of(section)}
    assert {each.name for each in publish.FOLDER.glob("*.svg")} == names


def test_the_published_results_are_of_a_whole_run(results: Results) -> None:
    """Measured in seven pairs, without a failure, at a commit."""
    assert results.pairs == 7
    assert [section.name for section in results.sections if section.failure] == []
    assert "changes" not in results.described["commit"]
    assert results.described["machine"]["cores"] >= 1
    assert {"python", "pulsar-client", "pulsar-encore"} <= results.described["versions"].keys()
