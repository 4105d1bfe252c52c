"""The Python block of `docs/scale.md` runs, and its constants are those of the published run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.harness.pages import DOCS, blocks_of, run_block, text_of

PAGE = text_of("scale.md")
(BLOCK,) = blocks_of("scale.md")
TABLES = (Path(DOCS) / "figures" / "bench" / "tables.md").read_text("utf-8")


def published(what: str, beside: str = "") -> float:
    """Return our figure in the published tables."""
    pattern = rf"^\| {re.escape(what)} \| [^|]+ \| ([\d,.]+)[^|]*\| [^|]* \| {beside}"
    found = re.search(pattern, TABLES, flags=re.MULTILINE)
    assert found is not None, what
    return float(found[1].replace(",", ""))


async def test_the_block_prints_its_comment(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    await run_block(BLOCK, names)
    printed = capsys.readouterr().out.strip()
    assert f"# {printed}\n" in BLOCK.code
    for name, number in names["BYTES"].items():
        assert f"| {number:,} |" in PAGE, name


@pytest.mark.parametrize(
    ("what", "stated"),
    [
        ("memory of a message, kept by the application, unbatched", 670),
        ("memory of a message, kept by the application, batches of 1000", 289),
        ("memory of a message, not kept by the application, unbatched", 389),
        ("200,000 over 1 s to 1 h, 64 ledgers", 13.1),
        ("record and index: in a batch of 10, 9 acked", 25.5),
        ("memory for a key, 1,000,000 in order", 18.3),
        ("memory for a key, 1,000,000 mixed, 1 s to 1 h", 15.2),
        ("disk for a key, 1,000,000 in order", 20),
        ("disk for a key, 1,000,000 mixed, 1 s to 1 h", 23.1),
        ("fast acks: bytes written, with the buffer", 1.77),
        ("slow acks: bytes written, with the buffer", 79.5),
        ("resident memory", 52.5),
        ("1,000 idle consumers: CPU of an idle process", 0.00834),
        ("CPU over 3 s, 1,000,000 nacks pending", 0.227),
        ("CPU, unbatched", 8.82),
        ("CPU, batches of 10", 4.21),
        ("CPU, batches of 1000", 2.82),
        ("CPU, worker, unbatched", 49.3),
        ("CPU, worker, batches of 1000", 36.3),
        ("CPU, worker by key, unbatched", 57.1),
        ("CPU, worker by key, batches of 1000", 36.8),
        ("CPU, lazy, one at a time, unbatched", 11),
        ("CPU, lazy, one at a time, batches of 1000", 3.83),
        ("CPU, before, one at a time, unbatched", 81.7),
        ("CPU, before, one at a time, batches of 1000", 58.9),
        ("native gather, unbatched, CPU", 37.1),
        ("native gather, batches of 1000, CPU", 24.8),
        ("rate, before, one at a time, batches of 1000", 16_735),
        ("rate, one task", 278_670),
        ("rate, in Arrow batches, native transport", 129_532),
    ],
)
def test_a_constant_of_the_page_is_a_published_figure(what: str, stated: float) -> None:
    assert published(what) == stated
    assert re.search(rf"(?<![\d.,]){re.escape(f'{stated:,}')}(?![\d])", PAGE)


def test_rounded_constants_are_those_of_published_figures() -> None:
    assert published("1,000 idle consumers: more memory than one") * 1_000 == 38_600
    assert round(published("record and index: no batch"), 1) == 0.5
    assert round(published("on disk, 0.3 M ids") * 2**20 / 300_000, 1) == 2.6


def test_the_examples_are_calculated_right() -> None:
    for hours, window in ((13.9, 50_000), (55.6, 200_000)):
        assert round(window / 3_600, 1) == hours
        assert f"{hours} " in PAGE
    assert 64 * 2**20 // 50_000 == 1_342
    assert "1,342 bytes" in PAGE
