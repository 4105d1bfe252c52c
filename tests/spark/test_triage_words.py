"""Output of a triage: the table, the JSON and the chart, and the sums behind them."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
from matplotlib.image import imread

from pulsar_encore.spark.triage import (
    HourGroup,
    TriageReport,
    halted_text,
    report_json,
    report_text,
)
from pulsar_encore.spark.triage.chart import chart_png
from pulsar_encore.spark.triage.tally import HourlyTally

HOME = "persistent://public/default/orders"
DEAD = f"{HOME}-billing-DLQ"
NOON_MS = 1_772_366_400_000
HOUR_MS = 3_600_000

BLUE, ORANGE, GREY = (0, 114, 178), (230, 159, 0), (153, 153, 153)


def group(fingerprint: str, count: int, hour: int = 0, **more: Any) -> HourGroup:
    given: dict[str, Any] = {
        "real_topic": HOME,
        "hour_ms": NOON_MS + hour * HOUR_MS,
        "first_ms": NOON_MS + hour * HOUR_MS,
        "last_ms": NOON_MS + hour * HOUR_MS + 60_000,
        "error_class": "KeyError",
        "error_message": "'price'",
    }
    return HourGroup(fingerprint=fingerprint, count=count, **(given | more))


def report(*groups: HourGroup, **more: Any) -> TriageReport:
    count = sum(each.count for each in groups)
    return TriageReport(
        topics=(DEAD,), letters=count, groups=list(groups), **({"kept": count} | more)
    )


# The sums


def test_batches_are_added_up() -> None:
    tally = HourlyTally()
    tally.add([group("a", 2, again=1, error_message="older")])
    tally.add([group("a", 3, last_ms=NOON_MS + 120_000, error_message="newer", sample_id="1:2:-1")])
    tally.add([group("a", 1, first_ms=NOON_MS - 5, last_ms=NOON_MS, error_message="oldest")])
    [found] = tally.result()
    assert (found.count, found.again, found.first_ms) == (6, 1, NOON_MS - 5)
    assert (found.last_ms, found.error_message) == (NOON_MS + 120_000, "newer")
    assert found.sample_id == "1:2:-1"


def test_the_number_of_groups_is_bounded() -> None:
    tally = HourlyTally(2)
    for number in range(5):
        tally.add([group(f"{number}", 1)], unlisted=2)
    assert [(each.fingerprint, each.count) for each in tally.result()] == [
        ("(others)", 13),
        ("0", 1),
        ("1", 1),
    ]


# Text


def test_a_line_sums_the_hours_of_a_failure() -> None:
    text = report_text(report(group("aaaa", 1200), group("bbbb", 700), group("aaaa", 3, 30)))
    lines = text.splitlines()
    assert lines[0] == "1,903 letters on orders-billing-DLQ"
    assert lines[2].split()[:3] == ["letters", "again", "fingerprint"]
    assert lines[3].split() == [
        *("1,203", "aaaa", "orders", "2026-03-01", "12:00Z", "2026-03-02", "18:01Z"),
        *("KeyError:", "'price'"),
    ]
    assert lines[4].split()[:2] == ["700", "bbbb"]
    assert lines[-1] == "nothing was sent or stored"


def test_the_report_says_which_actions_were_taken() -> None:
    done = report(
        group("aaaa", 6),
        replay_id="r1",
        replayed=3,
        selected=3,
        kept=1,
        refused=2,
        duplicates=4,
        reasons={"it has no REAL_TOPIC": 2},
        out="s3a://bucket/out",
        run="1-2-3",
        batches=1,
    )
    text = report_text(done)
    assert "6 letters, and 4 more of the same messages on" in text
    assert "3 were sent home (replay r1), 1 not selected" in text
    assert "2 cannot be sent:\n  2: it has no REAL_TOPIC" in text
    assert text.endswith("stored in s3a://bucket/out, run=1-2-3\n")
    done.dry_run, done.selected = True, 5
    assert "5 would be sent home" in report_text(done)
    assert "also those of earlier runs" in report_text(done)
    nothing = report(out="o")
    assert "nothing new since the last run" in report_text(nothing)


def test_the_report_of_an_interrupted_run_is_a_sentence() -> None:
    given = report(
        group("a", 7), replay_id="r1", duplicates=1, replayed=5, batches=2, out="o", run="x"
    )
    assert halted_text(given, checkpoint=True) == (
        "8 letters were stored in 2 batches, 5 of them sent home (replay r1); nothing is lost: run "
        "it again with the same checkpoint, which may send some letters of the interrupted batch "
        "a second time"
    )
    given.replay_id, given.batches = None, 1
    assert halted_text(given, checkpoint=True) == (
        "8 letters were stored in 1 batch; nothing is lost: run it again with the same checkpoint"
    )
    given.batches = 0
    assert halted_text(given, checkpoint=True).startswith("no batch was finished; nothing is lost")
    assert "the files in o under run=x are incomplete" in halted_text(given, checkpoint=False)
    for begun in (report(), None):
        assert "nothing was sent or stored" in halted_text(begun, checkpoint=False)
    assert "the same checkpoint" in halted_text(None, checkpoint=True)


def test_the_error_for_a_choice_without_matches_lists_the_failures() -> None:
    there = [
        group("a", 2),
        group("b", 3, error_class="TimeoutError"),
        group("c", 1, error_class=""),
    ]
    text = report_text(report(*there, replay_id="r"))
    assert "no letter is selected: the letters are of KeyError, TimeoutError, no class" in text
    assert "no letter is selected" not in report_text(
        report(*there, replay_id="r", selected=2, replayed=2)
    )
    assert "no letter is selected" not in report_text(report(replay_id="r"))


def test_untrusted_text_is_escaped() -> None:
    bad = "\x1b[2J\u202e\n"
    text = report_text(
        report(group(bad, 1, error_class=bad, error_message=bad, real_topic=HOME + bad))
    )
    assert text.count("\\x1b[2J\\u202e\\x0a") == 4
    assert not {"\x1b", "\u202e"} & set(text)


def test_a_long_list_of_failures_is_truncated() -> None:
    text = report_text(report(*(group(f"f{each:02}", 40 - each) for each in range(40))))
    assert "f29" in text
    assert "f30" not in text
    assert "and 10 more, 55 letters" in text


def test_json_has_every_group() -> None:
    given = report(group("aaaa", 2), group("aaaa", 1, 1, error_message="\x7f\x1b\u202e"))
    text = report_json(given)
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    found = json.loads(text)
    assert (found["letters"], found["topics"]) == (3, [DEAD])
    assert [each["hour_ms"] for each in found["groups"]] == [NOON_MS, NOON_MS + HOUR_MS]
    assert found["groups"][1]["error_message"] == "\x7f\x1b\u202e"


# The chart


def size_of(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def colours(png: bytes, row: int) -> list[tuple[int, int, int]]:
    """Return the runs of colours along one column of pixels, from the top."""
    line = (imread(io.BytesIO(png))[row, :, :3] * 255).round().astype(int).tolist()
    runs = [tuple(line[0])]
    runs += [tuple(each) for before, each in pairwise(line) if each != before]
    return [each for each in runs if each in (BLUE, ORANGE, GREY)]


def test_a_chart_is_a_png_with_a_line_for_each_failure() -> None:
    groups = [group(f"f{each}", 10 + each, each % 4) for each in range(9)]
    assert size_of(chart_png(groups[:1])) == (1200, 524)
    assert size_of(chart_png(groups)) == (1200, 692), "7 and the others"
    assert size_of(chart_png(groups, top=2)) == (1200, 572)
    assert size_of(chart_png([])) == (1200, 500)
    for wrong in (0, 8):
        with pytest.raises(ValueError, match="top"):
            chart_png(groups, top=wrong)


def test_bars_are_drawn_at_their_hours() -> None:
    """The bottom row of the bars has one hour each, one of them empty, with the largest failure
    lowest.
    """
    groups = [group("a", 50, 0), group("b", 20, 0), group("b", 20, 2), group("c", 15, 3)]
    low, high = 390, 250
    png = chart_png(groups, top=2)
    assert colours(png, low) == [BLUE, ORANGE, GREY]
    assert colours(png, high) == [BLUE]
    assert colours(chart_png([group("(others)", 3, hour_ms=None), *groups], top=2), low) == [
        *(BLUE, ORANGE, GREY)
    ]


@pytest.mark.parametrize("hours", [1, 59, 60, 61, 24 * 365, 24 * 365 * 50])
def test_any_span_of_time_can_be_drawn(hours: int) -> None:
    png = chart_png([group("a", 1), group("b", 1, hours)])
    assert size_of(png) == (1200, 548)
    assert colours(png, 300) == [BLUE, ORANGE]


def test_text_with_math_markup_or_missing_glyphs_is_drawn_literally() -> None:
    bad = "$\\frac{ \u4e2d\x1b[0m_"
    given = group(bad, 1, error_class=bad, error_message=bad)
    assert size_of(chart_png([given, group("_a", 1)], title=bad * 50)) == (1200, 548)


def test_a_chart_needs_no_display_and_no_global_state() -> None:
    code = (
        "import sys; from pulsar_encore.spark.triage.chart import chart_png; chart_png([]);"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
