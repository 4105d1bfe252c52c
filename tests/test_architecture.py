"""`docs/architecture.md` names paths that exist, and every folder of the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sdk" / "pulsar_encore"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
DRAWING = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def paths(markdown: str) -> list[str]:
    """Return the code spans that look like a path: a folder, or a Python file."""
    spans = re.findall(r"`([^`\n]+)`", DRAWING.sub("", markdown))
    return [each for each in spans if re.fullmatch(r"[\w./]+(?:/|\.py)", each)]


def test_paths_exist() -> None:
    missing = [
        each for each in paths(PAGE) if not (PACKAGE / each).exists() and not (ROOT / each).exists()
    ]
    assert missing == []


def test_folders_in_the_drawing_exist() -> None:
    (drawing,) = DRAWING.findall(PAGE)
    folders = {each.name for each in PACKAGE.rglob("*") if each.is_dir()}
    assert set(re.findall(r"(\w\w+)/", drawing)) <= folders


def test_every_folder_of_the_package_is_named() -> None:
    named = {each.split("/")[0] for each in paths(PAGE)}
    folders = {each.parent.name for each in PACKAGE.glob("*/__init__.py")}
    assert folders - named == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`core/entry.py`", ["core/entry.py"]),
        ("`core/`", ["core/"]),
        ("`Consumer.pop` and `pulsar-client`", []),
        ("```\ncore/gone.py\n```", []),
    ],
)
def test_which_spans_are_paths(text: str, expected: list[str]) -> None:
    assert paths(text) == expected
