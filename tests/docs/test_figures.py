"""The chart and the figures of the README are those of `docs/figures/demo.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from docs.figures.why import CHART, RESULTS, chart, comparisons

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.fixture
def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text("utf-8"))
    return found


def test_the_committed_chart_is_the_chart_of_the_results(results: dict[str, Any]) -> None:
    assert CHART.read_text("utf-8") == chart(results), "run python docs/figures/why.py"


def test_the_chart_follows_the_results(results: dict[str, Any]) -> None:
    results["figures"]["pending_memory"]["native"]["mb"] = 777.7
    texts = [each.text for each in ElementTree.fromstring(chart(results)).iter()]
    assert "777.7 MB" in texts


def test_each_line_of_the_readme_states_the_figures_of_one_comparison(
    results: dict[str, Any],
) -> None:
    section = README.read_text("utf-8").partition("## Why")[2].partition("\n## ")[0]
    lines = [each for each in section.splitlines() if each.startswith("- ")]
    compared = comparisons(results)
    assert len(lines) == len(compared) == 6
    for line, each in zip(lines, compared, strict=True):
        for text in each.texts:
            assert f" {text}" in line, each.title
    assert f"{results['figures']['throughput']['stock sync']['per_s']:,.0f}" in lines[-1]
    assert f"`pulsar-client` {results['versions']['pulsar-client']} " in section


def test_the_results_name_the_machine_and_the_versions(results: dict[str, Any]) -> None:
    assert results["machine"]["cores"] >= 1
    assert results["versions"].keys() == {"python", "pulsar-client", "pulsar-encore"}
