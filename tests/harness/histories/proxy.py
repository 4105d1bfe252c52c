"""A TCP proxy in front of a broker, for connection faults.

Connections can be cut at once, and refused for a while or for ever. A broker tells clients its own
address, so the proxy parses frames: it puts its own address into LOOKUP_RESPONSE, and a smaller
max_message_size into CONNECTED, so that small messages are chunked.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from urllib.parse import urlsplit

from pulsar_encore.wire import pulsar_pb2 as pb

_READ = 256 * 1024


class Proxy:
    """Listens on a free loopback port, on the running loop.

    Args:
        url: The broker's service URL.
        max_message_size: The size in CONNECTED, in bytes; 0 leaves the broker's.
    """

    def __init__(self, url: str, *, max_message_size: int = 0) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6650)
        self._max_message_size = max_message_size
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0
        self.refusing = False

    @property
    def url(self) -> str:
        """The service URL for clients."""
        return f"pulsar://127.0.0.1:{self._port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Abort every connection and refuse new ones until `heal`."""
        self.refusing = True
        for writer in list(self._writers):
            writer.transport.abort()

    def heal(self) -> None:
        """Accept connections again."""
        self.refusing = False

    async def close(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            broker_reader, broker_writer = await asyncio.open_connection(*self._target)
        except OSError:
            self._writers.discard(writer)
            writer.transport.abort()
            return
        self._writers.add(broker_writer)
        pair = (writer, broker_writer)
        for coroutine in (
            self._forward_up(reader, broker_writer, pair),
            self._forward_down(broker_reader, writer, pair),
        ):
            task = asyncio.ensure_future(coroutine)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward_up(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ):
                writer.write(data)
                await writer.drain()
        self._abort_pair(pair)

    async def _forward_down(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ):
                ready, rest = self._frames(rest + data)
                if ready:
                    writer.write(ready)
                    await writer.drain()
        self._abort_pair(pair)

    def _abort_pair(self, pair: tuple[asyncio.StreamWriter, ...]) -> None:
        for writer in pair:
            self._writers.discard(writer)
            writer.transport.abort()

    def _frames(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the whole frames, with the necessary changes, and the incomplete rest."""
        out: list[bytes] = []
        at = copied_to = 0
        while at + 10 <= len(data):
            (total,) = struct.unpack_from(">I", data, at)
            end = at + 4 + total
            if end > len(data):
                break
            # BaseCommand begins with its type: tag 0x08, and a type below 128 is one byte.
            kind = data[at + 9] if data[at + 8] == 0x08 else -1
            if kind in (pb.BaseCommand.LOOKUP_RESPONSE, pb.BaseCommand.CONNECTED):
                out += (data[copied_to:at], self._rewrite(data[at + 8 : end]))
                copied_to = end
            at = end
        out.append(data[copied_to:at])
        return b"".join(out), data[at:]

    def _rewrite(self, raw: bytes) -> bytes:
        command = pb.BaseCommand.FromString(raw)
        if command.type == pb.BaseCommand.LOOKUP_RESPONSE:
            if command.lookupTopicResponse.brokerServiceUrl:
                command.lookupTopicResponse.brokerServiceUrl = self.url
        elif self._max_message_size:
            command.connected.max_message_size = self._max_message_size
        body = command.SerializeToString()
        return struct.pack(">II", len(body) + 4, len(body)) + body
