"""The name, the environment or the other options decide which transport a client gets."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import pulsar
import pytest

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread
from pulsar_encore.testing import MemoryTransport

URL = "pulsar://127.0.0.1:1"
VARIABLE = "PULSAR_ENCORE_TRANSPORT"


def name_of(client: encore.Client) -> str:
    return client._transport.capabilities.name


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        (None, None, "native"),
        ("native", None, "native"),
        ("stock", None, "stock"),
        ("auto", None, "native"),
        (None, "native", "native"),
        (None, "auto", "native"),
        ("stock", "native", "stock"),
        (None, "", "native"),
    ],
)
async def test_the_argument_or_else_the_environment_chooses_the_transport(
    monkeypatch: pytest.MonkeyPatch, given: str | None, environment: str | None, expected: str
) -> None:
    if environment is not None:
        monkeypatch.setenv(VARIABLE, environment)
    async with encore.Client(URL, transport=given) as client:
        assert name_of(client) == expected


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_the_error_for_an_unknown_transport_lists_the_names(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    argument: dict[str, Any] = {"transport": "quick"}
    if how == "environment":
        monkeypatch.setenv(VARIABLE, "quick")
        argument = {}
    where = "transport" if how == "argument" else VARIABLE
    with pytest.raises(encore.ConfigurationError, match=f"^{where} must be one of .*'quick'"):
        encore.Client(URL, **argument)


async def test_auto_logs_its_transport_and_warns_why_it_is_stock(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "pulsar_encore.client")
    athenz = encore.AuthenticationAthenz("{}")
    async with encore.Client(URL, transport="auto") as client:
        assert name_of(client) == "native"
    async with encore.Client(URL, transport="auto", authentication=athenz) as client:
        assert name_of(client) == "stock"
    native, stock = [each for each in caplog.records if each.name == "pulsar_encore.client"]
    assert (native.levelname, native.getMessage()) == ("INFO", "transport: native")
    assert stock.levelname == "WARNING"
    assert "transport: stock, because" in stock.getMessage()
    assert "AuthenticationAthenz" in stock.getMessage()


@pytest.mark.parametrize(
    "logger",
    [
        encore.ConsoleLogger(),
        encore.FileLogger(encore.LoggerLevel.Error, os.devnull),
        logging.getLogger("application"),
        pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    ],
    ids=lambda logger: type(logger).__name__,
)
async def test_a_logger_leaves_auto_at_the_native_transport(logger: object) -> None:
    async with encore.Client(URL, transport="auto", logger=logger) as client:
        assert name_of(client) == "native"


def test_an_invalid_transport_is_refused_with_a_hint() -> None:
    with pytest.raises(encore.ConfigurationError, match="the class MemoryTransport"):
        encore.Client("memory://", transport=MemoryTransport)  # type: ignore[arg-type]
    with pytest.raises(encore.ConfigurationError, match=r"transport=testing\.MemoryTransport\(\)"):
        encore.Client("memory://")


def test_an_explicit_native_transport_refuses_unsupported_options() -> None:
    athenz = encore.AuthenticationAthenz("{}")
    with pytest.raises(encore.NotSupportedError, match="AuthenticationAthenz"):
        encore.Client(URL, authentication=athenz, transport="native")


@pytest.mark.parametrize("name", ["native", "stock"])
async def test_statistics_name_the_transport(broker: BrokerThread, topic: str, name: str) -> None:
    async with encore.Client(broker.url, transport=name) as client:
        consumer = await client.subscribe(topic, "s")
        assert consumer.statistics().transport == name


async def test_an_outage_is_logged_without_configuring_logging(
    broker: BrokerThread, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with encore.Client(broker.url, transport="native") as client:
        consumer = await client.subscribe(topic, "s")
        assert not caplog.records
        broker.drop_connections()
        async with asyncio.timeout(10):
            while not any(record.levelname == "WARNING" for record in caplog.records):
                await asyncio.sleep(0.01)
        lost = [record.getMessage() for record in caplog.records]
        assert f"the connection to {broker.url} was lost" in lost[0]
        caplog.clear()
        await consumer.close()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
