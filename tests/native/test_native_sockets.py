"""Sockets: which address of a host is connected to. No other socket stays open."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from pulsar_encore.exceptions import ConnectError
from pulsar_encore.transport.native.connection.addresses import parse
from pulsar_encore.transport.native.connection.sockets import Sockets
from pulsar_encore.transport.native.connection.tls_context import TlsContext

DELAY_S = 0.25


class Network:
    """A host with several addresses, each of which answers, refuses or is silent.

    Args:
        loop: The event loop, whose `sock_connect` is replaced.
        port: A local port that accepts connections.
        refused: Addresses that refuse at once.
        silent: Addresses that never answer.
    """

    def __init__(
        self,
        loop: Any,
        port: int,
        refused: tuple[str, ...] = (),
        silent: tuple[str, ...] = (),
    ) -> None:
        self.attempts: list[tuple[str, float]] = []
        self.sockets: list[socket.socket] = []
        self._loop, self._port = loop, port
        self._refused, self._silent = refused, silent
        self._connect = loop.sock_connect
        loop.sock_connect = self._sock_connect

    async def _sock_connect(self, sock: socket.socket, address: tuple[str, int]) -> None:
        host = address[0]
        self.sockets.append(sock)
        self.attempts.append((host, self._loop.time()))
        if host in self._refused:
            raise ConnectionRefusedError(111, f"{host} refuses")
        if host in self._silent:
            await asyncio.sleep(60)
        await self._connect(sock, ("127.0.0.1", self._port))

    def order(self) -> list[str]:
        return [host for host, _ in self.attempts]

    def delay(self) -> float:
        """Time between the first two attempts, in s."""
        return self.attempts[1][1] - self.attempts[0][1]


def resolve_to(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    found = [
        (
            socket.AF_INET6 if ":" in host else socket.AF_INET,
            socket.SOCK_STREAM,
            socket.IPPROTO_TCP,
            "",
            (host, 6650),
        )
        for host in hosts
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


class Opened:
    """The session of a connection, for a test that needs only the connection."""

    def __init__(self, transport: Any) -> None:
        self.transport = transport
        self.peer = "test"

    def lost(self, error: Exception | None) -> None:
        """Do nothing when the connection ends."""


async def dial() -> Any:
    return await Sockets(TlsContext()).dial(parse("pulsar://h:6650")[0], Opened, 5)  # type: ignore[arg-type]


def run(runner: asyncio.Runner, main: Callable[[Any], Any]) -> None:
    runner.run(main(runner.get_loop()))


def test_the_next_address_is_tried_beside_a_silent_one_after_a_delay(
    runner: asyncio.Runner, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, "1.0.0.1", "1.0.0.2", "1.0.0.3")

    async def main(loop: Any) -> None:
        network = Network(loop, port, silent=("1.0.0.1",))
        session = await dial()
        assert network.order() == ["1.0.0.1", "1.0.0.2"]
        assert network.delay() == pytest.approx(DELAY_S, abs=0.15)
        silent, used = network.sockets
        assert silent.fileno() == -1
        assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        session.transport.abort()
        await asyncio.sleep(0.01)

    run(runner, main)


def test_the_next_address_is_tried_at_once_after_a_refusal_in_the_order_of_the_system(
    runner: asyncio.Runner, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = ("1.0.0.1", "1.0.0.2", "::2", "1.0.0.3")
    resolve_to(monkeypatch, *hosts)

    async def main(loop: Any) -> None:
        network = Network(loop, port, refused=hosts[:3])
        session = await dial()
        assert network.order() == list(hosts)
        assert network.delay() < DELAY_S / 2
        assert [each.fileno() for each in network.sockets[:3]] == [-1] * 3
        session.transport.abort()
        await asyncio.sleep(0.01)

    run(runner, main)


def test_an_error_names_every_address_that_failed(
    runner: asyncio.Runner, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, "1.0.0.1", "1.0.0.2")

    async def main(loop: Any) -> None:
        network = Network(loop, port, refused=("1.0.0.1", "1.0.0.2"))
        with pytest.raises(ConnectError, match=r"h:6650: .*1\.0\.0\.1 refuses.*1\.0\.0\.2 refuses"):
            await dial()
        assert [each.fileno() for each in network.sockets] == [-1, -1]

    run(runner, main)


def test_a_cancelled_connect_leaves_no_socket(
    runner: asyncio.Runner, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, "1.0.0.1", "1.0.0.2")

    async def main(loop: Any) -> None:
        network = Network(loop, port, silent=("1.0.0.1", "1.0.0.2"))
        dialing = asyncio.create_task(dial())
        await asyncio.sleep(2 * DELAY_S)
        assert len(network.sockets) == 2
        dialing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialing
        assert [each.fileno() for each in network.sockets] == [-1, -1]

    run(runner, main)
