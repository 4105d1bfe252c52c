"""`app`: health of workers as an ASGI application, for a server that the program already has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from ..options.checks import boolean
from ..worker.worker import Worker
from .metrics_text import metrics_answer
from .pending_list import pending_answer, refusal, silent_answer
from .probe_answers import (
    Answer,
    WorkerView,
    live_answer,
    ready_answer,
    text_answer,
    unknown_path,
)
from .worker_probe import WorkerProbe, check_workers, checked_limit, is_on_loop_of, look_at

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_WAIT_S: Final = 0.5


def app(
    *workers: Worker[Any], limit: float = 10.0, metrics: Any = None, debug: bool = False
) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Return an ASGI application with `/live`, `/ready` and `/metrics`, to be mounted.

    It runs on the event loop of its server. If that is also the loop of the workers, a blocked
    loop gives no answer at all: a probe needs a timeout, or use `serve`.

    Args:
        limit: As for `serve`, for workers on another event loop.
        metrics: As for `serve`.
        debug: Also serve `/pending`, to clients on 127.0.0.1.

    Raises:
        ConfigurationError: if an argument is wrong.

    Example:
        ```python
        api.mount("/health", encore.health.app(worker))
        ```
    """
    check_workers(workers, "app")
    return _App(workers, checked_limit(limit), metrics, boolean(debug, "debug"))


class _App:
    def __init__(
        self, workers: tuple[Worker[Any], ...], limit_s: float, metrics: Any, debug: bool
    ) -> None:
        self._probes = [WorkerProbe(each) for each in workers]
        self._limit_s = limit_s
        self._metrics = metrics
        self._debug = debug

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _serve_lifespan(receive, send)
        elif scope["type"] == "http":
            await _send_answer(await self._answer(scope), scope["method"], send)
        else:
            raise ValueError(f"health serves HTTP, not {scope['type']!r}")

    async def _answer(self, scope: Scope) -> Answer:
        # A server that mounts this application leaves the prefix in `path` (ASGI 3).
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["method"] not in ("GET", "HEAD"):
            return text_answer(405, "Use GET.")
        if path == "/live":
            return live_answer(await self._views(), self._limit_s)
        if path == "/ready":
            return ready_answer(await self._views(), self._limit_s)
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        if path == "/metrics":
            accept = headers.get("accept", "")
            if all(map(_is_readable_here, self._probes)):
                return metrics_answer(self._metrics, accept)
            # Reading waits for the other event loops, and must not block this one meanwhile.
            return await asyncio.to_thread(metrics_answer, self._metrics, accept)
        if path == "/pending" and self._debug:
            client = (scope.get("client") or ("",))[0]
            return refusal(client, headers) or await self._pending()
        return unknown_path(path)

    async def _views(self) -> list[WorkerView]:
        foreign = [each for each in self._probes if not _is_readable_here(each)]
        looked = await asyncio.to_thread(look_at, foreign, _WAIT_S) if foreign else []
        views = dict(zip(foreign, looked, strict=True))
        return [views.get(each) or each.read() for each in self._probes]

    async def _pending(self) -> Answer:
        listed = []
        for probe in self._probes:
            worker = probe.worker
            try:
                if _is_readable_here(probe):
                    listed.append((worker.name, worker.pending()))
                else:
                    found = await asyncio.to_thread(probe.ask, worker.pending, _WAIT_S)
                    listed.append((worker.name, found))
            except TimeoutError:
                return silent_answer(worker.name)
        return pending_answer(listed)


def _is_readable_here(probe: WorkerProbe) -> bool:
    return probe.is_readable() or is_on_loop_of(probe.worker)


async def _send_answer(answer: Answer, method: str, send: Send) -> None:
    headers = [
        (b"content-type", answer.content_type.encode("latin-1")),
        (b"content-length", str(len(answer.body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else answer.body})


async def _serve_lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
