"""The program of `docs/install.md` runs, and its table of extras is that of pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.harness.page_shell import PageShell, follow, installed_environment
from tests.harness.pages import text_of

PAGE = text_of("install.md")
ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def library(requirement: str) -> str:
    name = re.match(r"[\w-]+", requirement)
    assert name is not None
    return name[0]


def test_a_reader_of_the_page_sees_that_the_installation_works(tmp_path: Path) -> None:
    with PageShell(tmp_path, {}, installed_environment()) as shell:
        follow("install.md", shell, installed=True)
        assert "native: hello" in shell.output()


def test_the_table_has_each_extra_and_its_libraries() -> None:
    section = PAGE.partition("## Extras")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `?(\w+)`? \| .+ \| (.+) \|$", section, flags=re.MULTILINE)
    found = {extra: names for extra, names in rows if extra != "extra"}
    expected = {"none": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    for extra, requirements in expected.items():
        names = {library(each) for each in requirements} - {"pulsar-encore"}
        assert set(found.pop(extra).split(", ")) == names, extra
    assert found == {}


def test_the_pythons_of_the_page_are_those_of_the_classifiers() -> None:
    minors = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert f"CPython {minors[0]} to {minors[-1]}" in PAGE


def test_the_line_of_requirements_excludes_the_next_minor_release() -> None:
    version = re.search(r'^VERSION.*"(\d+)\.(\d+)\.', _version_text(), flags=re.MULTILINE)
    assert version is not None
    major, minor = int(version[1]), int(version[2])
    assert f">={major}.{minor},<{major}.{minor + 1}`" in PAGE


def _version_text() -> str:
    return (ROOT / "sdk/pulsar_encore/version.py").read_text("utf-8")
