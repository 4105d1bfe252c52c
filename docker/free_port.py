"""Finds ports for a server that may be restarted.

A port from the range that the system gives to outgoing connections will not do. While the server is
down, a connection of any process may take it, even one that tries to reach this very port. The
server then cannot come back.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Collection

# Above the usual servers; below the default ranges for outgoing connections of Linux (from 32768)
# and macOS (from 49152).
PORTS = range(10_000, 32_768)
ATTEMPTS = 100

_random = random.SystemRandom()


def free_ports(count: int, *, besides: Collection[int] = ()) -> list[int]:
    """Return different ports of loopback on which no server listens.

    Another process may still take one before the server does.

    Args:
        besides: Ports that are spoken for.

    Raises:
        OSError: Too few free ports were found, or sockets are not allowed.
    """
    found: list[int] = []
    for port in _random.sample(PORTS, count + ATTEMPTS):
        if port not in besides and is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(errno.EADDRINUSE, f"nearly all ports from {PORTS[0]} to {PORTS[-1]} are in use")


def free_port() -> int:
    """Return a port of loopback on which no server listens: see `free_ports`."""
    return free_ports(1)[0]


def is_free(port: int) -> bool:
    """Return True if a server could listen on this port of loopback.

    Raises:
        OSError: The port cannot be used for another reason.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as e:
            if e.errno == errno.EADDRINUSE:
                return False
            raise
    return True
