"""An event loop and clients for Spark's driver and workers, which have no event loop.

Each process creates its `Runtime` on first use, and so after any fork. The loop has its own thread,
so that connections answer their brokers while Spark is busy.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, Final, TypeVar

from ..client import Client
from ..errors import TransportTimeout
from ..eventloop.process import at_exit
from .connection_options import ConnectionOptions

T = TypeVar("T")

_STOP_TIMEOUT_S: Final = 5.0


class Runtime:
    """A running event loop, and one client per set of connection options."""

    def __init__(self) -> None:
        self.loop: Final = asyncio.new_event_loop()
        self._clients: dict[ConnectionOptions, Client] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="pulsar-encore", daemon=True
        )
        self._thread.start()

    def client(self, connection: ConnectionOptions) -> Client:
        with self._lock:
            client = self._clients.get(connection)
            if client is None:
                client = self._clients[connection] = connection.open()
            return client

    def call(self, work: Coroutine[Any, Any, T], doing: str, timeout_s: float | None = None) -> T:
        """Run `work` on the loop and wait for its end; cancel it on a timeout.

        `doing` names the work in the text of TransportTimeout.
        """
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except TimeoutError as error:
            if future.done():  # the error of `work` itself
                raise
            future.cancel()
            raise TransportTimeout(f"{doing}: no answer in {timeout_s:g} s") from error
        except CancelledError as error:
            raise TransportTimeout(f"{doing}: cancelled") from error
        except BaseException:
            future.cancel()  # after an interrupt, nothing stays in flight
            raise

    def stop(self) -> None:
        with self._lock:
            clients = list(self._clients.values())
            self._clients.clear()

        async def close() -> None:
            await asyncio.gather(*(each.close() for each in clients), return_exceptions=True)

        if self.loop.is_running():
            closing = asyncio.run_coroutine_threadsafe(close(), self.loop)
            try:
                closing.result(_STOP_TIMEOUT_S)
            except (TimeoutError, CancelledError):
                pass  # the brokers notice the closed connections
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_TIMEOUT_S)
        if not self._thread.is_alive():
            self.loop.close()


_runtimes: dict[int, Runtime] = {}
_creation_lock = threading.Lock()


def runtime() -> Runtime:
    pid = os.getpid()
    found = _runtimes.get(pid)
    if found is None:
        with _creation_lock:
            found = _runtimes.get(pid)
            if found is None:
                _runtimes.clear()  # the parent's runtime, whose threads do not exist here
                found = _runtimes[pid] = Runtime()
    return found


@at_exit
def end_runtime() -> None:
    """Stop the runtime of this process, if there is one. Its next use makes another."""
    found = _runtimes.pop(os.getpid(), None)
    if found is not None:
        found.stop()


def _in_child() -> None:
    global _creation_lock
    _creation_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
