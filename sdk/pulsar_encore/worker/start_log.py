"""Log lines about workers that wait to start: one for each kind of reason and 10 s of a client."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from ..client import logger_of

if TYPE_CHECKING:
    from ..client import Client

_EVERY_S: Final = 10.0
_by_client: Final[
    WeakKeyDictionary[Client, WeakKeyDictionary[asyncio.AbstractEventLoop, StartLog]]
] = WeakKeyDictionary()


class StartLog:
    """The waits of the workers of one client on one event loop.

    A thousand workers that start during an outage have one reason. The first is logged at once, and
    the others are counted for the next line.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        # By kind, for the current 10 s: the number of workers, and the line of the last one.
        self._others: dict[str, tuple[int, str, str]] = {}

    def waits(self, worker: str, kind: str, reason: str) -> None:
        """Log at WARNING that a worker waits, or count it."""
        if kind in self._others:
            self._others[kind] = (self._others[kind][0] + 1, worker, reason)
            return
        self._log.warning("worker %s waits to start: %s", worker, reason)
        self._begin(kind)

    def _begin(self, kind: str) -> None:
        self._others[kind] = (0, "", "")
        asyncio.get_running_loop().call_later(_EVERY_S, self._end, kind)

    def _end(self, kind: str) -> None:
        count, worker, reason = self._others.pop(kind)
        if count:
            self._log.warning(
                "%d more workers of this client wait to start, the last is %s: %s",
                count,
                worker,
                reason,
            )
            self._begin(kind)


def start_log_of(client: Client) -> StartLog:
    """Return the log of a client on the running event loop."""
    of_client = _by_client.setdefault(client, WeakKeyDictionary())
    loop = asyncio.get_running_loop()
    if loop not in of_client:
        of_client[loop] = StartLog(logger_of(client)(__name__))
    return of_client[loop]
