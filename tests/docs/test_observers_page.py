"""The example of `docs/observers.md` runs, and its tables have every method and field."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import re
from typing import Any, get_args

import pytest

import pulsar_encore as encore
from pulsar_encore.observability import observations
from pulsar_encore.testing import MemoryTransport
from tests.harness import option_rows
from tests.harness.pages import blocks_of, run_block, text_of

PAGE = text_of("observers.md")
ALIASES: dict[str, Any] = {
    "HandlerResult": observations.HandlerResult,
    "Settlement": observations.Settlement,
}


async def test_the_observer_counts_failures(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSAR_ENCORE_TRANSPORT", "native")
    names: dict[str, Any] = {}
    [block] = blocks_of("observers.md")
    await run_block(block, names)
    await names["client"].close()

    async def handler(value: bytes) -> None:
        raise encore.Reject("never")

    transport.put("orders", b"1")
    observers = [names["failures"]]
    async with encore.Client("memory://", transport=transport, observers=observers) as client:
        worker = encore.Worker(
            client, "orders", "billing", handler, initial_position=encore.InitialPosition.Earliest
        )
        async with worker:
            while not names["failures"].by_error:
                await asyncio.sleep(0.1)
    assert names["failures"].by_error == {"Reject": 1}


def rows(title: str) -> list[list[str]]:
    """Return the cells of the table of a section, without its head."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [each for each in section.splitlines() if each.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names_in(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`(\w+)`", cell))


def test_the_table_has_every_method_with_its_arguments() -> None:
    listed = {name: names_in(cells[1]) for cells in rows("Events") for name in names_in(cells[0])}
    methods = {name: each for name, each in vars(encore.Observer).items() if name[0] != "_"}
    assert listed == {
        name: tuple(inspect.signature(each).parameters)[1:] for name, each in methods.items()
    }


def test_the_table_of_fields_has_every_field_of_each_object() -> None:
    expected = {
        (kind.__name__, each.name): option_rows.type_text(ALIASES.get(str(each.type), each.type))
        for kind in vars(observations).values()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
        for each in dataclasses.fields(kind)
    }
    listed, kind_name = {}, ""
    for kind_cell, name, type_text, unit, meaning in rows("Fields"):
        kind_name = kind_cell.strip("`") or kind_name
        listed[kind_name, name.strip("`")] = type_text
        assert meaning
        assert bool(unit) == bool(re.match("int|float", type_text))
    assert listed == expected


def test_the_table_of_connections_has_every_event_its_fields_and_its_receivers() -> None:
    receivers = {
        "consumer": get_args(encore.ConsumerEvent),
        "producer": get_args(encore.ProducerEvent),
        "reader": get_args(encore.ReaderEvent),
    }
    listed = {}
    for kind_cell, fields, gets, _ in rows("Events of connections"):
        kind = getattr(encore, kind_cell.strip("`"))
        listed[kind] = tuple(gets.split(", "))
        assert names_in(fields) == tuple(each.name for each in dataclasses.fields(kind))
    assert listed == {
        kind: tuple(name for name, kinds in receivers.items() if kind in kinds)
        for kind in receivers["consumer"]
    }
