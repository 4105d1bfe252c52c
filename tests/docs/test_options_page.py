"""The tables of `docs/options.md` have each option of the signatures, its type and its default."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import pulsar_encore as encore
import pulsar_encore.state
from pulsar_encore.worker.subscribe_options import SubscribeKeywords
from tests.harness.option_rows import cells_of, parameters_of
from tests.harness.pages import text_of

PAGE = text_of("options.md")
SECTIONS = dict(re.findall(r"^### `([\w.]+)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
#: Classes and functions with options. A new one gets a section.
DOCUMENTED = {
    "AutoClusterFailover",
    "Backoff",
    "BatchReceivePolicy",
    "BatchWorker",
    "Breaker",
    "Client",
    "Client.create_producer",
    "Client.create_reader",
    "Client.subscribe",
    "Client.transaction",
    "ConsumerKeySharedPolicy",
    "DeadLetterPolicy",
    "PublishTo",
    "RetryPolicy",
    "RocksState",
    "ServiceInfo",
    "SpillingNackIndex",
    "Transactional",
    "Worker",
    "run",
    "state.DirectoryBlobs",
    "state.SpillingIndex",
}


def parameters(section: str) -> dict[str, inspect.Parameter]:
    """Return the options that a section must have."""
    found: Any = encore
    for part in section.split("."):
        found = getattr(found, part)
    options = dict(parameters_of(found))
    if section == "BatchWorker":  # the table may leave out an option that is equal
        shared, listed = parameters_of(encore.Worker), rows(section)
        options = {
            name: each
            for name, each in options.items()
            if name in listed or name not in shared or cells_of(each) != cells_of(shared[name])
        }
    return options


def rows(section: str) -> dict[str, list[str]]:
    """Return the cells of the rows of a section, by option."""
    found = {}
    for line in SECTIONS[section].splitlines():
        if line.startswith("| `"):
            cells = [each.strip() for each in line.strip("|").split(" | ")]
            found[cells[0].strip("` ")] = [each.strip("|").strip() for each in cells]
    return found


def row_of(option: inspect.Parameter) -> str:
    return "| " + " | ".join(cells_of(option)) + " | UNIT | MEANING |"


def test_each_class_with_options_has_a_section() -> None:
    assert set(SECTIONS) == DOCUMENTED


@pytest.mark.parametrize("section", sorted(DOCUMENTED))
def test_each_option_has_a_row_in_the_order_of_the_signature(section: str) -> None:
    expected, listed = parameters(section), rows(section)
    missing = "\n".join(row_of(expected[name]) for name in expected if name not in listed)
    assert not missing, f"docs/options.md: add to the table of `{section}`:\n{missing}"
    extra = [name for name in listed if name not in expected]
    assert not extra, f"docs/options.md: `{section}` has no option {extra}: remove the row"
    assert list(listed) == list(expected)


@pytest.mark.parametrize("section", sorted(DOCUMENTED))
def test_types_and_defaults_are_those_of_the_signature(section: str) -> None:
    listed = rows(section)
    for name, option in parameters(section).items():
        shown, (first, type_text, default) = listed[name], cells_of(option)
        # Annotations with Any are wide for the objects of pulsar-client. The page has more.
        wide = re.search(r"\b(Any|Fsync)\b", type_text)
        expected = [first, shown[1] if wide else type_text, default]
        assert shown[:3] == expected, (
            f"docs/options.md: the row of `{section}` must begin with: {row_of(option)}"
        )


@pytest.mark.parametrize("section", sorted(DOCUMENTED))
def test_each_row_has_a_meaning_and_the_unit_of_its_type(section: str) -> None:
    options = parameters(section)
    for name, (_, type_text, _, unit, meaning) in rows(section).items():
        assert meaning and not meaning.endswith("."), name
        takes_timedelta = "timedelta" in str(options[name].annotation)
        assert (unit == "s, td") == takes_timedelta, name
        if name.endswith(("_ms", "_millis")):
            assert unit == "ms", name
        if unit:
            assert re.search(r"\b(int|float|timedelta)\b", type_text), name


def test_a_batch_worker_has_the_options_of_a_worker_but_one() -> None:
    worker, batches = parameters_of(encore.Worker), parameters_of(encore.BatchWorker)
    assert set(worker) - set(batches) == {"transactional"}
    assert set(batches) - set(worker) == {"max_messages", "max_wait"}
    assert "except `transactional`" in SECTIONS["BatchWorker"]


def test_the_options_of_subscribe_options_are_options_of_subscribe() -> None:
    """So that they need no table of their own."""
    assert set(SubscribeKeywords.__annotations__) <= set(rows("Client.subscribe"))
