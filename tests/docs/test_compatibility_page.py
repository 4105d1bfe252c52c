"""The ranges of `docs/compatibility.md` are those of pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.harness.package_check import NOT_OLDEST, lowest_versions
from tests.harness.pages import text_of

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
TABLE = text_of("compatibility.md").partition("## Libraries")[2].partition("\n## ")[0]


def rows() -> dict[str, tuple[str, str]]:
    """Return (range, how it was tested) of each library."""
    found = {}
    for names, ranges, tested in re.findall(r"^\| ([a-z].*?) \| (`.+) \| (.+) \|$", TABLE, re.M):
        for name, each in zip(names.split(", "), ranges.split(", "), strict=True):
            found[name] = (each.strip("`"), tested)
    return found


def test_the_table_has_the_range_of_each_library() -> None:
    every = [*PROJECT["dependencies"]]
    for requirements in PROJECT["optional-dependencies"].values():
        every += requirements
    declared = {}
    for each in every:
        matched = re.match(r"([\w-]+)(.*)", each)
        assert matched is not None
        declared[matched[1]] = matched[2]
    declared.pop("pulsar-encore")
    assert {name: each for name, (each, _) in rows().items()} == declared


def test_the_lowest_version_of_a_library_with_both_ends_is_installed_by_the_check() -> None:
    lowest = {each.partition("==")[0] for each in lowest_versions()}
    both = {name for name, (_, tested) in rows().items() if tested == "both ends"}
    assert both == lowest - {"pulsar-client"}
    assert NOT_OLDEST == ("spark", "triage")
