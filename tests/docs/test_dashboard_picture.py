"""The picture of the dashboard is drawn from a recording of the dashboard's own queries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from docs.figures.dashboard import (
    DASHBOARD,
    PICTURES,
    SERIES,
    draw,
    formatted,
    legends,
    read_json,
)
from docs.figures.dashboard_incident import as_text, filled
from tests.docs.test_figures import READABLE, contrast, texts_of
from tests.harness.pages import text_of

RECORDED = read_json(SERIES)
PANELS = {panel["title"]: panel["targets"] for panel in RECORDED["panels"]}


def test_the_recording_has_the_panels_and_queries_of_the_dashboard() -> None:
    wanted = {
        panel["title"]: [(each["expr"], each["legendFormat"]) for each in panel["targets"]]
        for panel in read_json(DASHBOARD)["panels"]
        if panel["type"] != "row"
    }
    found = {
        title: [(each["expr"], each["legendFormat"]) for each in targets]
        for title, targets in PANELS.items()
    }
    assert found == wanted, "run python -m docs.figures.dashboard record, then draw"


def test_every_query_has_an_answer_with_a_point_for_each_step() -> None:
    steps = RECORDED["seconds"] // RECORDED["step_s"] + 1
    assert steps <= 121
    for title, targets in PANELS.items():
        for target in targets:
            assert target["series"], (title, target["expr"])
            for each in target["series"]:
                assert len(each["points"]) == steps
                assert any(value is not None for value in each["points"]), (title, each["labels"])


def highest(title: str, name: str) -> float:
    """Return the highest value of a line, by its name in the picture."""
    (points,) = [points for each, points in legends(PANELS[title]) if each == name]
    return max(value for value in points if value is not None)


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Messages in workers", "waiting"),
        ("Reconnects", "reconnects"),
        ("Reconnects", "breaker"),
        ("Handler calls", "ConnectionRefusedError"),
        ("Handler calls", "ValueError"),
        ("Letters", "retry"),
        ("Letters", "dead"),
        ("Nacks and redeliveries", "redelivered"),
        ("Unacked window", "billing"),
    ],
)
def test_the_incident_shows_in_the_panels(title: str, name: str) -> None:
    assert highest(title, name) > 0


def test_the_workers_stop_while_the_gateway_is_away_and_catch_up_after_it() -> None:
    points = dict(legends(PANELS["Deliveries and acks"]))["acked"]
    begin, end = (int(each) // RECORDED["step_s"] for each in RECORDED["away_s"])
    before = points[begin]
    assert before is not None
    assert points[end] == 0
    assert max(each or 0 for each in points[end:]) > 2 * before
    ((open_workers,),) = ([each["series"][0]["points"]] for each in PANELS["Breakers open"])
    assert max(open_workers) == 2
    ((letters,),) = (each["series"] for each in PANELS["Dead letters"])
    assert round(letters["value"]) == 8


@pytest.mark.parametrize("file", PICTURES, ids=lambda file: file.stem)
def test_the_committed_picture_is_that_of_the_recording(file: Any) -> None:
    palette = PICTURES[file]
    drawn = draw(read_json(DASHBOARD), RECORDED, palette)
    assert draw(read_json(DASHBOARD), RECORDED, palette) == drawn
    committed = file.read_text("utf-8")
    # Releases of matplotlib may round a line differently, and write the same texts.
    assert texts_of(drawn.decode()) == texts_of(committed), "run python -m docs.figures.dashboard"
    assert {*PANELS, "State", "Durations"} <= set(texts_of(committed))
    assert "no data" not in texts_of(committed)
    assert len(committed) < 400_000
    for colour in (palette.text, palette.lines[2], palette.missed):
        assert contrast(colour, palette.background) >= READABLE


def test_a_panel_without_an_answer_says_so() -> None:
    recorded = json.loads(SERIES.read_text("utf-8"))
    for panel in recorded["panels"]:
        if panel["title"] in ("Letters", "Workers ready"):
            for target in panel["targets"]:
                target["series"] = []
    picture = draw(read_json(DASHBOARD), recorded, next(iter(PICTURES.values())))
    assert texts_of(picture.decode()).count("no data") == 2


def test_the_recording_is_written_as_the_file_has_it() -> None:
    assert as_text(RECORDED) == SERIES.read_text("utf-8")
    assert {"prometheus", "python", "pulsar-encore"} == RECORDED["versions"].keys()


def test_a_query_gets_the_values_of_all_variables() -> None:
    dashboard = read_json(DASHBOARD)
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            assert "$" not in filled(target["expr"], dashboard)
    assert filled('m{topic=~"$topic"}[$__rate_interval]', dashboard) == 'm{topic=~".*"}[8s]'


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "ops", "0"),
        (0, "s", "0 s"),
        (0.0175, "s", "17.5 ms"),
        (0.25, "percentunit", "25 %"),
        (12.0, "ops", "12/s"),
        (50000, "short", "50,000"),
    ],
)
def test_a_value_has_its_unit(value: float, unit: str, text: str) -> None:
    assert formatted(value, unit) == text


def test_the_page_shows_the_picture_and_names_its_versions() -> None:
    page = text_of("recipes/prometheus.md")
    assert "](../figures/dashboard.svg)" in page
    assert "python -m docs.figures.dashboard record" in page
    assert f"Prometheus {RECORDED['versions']['prometheus'].partition('+')[0]}" in page
