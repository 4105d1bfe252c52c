"""A proxy of one client that loses, holds or swallows one command of a transaction."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Literal, Self, TypeAlias

from pulsar_encore.wire import frames, pb

Loss: TypeAlias = Literal["before", "after", "swallow", "hold"]
"""What happens to a command: the connection is cut `before` the broker gets it, or `after` that and
before the client gets its answer. `swallow` drops only the answer, and the connection stays. `hold`
keeps the command, and everything behind it, until `release`."""

_ANSWERS: Final = {
    "NEW_TXN_RESPONSE": "NEW_TXN",
    "ADD_PARTITION_TO_TXN_RESPONSE": "ADD_PARTITION_TO_TXN",
    "ADD_SUBSCRIPTION_TO_TXN_RESPONSE": "ADD_SUBSCRIPTION_TO_TXN",
    "SEND_RECEIPT": "SEND",
    "ACK_RESPONSE": "ACK",
    "END_TXN_RESPONSE": "END_TXN",
}


class FaultyLink:
    """A proxy address for one client. An async context manager.

    Attributes:
        url: The service URL for the client.
        hit: Set when the command of `lose` or `hold` has come.
    """

    url: str

    def __init__(self, broker_url: str) -> None:
        self._host, _, port = broker_url.removeprefix("pulsar://").partition(":")
        self._port = int(port)
        self._command = ""
        self._loss: Loss = "before"
        self._times = 0
        self._released = asyncio.Event()
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.hit: asyncio.Event = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"pulsar://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._released.set()
        self._cut(list(self._writers))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def lose(self, command: str, loss: Loss, times: int = 1) -> None:
        """Lose the next commands of a type, such as END_TXN."""
        self._command, self._loss, self._times = command, loss, times
        self.hit.clear()

    def release(self) -> None:
        """Let the held command go on."""
        self._released.set()

    def refuse(self) -> None:
        """Cut every connection and refuse new ones, until `accept`."""
        self._refuses = True
        self._cut(list(self._writers))

    def accept(self) -> None:
        """Serve new connections again, and lose no more commands."""
        self._refuses, self._times = False, 0

    def _cut(self, writers: list[asyncio.StreamWriter]) -> None:
        for writer in writers:
            writer.transport.abort()

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = [answers]
        try:
            if self._refuses:
                return
            broker, commands = await asyncio.open_connection(self._host, self._port)
            writers.append(commands)
            self._writers.update(writers)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(client, commands, writers, "before", "hold"))
                group.create_task(self._forward(broker, answers, writers, "after", "swallow"))
        except* (OSError, asyncio.IncompleteReadError):
            pass  # one side has closed
        finally:
            self._writers.difference_update(writers)
            self._tasks.discard(task)
            self._cut(writers)

    async def _forward(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        writers: list[asyncio.StreamWriter],
        *losses: Loss,
    ) -> None:
        while True:
            frame = await source.readexactly(4)
            frame += await source.readexactly(int.from_bytes(frame))
            command = pb.BaseCommand.FromString(frame[8 : 8 + int.from_bytes(frame[4:8])])
            if self._loss in losses and self._is_due(command):
                self._times -= 1
                self.hit.set()
                if self._loss == "swallow":
                    continue
                if self._loss == "hold":
                    await self._released.wait()
                else:
                    self._cut(writers)
                    raise ConnectionResetError("cut")
            if command.type == pb.BaseCommand.LOOKUP_RESPONSE:
                command.lookupTopicResponse.brokerServiceUrl = self.url
                frame = frames.encode(command)
            with contextlib.suppress(ConnectionResetError):  # the other direction reports it
                target.write(frame)
                await target.drain()

    def _is_due(self, command: pb.BaseCommand) -> bool:
        name = pb.BaseCommand.Type.Name(command.type)
        if command.type == pb.BaseCommand.ACK and not command.ack.HasField("txnid_least_bits"):
            return False
        return self._times > 0 and _ANSWERS.get(name, name) == self._command
