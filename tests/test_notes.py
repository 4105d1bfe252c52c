"""Every pointer to `docs/notes/` names a page and a heading that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTES = ROOT / "docs" / "notes"
FOLDERS = ("sdk", "tests", "integration", "examples", "docs")
SUFFIXES = {".py", ".pyi", ".md", ".toml"}

_POINTER = re.compile(r"docs/notes/(?P<page>[\w.-]+?\.md)(?:#(?P<heading>[\w-]+))?")
#: Pointers to numbered sections of notes outside the repository, such as "notes, section 4".
_NUMBERED = re.compile(
    r"\b(?:wire|protocol|semantics|client)\s+notes\b"
    r"|\bnotes,?\s+(?:(?:section|rule)s?\s+)?\d"
    r"|\bsections?\s+\d+(?:\.\d+)?\s+of\s+the\s+notes\b"
)
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(markdown: str) -> set[str]:
    """Return the anchors of the headings, as GitHub and MyST make them."""
    headings = _HEADING.findall(_FENCED.sub("", markdown))
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def broken(text: str, pages: dict[str, set[str]]) -> Iterator[str]:
    """Yield the pointers in `text` that lead to no page or heading of `pages`."""
    for match in _POINTER.finditer(text):
        headings = pages.get(match["page"])
        if headings is None or (match["heading"] is not None and match["heading"] not in headings):
            yield match[0]


def texts() -> Iterator[tuple[str, str]]:
    """Yield each checked file with its text, in which comments that continue are one line."""
    places = [path for name in FOLDERS for path in sorted((ROOT / name).rglob("*"))]
    for path in [*places, *ROOT.glob("*.md"), ROOT / "pyproject.toml"]:
        if (
            path.suffix in SUFFIXES
            and path != Path(__file__).resolve()
            and "_build" not in path.parts
        ):
            text = path.read_text(encoding="utf-8")
            yield str(path.relative_to(ROOT)), re.sub(r"\n\s*#[ :]*", " ", text)


PAGES = {path.name: anchors(path.read_text(encoding="utf-8")) for path in NOTES.glob("*.md")}


def test_every_pointer_resolves() -> None:
    wrong = [f"{name}: {pointer}" for name, text in texts() for pointer in broken(text, PAGES)]
    assert wrong == []


def test_no_pointer_names_a_numbered_section() -> None:
    wrong = [f"{name}: {match[0]}" for name, text in texts() for match in _NUMBERED.finditer(text)]
    assert wrong == []


def test_every_section_is_named_by_a_pointer() -> None:
    """The notes hold the reasons that the code names, and no more."""
    named = {match[0] for _, text in texts() for match in _POINTER.finditer(text)}
    sections = {
        f"docs/notes/{path.name}#{anchor}"
        for path in NOTES.glob("*.md")
        for heading in re.findall(r"^## .+$", path.read_text(encoding="utf-8"), re.MULTILINE)
        for anchor in anchors(heading)
    }
    assert sections - named == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`docs/notes/page.md#flow-permits`", []),
        ("See docs/notes/page.md.", []),
        ("docs/notes/page.md#gone", ["docs/notes/page.md#gone"]),
        ("docs/notes/gone.md", ["docs/notes/gone.md"]),
    ],
)
def test_a_broken_pointer_is_found(text: str, expected: list[str]) -> None:
    assert list(broken(text, {"page.md": {"flow-permits"}})) == expected


def test_anchors_are_those_of_github() -> None:
    page = "# Flow: permits\n\n```\n# code\n```\n## PIP-195: `x_y` (bytes)\n"
    assert anchors(page) == {"flow-permits", "pip-195-x_y-bytes"}


@pytest.mark.parametrize(
    "text",
    ["wire-protocol notes 5.4", "stock-client notes, section 13", "(notes 9.1)", "wire notes"],
)
def test_numbered_pointers_are_found(text: str) -> None:
    assert _NUMBERED.search(text)
