"""A TCP proxy before a broker, for faults of the connection.

Owns `Proxy`: what it forwards is cut at once, refused for a while, or for ever. A broker tells a
client its own address, so the proxy reads frames as far as it must: it puts its own address into
LOOKUP_RESPONSE, and a smaller max_message_size into CONNECTED so that small messages are chunked.
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
        max_message_size: What clients are told, in bytes; 0 leaves it as it is.
    """

    def __init__(self, url: str, *, max_message_size: int = 0) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6650)
        self._max_message_size = max_message_size
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0
        self.refusing = False

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"pulsar://127.0.0.1:{self._port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Abort every connection and refuse new ones until `heal`."""
        self.refusing = True
        for link in list(self._links):
            link.transport.abort()

    def heal(self) -> None:
        """Take connections again."""
        self.refusing = False

    async def close(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        self._links.add(writer)
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            self._links.discard(writer)
            writer.transport.abort()
            return
        self._links.add(back)
        pair = (writer, back)
        for coroutine in (self._up(reader, back, pair), self._down(there, writer, pair)):
            task = asyncio.ensure_future(coroutine)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _up(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ):
                writer.write(data)
                await writer.drain()
        self._end(pair)

    async def _down(
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
        self._end(pair)

    def _end(self, pair: tuple[asyncio.StreamWriter, ...]) -> None:
        for link in pair:
            self._links.discard(link)
            link.transport.abort()

    def _frames(self, data: bytes) -> tuple[bytes, bytes]:
        """Whole frames, those rewritten that must be, and what is left of the last."""
        out: list[bytes] = []
        at = kept = 0
        while at + 10 <= len(data):
            (total,) = struct.unpack_from(">I", data, at)
            end = at + 4 + total
            if end > len(data):
                break
            # BaseCommand begins with its type: tag 0x08, and a type below 128 is one byte.
            kind = data[at + 9] if data[at + 8] == 0x08 else -1
            if kind in (pb.BaseCommand.LOOKUP_RESPONSE, pb.BaseCommand.CONNECTED):
                out += (data[kept:at], self._rewritten(data[at + 8 : end]))
                kept = end
            at = end
        out.append(data[kept:at])
        return b"".join(out), data[at:]

    def _rewritten(self, raw: bytes) -> bytes:
        command = pb.BaseCommand.FromString(raw)
        if command.type == pb.BaseCommand.LOOKUP_RESPONSE:
            if command.lookupTopicResponse.brokerServiceUrl:
                command.lookupTopicResponse.brokerServiceUrl = self.url
        elif self._max_message_size:
            command.connected.max_message_size = self._max_message_size
        body = command.SerializeToString()
        return struct.pack(">II", len(body) + 4, len(body)) + body
