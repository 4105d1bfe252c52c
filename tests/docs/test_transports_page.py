"""`docs/transports.md`: which transport a client gets, and the refusals of the stock transport."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, get_args

import pulsar
import pytest

import pulsar_encore as encore
from pulsar_encore import testing
from pulsar_encore.authentication.athenz import AuthenticationAthenz
from pulsar_encore.client import transport_of
from pulsar_encore.consumer.statistics import Statistics
from pulsar_encore.transport.stock.stock_consumer import STOCK
from tests.harness.pages import Block, blocks_of, run_block, text_of

PAGE = text_of("transports.md")
URL = "pulsar://localhost:6650"
VARIABLE = "PULSAR_ENCORE_TRANSPORT"


@dataclass
class Row:
    id: int


def block(title: str) -> Block:
    (found,) = (each for each in blocks_of("transports.md") if each.title == title)
    return found


@pytest.fixture
async def stock() -> AsyncIterator[encore.Client]:
    async with testing.broker() as url, encore.Client(url, transport="stock") as client:
        yield client


def name_of(client: encore.Client) -> str:
    client.shutdown()
    return transport_of(client).capabilities.name


async def test_the_block_makes_one_client_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    made: list[encore.Client] = []

    class Recording:
        @staticmethod
        def Client(*args: Any, **options: Any) -> encore.Client:
            made.append(encore.Client(*args, **options))
            return made[-1]

    await run_block(block("The two transports"), {"encore": Recording})
    assert [name_of(each) for each in made] == ["native", "stock"]


@pytest.mark.parametrize(
    ("transport", "variable", "expected"),
    [
        ("native", "stock", "native"),
        ("stock", "native", "stock"),
        (None, "stock", "stock"),
        (None, "native", "native"),
        (None, "auto", "native"),
        ("auto", "stock", "native"),
        (None, "", "native"),
    ],
)
async def test_the_option_and_the_variable_choose(
    transport: str | None, variable: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, variable)
    assert name_of(encore.Client(URL, transport=transport)) == expected


async def test_auto_takes_stock_for_authentication_of_pulsar_and_warns(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(encore.NotSupportedError, match="AuthenticationAthenz"):
        encore.Client(URL, AuthenticationAthenz("{}"), transport="native")
    token = pulsar.AuthenticationToken("token")
    with pytest.raises(encore.NotSupportedError, match="AuthenticationToken"):
        encore.Client(URL, token, transport="native")
    with caplog.at_level(logging.WARNING):
        assert name_of(encore.Client(URL, token)) == "stock"
    assert [each.name for each in caplog.records] == ["pulsar_encore.client"]
    assert "pulsar_encore.AuthenticationToken" in caplog.text


async def test_the_stock_transport_refuses_options_of_native() -> None:
    (row,) = re.findall(r"^\| (`partitions_update_interval`.*?) \|", PAGE, flags=re.MULTILINE)
    for name in re.findall(r"`(\w+)`", row):
        with pytest.raises(encore.NotSupportedError, match=name):
            encore.Client(URL, transport="stock", **{name: 5})
        assert name_of(encore.Client(URL, transport="native", **{name: 5})) == "native"


async def test_the_stock_transport_refuses_what_the_table_says(stock: encore.Client) -> None:
    for option in ({"ack_receipt_enabled": True}, {"receiver_queue_size": 0}):
        with pytest.raises(encore.ConfigurationError, match=next(iter(option))):
            await stock.subscribe("orders", "billing", **option)  # type: ignore[arg-type]
    with pytest.raises(encore.NotSupportedError, match="event_listener"):
        await stock.create_producer("orders", event_listener=print)
    pairs = encore.KeyValue(encore.Json(Row), encore.Json(Row))
    with pytest.raises(encore.NotSupportedError):
        await stock.create_producer("rows", schema=pairs)
    async with stock.create_producer("orders") as producer:
        with pytest.raises(encore.NotSupportedError, match="partition_key"):
            await producer.send(b"x", partition_key=b"k")
    async with stock.create_reader("orders", encore.MessageId.earliest) as reader:
        with pytest.raises(encore.NotSupportedError):
            await reader.last_message_id()


def test_the_accuracy_of_a_nack_is_the_lead_of_the_stock_transport() -> None:
    assert timedelta(milliseconds=STOCK.redeliver_lead_ms) == timedelta(seconds=0.1)
    assert STOCK.rewind_lead_ms == pytest.approx(300, abs=10)


async def test_an_ack_with_a_receipt_and_the_events_of_a_lost_connection(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with testing.broker() as url, encore.Client(url) as client:
        names: dict[str, Any] = {"client": client, "encore": encore}
        running = asyncio.ensure_future(run_block(block("Events and reconnects"), names))
        async with client.create_producer("orders") as producer:
            while "consumer" not in names:
                await asyncio.sleep(0.01)
            await producer.send(b"lamp")
        await asyncio.wait_for(running, 10)
        assert names["consumer"].statistics().unacked == 0
        assert names["consumer"].statistics().unsent_acks == 0
        url.broker.drop_connections()
        text = ""
        while "\nConnected(" not in text:
            await asyncio.sleep(0.01)
            text += capsys.readouterr().out
        assert text.startswith("Disconnected(")


def test_the_page_names_each_event() -> None:
    section = PAGE.partition("## Events and reconnects")[2].partition("\n## ")[0]
    (listed,) = re.findall(
        r"^\[The events\]\(.*?\) are (.*?)\.$", section, re.MULTILINE | re.DOTALL
    )
    kinds = {each.__name__ for each in get_args(encore.ConsumerEvent)}
    assert set(re.findall(r"`(\w+)`", listed)) == kinds
    fields = Statistics.__dataclass_fields__
    for name in ("connected", "retrying", "ended_topics", "inactive_topics", "failure"):
        assert f"`{name}`" in section
        assert name in fields
