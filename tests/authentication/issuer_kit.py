"""A small issuer of tokens on loopback that records requests and gives configured answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl


@dataclass
class Issuer:
    """An issuer with an answer for each path: (status, body).

    A dict is sent as JSON, bytes unchanged.
    """

    url: str = ""
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    hold: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def grants(self) -> list[dict[str, str]]:
        """Return the forms of all token requests."""
        return [form for method, path, form in self.asked if (method, path) == ("POST", "/token")]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, path, _ = head.split(" ", 2)
                length = 0
                for line in head.lower().split("\r\n"):
                    if line.startswith("content-length:"):
                        length = int(line.partition(":")[2])
                form = dict(parse_qsl((await reader.readexactly(length)).decode()))
                self.asked.append((method, path, form))
                await self.hold.wait()
                status, body = self.answers[path]
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                writer.write(
                    b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n\r\n%b" % (status, len(data), data)
                )
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def issuer() -> AsyncIterator[Issuer]:
    """Start an issuer that gives the token "token-1" for an hour."""
    made = Issuer()
    made.hold.set()
    async with await asyncio.start_server(made._serve, "127.0.0.1", 0) as server:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        made.answers["/.well-known/openid-configuration"] = (
            200,
            {"token_endpoint": f"{made.url}/token"},
        )
        made.answers["/token"] = (200, {"access_token": "token-1", "expires_in": 3600})
        yield made
