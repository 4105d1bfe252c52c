"""The errors of `explain --health` say why a health port has no pending messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pulsar_encore.cli.explanation.worker_pending import read_pending
from pulsar_encore.errors import TransportError


@contextmanager
def health_port(status: int, text: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        thread.join()


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (404, "There is no '/pending' here.", "needs health.serve(..., debug=True)"),
        (503, "The event loop of worker w does not answer.\n", "w does not answer."),
        (403, "ask for it on 127.0.0.1.", "answers 403: ask for it on 127.0.0.1."),
    ],
)
async def test_an_answer_without_messages_says_why(status: int, text: str, expected: str) -> None:
    with health_port(status, text) as url:
        with pytest.raises(TransportError) as caught:
            await read_pending(url)
    assert expected in str(caught.value)
    assert status == 404 or "debug" not in str(caught.value)
