"""The table of `docs/letter-properties.md` is that of real letters, on a development broker."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.deadletters import DeadLetters
from pulsar_encore.devbroker import BrokerSettings, run_in_thread
from tests.harness.pages import text_of

PAGE = text_of("letter-properties.md")
KINDS = ("retry", "overflow", "dead", "last", "replayed")
TEXTS = {
    "12 hex digits": "[0-9a-f]{12}",
    "id": r"\d+:\d+:-?\d+(:\d+)?",
    "int": r"\d+",
    "lines": r"[\w.-]+:\d+ in .+",
    "text": ".+",
    "topic": r"persistent://\w+/\w+/[\w-]+",
}


def rows() -> dict[str, dict[str, str]]:
    """Return the cells of the table by property, by title."""
    section = PAGE.partition("## All properties\n")[2].partition("\n## ")[0]
    lines = [each for each in section.splitlines() if each.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {each[0].strip("`"): dict(zip(cells[0], each, strict=True)) for each in cells[2:]}


ROWS = rows()


def kinds_of(row: dict[str, str]) -> set[str]:
    return set(KINDS) if row["kinds"] == "all" else set(row["kinds"].split(", "))


@pytest.fixture
async def client() -> AsyncIterator[encore.Client]:
    with run_in_thread(BrokerSettings(keep_acked=True)) as broker:
        async with encore.Client(broker.url) as client:
            yield client


async def stored(client: encore.Client, topic: str, count: int) -> list[dict[str, str]]:
    """Return the properties of the messages of a topic."""
    async with client.create_reader(topic, encore.MessageId.earliest) as reader:
        return [(await reader.read_next(timeout=10)).properties() for _ in range(count)]


async def letter_of(
    client: encore.Client, kind: str, error: BaseException | None
) -> dict[str, str]:
    """Make a letter of a kind, and return its properties."""
    policy = encore.DeadLetterPolicy(1, initial_subscription_name="encore-replay")
    options: dict[str, Any] = {"dead_letter_policy": policy}
    if kind in ("retry", "last", "overflow"):
        options["retry_enable"] = True
    if kind == "overflow":
        options |= {"nack_overflow": "retry_letter", "nack_overflow_delay": 1}
    async with (
        client.subscribe("orders", "billing", encore.ConsumerType.Shared, **options) as consumer,
        client.create_producer("orders") as producer,
    ):
        await producer.send(b"3", {"shop": "north"})
        message = await consumer.receive(timeout=10)
        if kind == "overflow":
            await consumer.negative_acknowledge(message, 60, error=error)
        elif kind in ("retry", "last"):
            await consumer.reconsume_later(message, 0.1, error=error)
            if kind == "last":
                message = await consumer.receive(timeout=10)
                await consumer.reconsume_later(message, 0.1, error=error)
        else:
            await consumer.negative_acknowledge(message, 0, error=error)
            message = await consumer.receive(timeout=10)
            await consumer.negative_acknowledge(message, 0, error=error)
        topic = "orders-billing-" + ("RETRY" if kind in ("retry", "overflow") else "DLQ")
        (found,) = await stored(client, topic, 1)
    if kind == "replayed":
        report = await DeadLetters(client, "orders-billing-DLQ").replay()
        assert report.replayed == 1
        found = (await stored(client, "orders", 2))[1]
    assert found.pop("shop") == "north"
    return found


def failure() -> BaseException:
    try:
        raise KeyError("EUR")
    except KeyError as error:
        return error


def test_the_table_has_every_property_of_letters() -> None:
    missing = sorted(letters.RESERVED - set(ROWS))
    lines = "\n".join(f"| `{name}` | KINDS | TYPE | UNIT | EXAMPLE | MEANING |" for name in missing)
    assert not missing, f"docs/letter-properties.md: add to the table:\n{lines}"
    assert set(ROWS) == letters.RESERVED


@pytest.mark.parametrize("name", sorted(ROWS))
def test_the_example_is_of_the_type(name: str) -> None:
    row = ROWS[name]
    assert re.fullmatch(TEXTS[row["type"]], row["example"].strip("`"))
    assert bool(row["unit"]) == (row["type"] == "int")
    assert kinds_of(row) <= set(KINDS)
    assert row["meaning"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_letter_has_the_properties_of_its_kind(client: encore.Client, kind: str) -> None:
    found = await letter_of(client, kind, failure())
    assert set(found) == {name for name, row in ROWS.items() if kind in kinds_of(row)}
    for name, value in found.items():
        assert re.match(TEXTS[ROWS[name]["type"]] + "$", value, re.MULTILINE), (name, value)


@pytest.mark.parametrize("kind", ["retry", "overflow", "dead", "last"])
async def test_a_letter_without_an_exception(client: encore.Client, kind: str) -> None:
    found = await letter_of(client, kind, None)
    errors = {letters.ERROR_CLASS, letters.ERROR_MESSAGE, letters.ERROR_STACK}
    left_out = letters.FAILURE if kind in ("retry", "overflow") else errors
    assert set(found) == {name for name, row in ROWS.items() if kind in kinds_of(row)} - left_out


async def test_a_rejected_retry_letter_keeps_its_rounds(client: encore.Client) -> None:
    policy = encore.DeadLetterPolicy(3)
    async with (
        client.subscribe(
            "orders",
            "billing",
            encore.ConsumerType.Shared,
            dead_letter_policy=policy,
            retry_enable=True,
        ) as consumer,
        client.create_producer("orders") as producer,
    ):
        await producer.send(b"3")
        await consumer.reconsume_later(await consumer.receive(timeout=10), 0.1)
        await consumer.reject(await consumer.receive(timeout=10), "no such currency")
        (found,) = await stored(client, "orders-billing-DLQ", 1)
    assert (found[letters.RECONSUME_TIMES], found[letters.DELAY_TIME]) == ("1", "100")
    assert letters.ERROR_MESSAGE in found  # the reason is a text
    assert not {letters.ERROR_CLASS, letters.ERROR_STACK} & set(found)


def test_the_table_of_clients_has_every_property() -> None:
    section = PAGE.partition("## Which client knows them\n")[2]
    java = set(re.findall(r"`([A-Z_]+)`", section.partition("reads and writes them")[0]))
    assert java == {name for name in ROWS if not name.startswith("ENCORE_")}


async def test_the_names_are_reserved(client: encore.Client) -> None:
    async with (
        client.subscribe(
            "orders", "billing", encore.ConsumerType.Shared, retry_enable=True
        ) as consumer,
        client.create_producer("orders") as producer,
    ):
        await producer.send(b"3")
        message = await consumer.receive(timeout=10)
        for name in ROWS:
            with pytest.raises(encore.ConfigurationError, match="reserved"):
                await consumer.reconsume_later(message, properties={name: "1"})
