"""The tables of docs/spark-options.md agree with the declared options."""

from __future__ import annotations

import re

import pytest

from pulsar_encore.spark.option_table import CLIENT, OPTIONS, SINK, SOURCE, Option, OptionSet, Scope
from pulsar_encore.spark.triage import triage
from tests.harness import option_rows
from tests.harness.pages import text_of
from tests.harness.spark_option_rows import cells_of

PAGE = text_of("spark-options.md")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |^Next|\Z)", PAGE, re.MULTILINE | re.DOTALL))
CLIENTS = tuple(each for each in OPTIONS if each.scope is Scope.CLIENT)
DECLARED = {
    "Source": tuple(SOURCE[name] for name in SOURCE.names),
    "Sink": tuple(SINK[name] for name in SINK.names),
    "Clients": CLIENTS,
}


def rows(section: str) -> dict[str, list[str]]:
    """Return the cells of the rows of a section, by name."""
    table = re.findall(r"^\| (`.*) \|$", SECTIONS[section], re.MULTILINE)
    cells = [[each.strip() for each in line.split(" | ")] for line in table]
    return {first.strip("`"): [first, *others] for first, *others in cells}


def row_of(option: Option) -> str:
    return "| " + " | ".join(cells_of(option)) + " | UNIT | MEANING |"


@pytest.mark.parametrize("section", DECLARED)
def test_each_option_has_a_row_and_each_row_an_option(section: str) -> None:
    declared, listed = {each.name: each for each in DECLARED[section]}, rows(section)
    missing = "\n".join(row_of(declared[name]) for name in declared if name not in listed)
    assert not missing, f"docs/spark-options.md: add to the table of {section}:\n{missing}"
    extra = set(listed) - set(declared)
    assert not extra, f"docs/spark-options.md: {section} has no option {extra}: remove the row"


@pytest.mark.parametrize("section", DECLARED)
def test_types_defaults_and_uses_are_the_declared_ones(section: str) -> None:
    listed = rows(section)
    for option in DECLARED[section]:
        assert tuple(listed[option.name][:4]) == cells_of(option), (
            f"docs/spark-options.md: the row of {section} must begin with: {row_of(option)}"
        )


@pytest.mark.parametrize("section", DECLARED)
def test_each_row_has_a_meaning_and_a_unit_if_it_has_a_number(section: str) -> None:
    for name, (_, type_text, _, _, unit, meaning) in rows(section).items():
        assert meaning and not meaning.endswith("."), name
        if type_text.startswith(("int", "time", "size")):
            assert unit, name
        if name.endswith("Ms"):
            assert unit == "ms", name


@pytest.mark.parametrize("section", DECLARED)
def test_each_row_ends_with_the_other_names_of_its_option(section: str) -> None:
    listed = rows(section)
    for option in DECLARED[section]:
        _, _, also = listed[option.name][-1].partition(". Also ")
        assert tuple(re.findall(r"`([^`]+)`", also)) == option.spellings[1:], option.name


def test_the_clients_of_source_and_sink_have_one_prefix() -> None:
    assert f"Names begin with `{CLIENT}`" in SECTIONS["Clients"]


def test_the_parameters_of_the_triage_are_those_of_its_signature() -> None:
    listed, parameters = rows("Triage"), option_rows.parameters_of(triage)
    assert list(listed) == list(parameters)
    for name, parameter in parameters.items():
        first, type_text, default = option_rows.cells_of(parameter)
        shown = type_text.replace("HourOf", '"last" or "first"')
        assert listed[name][:3] == [first, shown, default], name
        assert listed[name][3], name


def test_the_page_names_the_options_that_the_triage_sets() -> None:
    _, _, text = SECTIONS["Triage"].partition("refuses them: ")
    expected = [name for name in SOURCE.names if SOURCE[name].set_by_triage]
    assert re.findall(r"`([^`]+)`", text) == expected


def test_the_guides_name_only_options_that_exist() -> None:
    known = {each for option in OPTIONS for each in option.spellings}
    known |= {f"{CLIENT}{each.name}" for each in CLIENTS}
    for page in ("spark.md", "spark-triage.md"):
        for name in re.findall(r'\.option\("([^"]+)"', text_of(page)):
            assert name in known | {"path", "checkpointLocation"}, f"docs/{page}: {name}"


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
