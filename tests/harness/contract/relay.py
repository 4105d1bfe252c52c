"""A proxy between a client and its broker that drops the client's bytes and its connections.

By default everything passes unchanged except answers to lookups, which get the proxy's address. The
client therefore reconnects to the proxy, whatever address the broker advertises.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, Self

from pulsar_encore.wire import frames, pb

_CHUNK: Final = 1 << 16


class Relay:
    """A proxy address for one test. An async context manager.

    Args:
        url: `pulsar://host:port` of the broker.
        change: Called with each command of the broker except MESSAGE, which it may change.
        tls: Context of a server, for a proxy that speaks TLS with its clients.
    """

    def __init__(
        self,
        url: str,
        *,
        change: Callable[[pb.BaseCommand], object] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._host, _, port = url.removeprefix("pulsar://").partition(":")
        self._port = int(port)
        self._change = change or self._name_itself
        self._tls = tls
        self._drops_client_bytes = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        port = self._server.sockets[0].getsockname()[1]
        self.url: str = f"{'pulsar' if self._tls is None else 'pulsar+ssl'}://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop_client_bytes(self) -> None:
        """Drop everything that the client sends, until `cut`."""
        self._drops_client_bytes = True

    def cut(self) -> None:
        """End every connection at once. New connections are served."""
        self._drops_client_bytes = False
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(answers)
        try:
            broker, commands = await asyncio.open_connection(self._host, self._port)
            self._writers.add(commands)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._forward_to_broker(client, commands))
                    group.create_task(self._forward_to_client(broker, answers))
            finally:
                self._writers.discard(commands)
                commands.transport.abort()
        except* (OSError, asyncio.IncompleteReadError):
            pass  # one side has closed, so the other is closed too
        finally:
            self._writers.discard(answers)
            self._tasks.discard(task)
            answers.transport.abort()

    async def _forward_to_broker(
        self, client: asyncio.StreamReader, commands: asyncio.StreamWriter
    ) -> None:
        while data := await client.read(_CHUNK):
            if not self._drops_client_bytes:
                commands.write(data)
                await commands.drain()
        raise ConnectionResetError("the client has closed")

    async def _forward_to_client(
        self, broker: asyncio.StreamReader, answers: asyncio.StreamWriter
    ) -> None:
        while True:
            frame = await broker.readexactly(4)
            frame += await broker.readexactly(int.from_bytes(frame))
            size = int.from_bytes(frame[4:8])
            command = pb.BaseCommand.FromString(frame[8 : 8 + size])
            if command.type != pb.BaseCommand.MESSAGE:  # its payload follows the command
                self._change(command)
                frame = frames.encode(command)
            answers.write(frame)
            await answers.drain()

    def _name_itself(self, command: pb.BaseCommand) -> None:
        if command.type == pb.BaseCommand.LOOKUP_RESPONSE:
            command.lookupTopicResponse.brokerServiceUrl = self.url
