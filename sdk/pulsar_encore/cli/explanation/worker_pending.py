"""The messages that a worker holds, from `/pending` of its health port."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from ...errors import ConfigurationError, TransportError
from .message_facts import PendingFacts

_TIMEOUT_S: Final = 10.0  # a health port waits 5 s for an event loop that does not answer


async def read_pending(url: str) -> Mapping[str, Any]:
    """Ask a health port. Raise TransportError if it does not answer with pending messages."""
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"--health must be like http://127.0.0.1:8081, got {url[:200]!r}")
    try:
        httpx2 = importlib.import_module("httpx2")
    except ModuleNotFoundError as error:
        raise ConfigurationError('--health needs httpx2: pip install "pulsar-encore[http]"') from (
            error
        )
    where = f"{url.rstrip('/').removesuffix('/pending')}/pending"
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as http:
            response = await http.get(where)
            answer = response.json() if response.status_code == 200 else None
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        reason = str(error) or type(error).__name__  # a timeout has no text
        raise TransportError(f"{where} does not answer: {reason}", result="ConnectError") from error
    if response.status_code in (403, 503):  # not on this host, or a blocked event loop: it says so
        raise TransportError(
            f"{where} answers {response.status_code}: {response.text.strip()[:200]}",
            result="ConnectError",
        )
    if not isinstance(answer, Mapping) or not isinstance(answer.get("workers"), list):
        raise TransportError(
            f"{where} answers {response.status_code} without pending messages: the worker needs "
            "health.serve(..., debug=True)",
            result="ConnectError",
        )
    return answer


def pending_by_id(answer: Mapping[str, Any]) -> dict[tuple[str, str], PendingFacts]:
    """Return the pending messages by (topic, id)."""
    found: dict[tuple[str, str], PendingFacts] = {}
    for worker in answer["workers"]:
        if not isinstance(worker, Mapping) or not isinstance(worker.get("pending"), list):
            continue
        for each in worker["pending"]:
            if isinstance(each, Mapping):
                attempt, error = each.get("attempt"), each.get("last_error")
                found[str(each.get("topic")), str(each.get("id"))] = PendingFacts(
                    worker=str(worker.get("name", "")),
                    state=str(each.get("state", "")),
                    attempt=attempt if isinstance(attempt, int) else None,
                    since_ms=_ms(each.get("since")),
                    due_ms=_ms(each.get("due")),
                    last_error=None if error is None else str(error),
                )
    return found


def _ms(text: object) -> int | None:
    try:
        return round(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except ValueError:
        return None
