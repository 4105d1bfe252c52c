"""A broker that asks for a token gets it with either transport and from any source."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from issuer_kit import Issuer, issuer

import pulsar_encore as encore
from pulsar_encore import authentication
from pulsar_encore.devbroker import BrokerSettings, run_in_thread
from pulsar_encore.transport.native.native_transport import NativeTransport

TOKEN = "token-1"
Make = Callable[[Issuer, Path], encore.Authentication]


async def _waiting() -> str:
    await asyncio.sleep(0)
    return TOKEN


def _file(_: Issuer, path: Path) -> encore.Authentication:
    path.write_text(f"{TOKEN}\n")
    return encore.AuthenticationToken(f"file://{path}")


def _oauth2(made: Issuer, _: Path) -> encore.Authentication:
    key = {"issuer_url": made.url, "audience": "a", "client_id": "b", "client_secret": "c"}
    return encore.AuthenticationOauth2(json.dumps(key))


MAKE: dict[str, Make] = {
    "text": lambda *_: encore.AuthenticationToken(TOKEN),
    "file": _file,
    "function": lambda *_: encore.AuthenticationToken(lambda: TOKEN),
    "async function": lambda *_: encore.AuthenticationToken(_waiting),
    "oauth2": _oauth2,
}


async def by_stock(url: str, auth: encore.Authentication) -> None:
    async with encore.Client(url, auth, operation_timeout_seconds=5) as client:
        await (await client.create_producer("t")).send(b"in")


async def by_native(url: str, auth: encore.Authentication) -> None:
    transport = NativeTransport(url, credentials=authentication.of(auth))
    try:
        assert await transport.topic_partitions("t")
    finally:
        await transport.close()


# OAuth2 with the stock transport is left out: the C++ client asks the issuer on the calling thread,
# which runs the issuer in this test.
@pytest.mark.parametrize(
    ("source", "connect"),
    [
        *((source, by_native) for source in MAKE),
        *((source, by_stock) for source in MAKE if source != "oauth2"),
    ],
)
async def test_a_token_from_any_source_logs_in(
    source: str, connect: Callable[..., Awaitable[Any]], tmp_path: Path
) -> None:
    with run_in_thread(BrokerSettings(token=TOKEN)) as broker:
        async with issuer() as made:
            await connect(broker.url, MAKE[source](made, tmp_path / "token"))


async def test_the_native_transport_reports_a_wrong_token() -> None:
    with run_in_thread(BrokerSettings(token="right")) as broker:
        with pytest.raises(encore.AuthenticationError):
            await by_native(broker.url, encore.AuthenticationToken("wrong"))
