"""The README and the page of benchmarks show the published results."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.figures.why import CHARTS, RESULTS, chart, comparisons, throughput
from integration.benchmarks import publish, suite
from integration.benchmarks.report.charts import charts_of, draw, file_name
from integration.benchmarks.report.palette import DARK, LIGHT, PALETTES, Palette
from integration.benchmarks.report.results import Results, read

README = Path(__file__).resolve().parents[2] / "README.md"
FILES = sorted([*CHARTS, *publish.FOLDER.glob("*.svg")])
READABLE, VISIBLE = 4.5, 3.0  # least contrasts of text, and of bars and lines
COLOUR = r"#[0-9a-f]{6}"


def texts_of(svg: str) -> list[str]:
    """Return the texts of a chart, with its title and description."""
    found = (each.text for each in ElementTree.fromstring(svg).iter() if "}style" not in each.tag)
    return [text.strip() for text in found if text and text.strip()]


def contrast(colour: str, background: str) -> float:
    """Return the contrast of two colours (WCAG 2.2, relative luminance)."""

    def luminance(text: str) -> float:
        shares = [int(text[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [
            each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in shares
        ]
        return sum(
            factor * each for factor, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
        )

    low, high = sorted((luminance(colour), luminance(background)))
    return (high + 0.05) / (low + 0.05)


@pytest.fixture
def results() -> Results:
    return read(RESULTS)


def test_the_committed_charts_of_the_readme_are_those_of_the_results(results: Results) -> None:
    for file, palette in CHARTS.items():
        drawn = chart(results, palette)
        assert file.read_text("utf-8") == drawn, "run python -m docs.figures.why"
    light, dark = (texts_of(chart(results, palette)) for palette in PALETTES)
    assert light == dark


def test_the_readme_shows_the_chart_of_the_theme_and_falls_back_to_the_light_one() -> None:
    (picture,) = re.findall(r"<picture>.*?</picture>", README.read_text("utf-8"))
    light, dark = (f"docs/figures/{file.name}" for file in CHARTS)
    assert f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">' in picture
    # PyPI removes <source>, and keeps <img>.
    assert re.search(rf'<img alt="[^"]+" src="{light}">', picture)


def test_a_published_chart_has_two_variants_with_the_same_texts() -> None:
    light = [each for each in publish.FOLDER.glob("*.svg") if not each.stem.endswith("-dark")]
    assert len(light) > 50
    for each in light:
        dark = each.with_stem(f"{each.stem}{DARK.suffix}")
        texts = texts_of(each.read_text("utf-8"))
        assert len(texts) > 5
        assert texts == texts_of(dark.read_text("utf-8")), each.name


@pytest.mark.parametrize("palette", PALETTES, ids=["light", "dark"])
@pytest.mark.parametrize("kind", ["ratios", "lines", "bars"])
def test_a_chart_drawn_from_the_results_has_the_texts_of_the_published_one(
    results: Results, kind: str, palette: Palette, tmp_path: Path
) -> None:
    drawn = [each for section in results.sections for each in charts_of(section)]
    smallest = min((each for each in drawn if each.kind == kind), key=lambda each: len(each.rows))
    draw(smallest, tmp_path, ("svg",), palette)
    name = file_name(smallest, palette)
    published = (publish.FOLDER / name).read_text("utf-8")
    assert texts_of((tmp_path / name).read_text("utf-8")) == texts_of(published)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_texts_of_a_chart_have_enough_contrast(file: Path) -> None:
    palette = DARK if file.stem.endswith(DARK.suffix) else LIGHT
    svg = file.read_text("utf-8")
    behind = re.search(rf"fill(?:: |=\")({COLOUR})", svg)  # the first shape is the background
    assert behind is not None and behind[1] == palette.background
    for tag in re.findall(r"<text [^>]*>", svg):
        colour = re.search(rf"fill(?:: |=\")({COLOUR})", tag)
        assert colour is not None, tag
        assert contrast(colour[1], behind[1]) >= READABLE, tag


@pytest.mark.parametrize("palette", PALETTES, ids=["light", "dark"])
def test_bars_and_lines_are_visible(palette: Palette) -> None:
    for colour in (palette.good, palette.missed, palette.muted, palette.other, *palette.lines):
        assert contrast(colour, palette.background) >= VISIBLE, colour


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
    names = publish.file_names(each for section in results.sections for each in charts_of(section))
    assert {each.name for each in publish.FOLDER.glob("*.svg")} == names


def test_the_published_results_are_of_a_whole_run(results: Results) -> None:
    """Measured in seven pairs, without a failure, at a commit."""
    assert results.pairs == 7
    assert [section.name for section in results.sections if section.failure] == []
    assert "changes" not in results.described["commit"]
    assert results.described["machine"]["cores"] >= 1
    assert {"python", "pulsar-client", "pulsar-encore"} <= results.described["versions"].keys()


@pytest.mark.parametrize("page", ["benchmarks.md", "performance.md", "scale.md"])
def test_a_page_names_only_benchmarks_that_exist(page: str) -> None:
    text = (README.parent / "docs" / page).read_text("utf-8")
    named = re.findall(r"make bench ONLY=\"?([a-z_ ]+)", text)
    named += re.findall(r"\(([a-z]+_[a-z_]+|workers|throughput|producing|demo|scale)[,)]", text)
    assert named
    assert {name for each in named for name in each.split()} <= {*suite.NAMES, "name"}
