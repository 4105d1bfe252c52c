"""The program of `docs/recipes/fastapi.md` as a process, with a handler that a test can hold."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx2

from .pages import DOCS, blocks_of

LIMIT_S: Final = 60
_HANDLER: Final = "async def bill(order: bytes) -> None: ..."
#: A handler that writes when it begins and ends. The order "hold" ends once the file `go` exists.
_HELD: Final = """
import asyncio, pathlib

def note(line):
    with open("handled", "a") as file:
        file.write(line + "\\n")

async def until(name):
    while not pathlib.Path(name).exists():
        await asyncio.sleep(0.01)

async def bill(order: bytes) -> None:
    note(f"begins {order.decode()}")
    if order == b"hold":
        await until("go")
    note(f"ends {order.decode()}")
"""
_ROUTES: Final = """
@api.post("/fail")
async def fail():
    worker._fail(RuntimeError("the subscription was removed"))
    await until("go")

@api.get("/hang")
async def hang():
    note("begins request")
    await until("never")

"""
_MAIN: Final = 'if __name__ == "__main__":'


class FastApiProcess:
    """The running program.

    Attributes:
        url: Of the API.
        health: Root of the probes.
    """

    def __init__(self, process: asyncio.subprocess.Process, folder: Path, ports: list[int]) -> None:
        self._process = process
        self._folder = folder
        self.url = f"http://127.0.0.1:{ports[0]}"
        self.health = f"http://127.0.0.1:{ports[1]}"

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def go(self) -> None:
        """End the handlers and requests that are held."""
        (self._folder / "go").touch()

    def handled(self) -> list[str]:
        """Return the lines of the handler, such as "begins hold"."""
        file = self._folder / "handled"
        return file.read_text().splitlines() if file.exists() else []

    async def until_handled(self, line: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            while line not in self.handled():
                await asyncio.sleep(0.02)

    async def until_ready_is(self, status: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while await status_of(f"{self.health}/ready") != status:
                assert self._process.returncode is None, "the process has ended"
                await asyncio.sleep(0.02)

    async def ended(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        async with asyncio.timeout(LIMIT_S):
            return await self._process.wait()


@asynccontextmanager
async def fastapi_process(folder: Path, url: str) -> AsyncIterator[FastApiProcess]:
    """Run the program until the block ends. It is ready when the block begins."""
    (block,) = blocks_of("recipes/fastapi.md")
    with socket.create_server(("127.0.0.1", 0)) as a, socket.create_server(("127.0.0.1", 0)) as b:
        ports = [a.getsockname()[1], b.getsockname()[1]]
    code = block.code
    for old, new in (
        ('"pulsar://localhost:6650"', repr(url)),
        (_HANDLER, _HELD),
        (_MAIN, _ROUTES + _MAIN),
        ("port=8000", f"port={ports[0]}"),
        ("port=8081", f"port={ports[1]}"),
        ("timeout_graceful_shutdown=5", "timeout_graceful_shutdown=1"),
    ):
        assert code.count(old) == 1
        code = code.replace(old, new)
    (folder / "program.py").write_text(code)
    paths = os.pathsep.join(map(str, (DOCS.parent / "sdk", DOCS.parent)))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "program.py"), cwd=folder, env=os.environ | {"PYTHONPATH": paths}
    )
    running = FastApiProcess(process, folder, ports)
    try:
        await running.until_ready_is(200)
        yield running
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def status_of(url: str) -> int:
    """Return the status; 0 if nobody listens."""
    try:
        async with httpx2.AsyncClient(trust_env=False) as http:
            return (await http.get(url)).status_code
    except httpx2.TransportError:
        return 0


async def post_and_forget(url: str) -> None:
    """Post a request. The server may end before it answers."""
    try:
        async with httpx2.AsyncClient(trust_env=False) as http:
            await http.post(url, timeout=LIMIT_S)
    except httpx2.TransportError:
        pass
