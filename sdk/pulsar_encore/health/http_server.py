"""`serve`: health of workers on a port, from threads that a blocked event loop does not stop."""

from __future__ import annotations

import errno
import os
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from types import TracebackType
from typing import Any, ClassVar, Final, Self
from weakref import WeakSet

from ..errors import ConfigurationError
from ..options.checks import boolean, integer
from ..worker.worker import Worker
from .metrics_text import metrics_answer
from .pending_list import is_loopback, pending_answer, refusal, silent_answer
from .probe_answers import Answer, live_answer, ready_answer, text_answer, unknown_path
from .worker_probe import WorkerProbe, check_workers, checked_limit, look_at

_WAIT_S: Final = 0.5
"""How long an answer waits for an event loop: a kubelet gives a probe 1 s by default."""
_CLIENT_S: Final = 5.0
_CONNECTIONS: Final = 32


def serve(
    *workers: Worker[Any],
    port: int = 8080,
    host: str | None = None,
    limit: float = 10.0,
    metrics: Any = None,
    debug: bool = False,
) -> HealthServer:
    """Return a server of `/live`, `/ready` and `/metrics` for a `with` or `async with` statement.

    It answers from threads of its own, also while the event loop is blocked.

    Args:
        port: The port; 0 for a free one, which is then the attribute `port`.
        host: The address to listen on; None for all addresses, IPv4 and IPv6, or 127.0.0.1 with
            `debug`.
        limit: Seconds without an answer of a worker's event loop after which `/live` is 503.
        metrics: A registry of prometheus_client, or an object with a `registry`. None for the
            default registry, if the program uses `pulsar_encore.prometheus`.
        debug: Also serve `/pending`, which shows ids, keys and errors. Only for a loopback `host`.

    Raises:
        ConfigurationError: if an argument is wrong. The `with` statement raises it if the port is
            in use.

    Example:
        ```python
        async with encore.health.serve(worker, port=8080):
            await encore.run(worker)
        ```
    """
    check_workers(workers, "serve")
    integer(port, "port", low=0, high=65535)
    if boolean(debug, "debug") and host is not None and not is_loopback(host):
        raise ConfigurationError(
            f"debug=True shows keys and errors of messages, so host must be 127.0.0.1, got {host!r}"
        )
    if debug and host is None:
        host = "127.0.0.1"
    return HealthServer(workers, host, port, checked_limit(limit), metrics, debug)


class HealthServer:
    """A server of probes. Made by `serve`; it listens inside of a `with` statement.

    Attributes:
        port: The port that it listens on.
    """

    def __init__(
        self,
        workers: tuple[Worker[Any], ...],
        host: str | None,
        port: int,
        limit_s: float,
        metrics: Any,
        debug: bool,
    ) -> None:
        self.port: int = port
        self._host = host
        self._limit_s = limit_s
        self._metrics = metrics
        self._debug = debug
        self._probes = [WorkerProbe(each) for each in workers]
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Listen.

        Raises:
            ConfigurationError: if the server already listens, or if it cannot listen on the port.
        """
        if self._server is not None:
            raise ConfigurationError(f"this server already listens on port {self.port}")
        self._server = _listener(self._host, self.port, self)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.05},
            name="pulsar-encore-health",
            daemon=True,
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        if self._thread is not None and self._thread.is_alive():  # False in a forked process
            server.shutdown()
        server.server_close()
        server.drop_connections()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, trace)

    def answer(self, path: str, client: str, headers: dict[str, str]) -> Answer:
        """Return the answer for a path. Any thread can call this."""
        if path == "/live":
            return live_answer(look_at(self._probes, _WAIT_S), self._limit_s)
        if path == "/ready":
            return ready_answer(look_at(self._probes, _WAIT_S), self._limit_s)
        if path == "/metrics":
            return metrics_answer(self._metrics, headers.get("accept", ""))
        if path == "/pending" and self._debug:
            return refusal(client, headers) or self._pending()
        return unknown_path(path)

    def _pending(self) -> Answer:
        listed = []
        for probe in self._probes:
            try:
                listed.append((probe.worker.name, probe.ask(probe.worker.pending, _CLIENT_S)))
            except TimeoutError:
                return silent_answer(probe.worker.name)
        return pending_answer(listed)


def _listener(host: str | None, port: int, owner: HealthServer) -> _Server:
    try:
        if host is None:
            return _listener_of_all(port, owner)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return _Server(family, address, owner)
    except OSError as error:
        raise ConfigurationError(
            f"health cannot listen on port {port} of {host or 'all addresses'}: {error}. Give "
            "another port=, or 0 for a free one"
        ) from error


def _listener_of_all(port: int, owner: HealthServer) -> _Server:
    if socket.has_dualstack_ipv6():
        try:
            # The pods of an IPv6-only cluster have no IPv4 address that a probe could ask.
            return _Server(socket.AF_INET6, ("::", port), owner)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return _Server(socket.AF_INET, ("0.0.0.0", port), owner)  # IPv6 is turned off


_open_servers: Final[WeakSet[_Server]] = WeakSet()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    # Python 3.12.5 and later set SO_REUSEPORT for `HTTPServer`. A second process would then listen
    # on the same port without an error, and get half of the probes.
    allow_reuse_port = False
    request_queue_size = 128  # the default, 5, makes a probe wait behind other clients

    def __init__(self, family: int, address: Any, owner: HealthServer) -> None:
        self.address_family = family
        self.owner = owner
        self._lock = threading.Lock()
        self._connections: dict[int, socket.socket] = {}  # the oldest first
        super().__init__(address, _Handler)
        _open_servers.add(self)

    def server_bind(self) -> None:
        # HTTPServer looks up the name of the host, which takes many seconds without a DNS server.
        if self.address_family == socket.AF_INET6 and self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections[id(request)] = request
            # Clients that send nothing must not keep out a probe.
            if len(self._connections) > _CONNECTIONS:
                _shut(self._connections.pop(next(iter(self._connections))))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(id(request), None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that went away. The base class prints its stack."""

    def drop_connections(self) -> None:
        with self._lock:
            for each in self._connections.values():
                _shut(each)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _in_child() -> None:
    # The parent's port would stay open in a forked child, where no thread accepts connections.
    for each in tuple(_open_servers):
        each.socket.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout: ClassVar[float] = _CLIENT_S
    server_version = "pulsar-encore"
    sys_version = ""

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        path = self.path.partition("?")[0]
        try:
            answer = self.server.owner.answer(path, str(self.client_address[0]), headers)
        except Exception as error:
            answer = text_answer(500, f"{type(error).__name__}: the answer could not be made.")
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: probes come every few seconds."""
