"""The option tables of docs/spark.md agree with the declared options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_encore.spark.option_table import CLIENT, OPTIONS, SINK, SOURCE, OptionSet, Scope

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
HEADERS = {"| option | default | |": SOURCE, "| option of a write | default | |": SINK}


def rows(header: str) -> Iterator[tuple[list[str], str]]:
    """Return (names, text of the default) of each row of a table."""
    lines = PAGE.read_text("utf-8").splitlines()
    for line in lines[lines.index(header) + 2 :]:
        if not line.startswith("|"):
            return
        option, default, _ = line.strip("|").split("|", 2)
        yield re.findall(r"`([^`]+)`", option), default


TABLES = {header: list(rows(header)) for header in HEADERS}


@pytest.mark.parametrize(("header", "known"), HEADERS.items())
def test_the_table_names_every_option_once(header: str, known: OptionSet) -> None:
    documented = [name for names, _ in TABLES[header] for name in names if name != f"{CLIENT}*"]
    assert sorted(documented) == sorted(known.names)


@pytest.mark.parametrize(("header", "known"), HEADERS.items())
def test_the_table_has_the_declared_defaults(header: str, known: OptionSet) -> None:
    """The numbers and the code in a row's default column are the defaults of the row's options.

    The column may leave out false, the natural default of a flag.
    """
    for names, cell in TABLES[header]:
        written = [code or number for code, number in re.findall(r"`([^`]+)`|\b(\d+)\b", cell)]
        declared = [known[name].default for name in names if name in known]
        shown = [each for each in declared if each not in (None, "false")]
        assert [each for each in written if each != "false"] == shown, names


def test_no_name_is_declared_twice_in_a_scope() -> None:
    for scope in (Scope.BATCH, Scope.STREAM, Scope.SINK, Scope.CLIENT):
        spelled = [
            each.lower() for option in OPTIONS if option.scope & scope for each in option.spellings
        ]
        assert len(spelled) == len(set(spelled))


@pytest.mark.parametrize("known", [SOURCE, SINK], ids=["source", "sink"])
def test_defaults_are_allowed_values_and_exclusions_exist(known: OptionSet) -> None:
    for name in known.names:
        option = known[name]
        if option.default is not None:
            option.parse(option.default, name)
        assert option.excludes is None or option.excludes in known
        assert option.doc.endswith(".") and "\n" not in option.doc
