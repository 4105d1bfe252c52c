"""The answer of `/pending`: keys and errors of messages, for a client on this host."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from .probe_answers import Answer, json_answer, text_answer


def is_loopback(host: str) -> bool:
    """Return True for an address of this host, or the name "localhost"."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def refusal(client: str, headers: Mapping[str, str]) -> Answer | None:
    """Return 403 unless a client of this host asks for an address of this host.

    A proxy on this host, and a web page whose name was rebound to 127.0.0.1, also connect from
    this host. Their headers show it.

    Args:
        headers: Names are in lower case.
    """
    forwarded = {"forwarded", "x-forwarded-for", "x-real-ip"} & headers.keys()
    if is_loopback(client) and not forwarded and is_loopback(_host_of(headers.get("host", ""))):
        return None
    return text_answer(403, "/pending shows keys and errors: ask for it on 127.0.0.1.")


def pending_answer(listed: Iterable[tuple[str, Iterable[Any]]]) -> Answer:
    """Return the messages of each worker. `listed` has pairs of a name and its messages."""
    workers = [
        {"name": name, "pending": [_fields(each) for each in messages]} for name, messages in listed
    ]
    return json_answer(200, {"workers": workers})


def silent_answer(name: str) -> Answer:
    return text_answer(503, f"The event loop of worker {name} does not answer.")


def _fields(message: Any) -> dict[str, Any]:
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in asdict(message).items()
    }


def _host_of(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
