"""Between a client and its broker: loses what the client sends, and the connections.

Owns `Relay`. Everything passes as it comes but for the answers to lookups, which name the relay: so
the client comes back to it, whatever address the broker advertises.
"""

from __future__ import annotations

import asyncio
from typing import Final, Self

from pulsar_encore.wire import frames, pb

_CHUNK: Final = 1 << 16


class Relay:
    """A broker's address for one test; an async context manager.

    Args:
        url: `pulsar://host:port` of the broker.
    """

    def __init__(self, url: str) -> None:
        self._host, _, port = url.removeprefix("pulsar://").partition(":")
        self._port = int(port)
        self._deaf = False
        self._open: set[asyncio.StreamWriter] = set()
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url: str = f"pulsar://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._running, return_exceptions=True)

    def lose_what_is_sent(self) -> None:
        """From now on nothing of the client's reaches the broker, until `cut`."""
        self._deaf = True

    def cut(self) -> None:
        """End every connection at once; new ones are served."""
        self._deaf = False
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        self._open.add(answers)
        try:
            broker, commands = await asyncio.open_connection(self._host, self._port)
            self._open.add(commands)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._up(client, commands))
                    group.create_task(self._down(broker, answers))
            finally:
                self._open.discard(commands)
                commands.transport.abort()
        except* (OSError, asyncio.IncompleteReadError):
            pass  # one side is gone, and so is the other now
        finally:
            self._open.discard(answers)
            self._running.discard(task)
            answers.transport.abort()

    async def _up(self, client: asyncio.StreamReader, commands: asyncio.StreamWriter) -> None:
        while data := await client.read(_CHUNK):
            if not self._deaf:
                commands.write(data)
                await commands.drain()
        raise ConnectionResetError("the client has closed")

    async def _down(self, broker: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        while True:
            frame = await broker.readexactly(4)
            frame += await broker.readexactly(int.from_bytes(frame))
            size = int.from_bytes(frame[4:8])
            command = pb.BaseCommand.FromString(frame[8 : 8 + size])
            if command.type == pb.BaseCommand.LOOKUP_RESPONSE:
                command.lookupTopicResponse.brokerServiceUrl = self.url
                frame = frames.encode(command)
            answers.write(frame)
            await answers.drain()
