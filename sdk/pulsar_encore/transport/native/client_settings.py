"""Settings of a native client. Times are in seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ...version import VERSION

CLIENT_VERSION: Final = f"pulsar-encore-{VERSION}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientSettings:
    """Timeouts and limits of one native client.

    Attributes:
        operation_timeout_s: Longest wait for one answer of a broker, and for the first attachment
            of a consumer or producer with all its retries.
        connection_timeout_s: Longest wait for a connection and its handshake.
        keep_alive_s: Interval of PINGs; infinite for none. A broker that is silent for two
            intervals is given up (`docs/notes/wire-protocol.md#keep-alive`).
        backoff_s, max_backoff_s: First and longest delay before a retry; it doubles.
        idle_s: An unused connection is closed after one to two of these; 0 keeps it.
        discovery_s: Interval at which new partitions of named topics are looked for.
        listener_name: The advertised listener of the brokers to use.
        lookups: Most lookups at a time.
        reattach_timeout_s: How long attaching again is retried after a loss; None for ever.
        recreate_after_s: How long a topic must be missing before a consumer or producer that was
            attached to it creates it again.
        max_uncompressed_size: Largest payload of an entry or chunked message, compressed or not, in
            bytes.
        logger_of: Returns the logger of the client for the name of a logger of this package.
    """

    operation_timeout_s: float = 30.0
    connection_timeout_s: float = 10.0
    keep_alive_s: float = 30.0
    backoff_s: float = 0.1
    max_backoff_s: float = 60.0
    idle_s: float = 60.0
    discovery_s: float = 60.0
    listener_name: str | None = None
    lookups: int = 50_000
    reattach_timeout_s: float | None = None
    recreate_after_s: float = 60.0
    max_partitions: int = 100_000
    max_uncompressed_size: int = 256 * 1024 * 1024
    logger_of: Callable[[str], logging.Logger] = logging.getLogger
