"""Links between the pages lead to files and headings that exist. No network is used."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.harness.pages import DOCS

ROOT = DOCS.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (
        *DOCS.rglob("*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docker/README.md")),
    )
    if not {"_build", "node_modules"} & set(path.parts)
)
FENCE = re.compile(r"^(`{3,}|~{3,})[^\n]*\n.*?^\1`*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^\[[^\]\n]+\]:[ \t]+(\S+)", re.MULTILINE)
HTML = re.compile(r"<(?:a|img|source)\b[^>]*\b(?:href|src|srcset)=\"([^\"]+)\"")
TREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)
INCLUDE = re.compile(r"^```\{(?:include|image|figure|literalinclude)\} (\S+)", re.MULTILINE)


def links_of(text: str) -> list[str]:
    """Return the targets of the links of a page, without those in code."""
    text = FENCE.sub("", text)
    return [
        *REFERENCE.findall(text),
        *HTML.findall(text),
        *LINK.findall(CODE.sub("code", text)),
    ]


def entries_of(text: str) -> Iterator[str]:
    """Yield the entries of the trees of pages, and the files that a page includes."""
    for tree in TREE.findall(text):
        lines = (line.strip() for line in tree.splitlines())
        yield from (f"{line}.md" for line in lines if line and not line.startswith(":"))
    yield from INCLUDE.findall(text)


def anchor_of(heading: str) -> str:
    """Return the anchor that GitHub and MyST give a heading."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def anchors_of(path: Path) -> frozenset[str]:
    """Return the anchors of a page. The second heading with the same text gets "-1"."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    found: Counter[str] = Counter()
    anchors = set(re.findall(r"^\((\S+)\)=$|<a (?:id|name)=\"([^\"]+)\"", text, re.MULTILINE))
    names = {name for pair in anchors for name in pair if name}
    for heading in re.findall(r"^#{1,6} +(.*?)(?: +#+)?$", text, re.MULTILINE):
        anchor = anchor_of(heading)
        names.add(f"{anchor}-{found[anchor]}" if found[anchor] else anchor)
        found[anchor] += 1
    return frozenset(names)


def fault_of(page: Path, target: str) -> str | None:
    """Return the reason why a target is wrong, or None."""
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.is_relative_to(ROOT):
        return f"{target} leads out of the repository"
    if not file.exists():
        return f"{target} does not exist"
    if anchor and file.suffix == ".md" and anchor not in anchors_of(file):
        return f"{target}: no such heading"
    return None


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: str) -> None:
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    targets = [each for each in links_of(text) if not re.match(r"[a-z][a-z+.-]*:", each)]
    faults = [fault_of(path, each) for each in (*targets, *entries_of(text))]
    assert [fault for fault in faults if fault] == []


def test_every_page_of_the_documentation_is_in_a_tree() -> None:
    entries = {
        (path.parent / entry).resolve()
        for path in DOCS.rglob("*.md")
        if "_build" not in path.parts
        for entry in entries_of(path.read_text(encoding="utf-8"))
    }
    pages = {ROOT / page for page in PAGES if page.startswith("docs/")} - {DOCS / "index.md"}
    parts = {page for page in pages if page.parent.name in ("diagrams", "check")}
    assert sorted(map(str, pages - parts - entries)) == []


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("[a](b.md#c) and [d](<e.md>)", ["b.md#c", "e.md"]),
        ("`[a](b.md)` and\n```\n[a](b.md)\n```\n", []),
        ('[a]: b.md\n\n<img src="c.svg">', ["b.md", "c.svg"]),
    ],
)
def test_links_in_code_do_not_count(text: str, targets: list[str]) -> None:
    assert links_of(text) == targets


def test_anchors_are_those_of_github() -> None:
    assert anchor_of("`SpillingIndex`: due times, by id!") == "spillingindex-due-times-by-id"
    assert anchor_of("Ten rules") == "ten-rules"


def test_a_missing_file_and_a_missing_heading_are_found() -> None:
    page = DOCS / "worker.md"
    assert fault_of(page, "#limits") is None
    assert fault_of(page, "nowhere.md") == "nowhere.md does not exist"
    assert fault_of(page, "glossary.md#nowhere") == "glossary.md#nowhere: no such heading"
    assert fault_of(page, "../../elsewhere.md") == "../../elsewhere.md leads out of the repository"
