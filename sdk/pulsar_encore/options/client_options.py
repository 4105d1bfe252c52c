"""The checked options of a client, with the names and defaults of `pulsar-client`."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from ..errors import ConfigurationError
from .admin_url import check_admin_url
from .checks import check_booleans, integer, optional_text, readable_file, seconds

_URL: Final = re.compile(r"(pulsar|pulsar\+ssl|http|https)://[^\s/,]+(,[^\s/,]+)*/?|memory://")

#: Default of `recreate_after`, in s.
DEFAULT_RECREATE_AFTER_S: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientOptions:
    """Checked options of a client. `Client` documents the fields and their units."""

    service_url: Any
    authentication: Any = None
    operation_timeout_seconds: int = 30
    io_threads: int = 1
    message_listener_threads: int = 1
    concurrent_lookup_requests: int = 50_000
    log_conf_file_path: str | None = None  # accepted and ignored, as in pulsar-client
    stats_interval_in_seconds: int = 600
    use_tls: bool = False  # accepted and ignored, as in pulsar-client: the URL's scheme decides
    tls_trust_certs_file_path: str | None = None
    tls_allow_insecure_connection: bool = False
    tls_validate_hostname: bool = False
    logger: Any = None
    connection_timeout_ms: int = 10_000
    listener_name: str | None = None
    tls_private_key_file_path: str | None = None
    tls_certificate_file_path: str | None = None
    # Options of the native transport only. A timedelta is converted to s.
    partitions_update_interval: float | timedelta = 60.0
    reattach_timeout: float | timedelta | None = None
    recreate_after: float | timedelta = DEFAULT_RECREATE_AFTER_S
    max_partitions: int = 100_000
    max_uncompressed_size: int = 256 * 1024 * 1024
    admin_url: str | None = None

    def __post_init__(self) -> None:
        self._check_url()
        for name, unit in (
            ("operation_timeout_seconds", "s"),
            ("connection_timeout_ms", "ms"),
            ("io_threads", ""),
            ("message_listener_threads", ""),
            ("concurrent_lookup_requests", ""),
            ("max_partitions", ""),
            ("max_uncompressed_size", "bytes"),
        ):
            integer(getattr(self, name), name, low=1, unit=unit)
        if self.reattach_timeout is not None:
            self._to_seconds("reattach_timeout", hint=", or None for no limit")
        self._to_seconds("recreate_after")
        integer(self.stats_interval_in_seconds, "stats_interval_in_seconds", low=0, unit="s")
        self._to_seconds("partitions_update_interval", low=0.1)
        check_booleans(self)
        if self.admin_url is not None:
            object.__setattr__(self, "admin_url", check_admin_url(self.admin_url))
        for name in ("log_conf_file_path", "listener_name"):
            optional_text(getattr(self, name), name)
        # The C++ client would report a missing file as an authentication error.
        for name in (
            "tls_trust_certs_file_path",
            "tls_private_key_file_path",
            "tls_certificate_file_path",
        ):
            readable_file(getattr(self, name), name)
        # `auth` last: on our own classes, reading that attribute loads the C++ client.
        attributes = ("method_name", "auth")
        if self.authentication is not None and not any(
            hasattr(self.authentication, each) for each in attributes
        ):
            raise ConfigurationError(
                "authentication must be one of the Authentication classes, such as "
                f"AuthenticationToken, got {type(self.authentication).__name__}"
            )
        if self.logger is not None and not (
            isinstance(self.logger, logging.Logger) or hasattr(self.logger, "log_level")
        ):
            raise ConfigurationError(
                "logger must be a ConsoleLogger, a FileLogger, a logging.Logger or None, "
                f"got {type(self.logger).__name__}"
            )

    def _check_port(self, host: str) -> None:
        name, colon, port = host.rpartition(":")
        if not colon or host.endswith("]"):  # no port, or an IPv6 address in brackets
            return
        if not name:
            raise ConfigurationError(f"service_url {self.service_url!r} lacks a host before {host}")
        if not (port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65_535):
            raise ConfigurationError(
                f"service_url {self.service_url!r}: port {port!r} must be a number from 1 to 65535"
            )

    def _to_seconds(self, name: str, **limits: Any) -> None:
        object.__setattr__(self, name, seconds(getattr(self, name), name, **limits))

    def _check_url(self) -> None:
        url = self.service_url
        if isinstance(url, str):
            if not _URL.fullmatch(url):
                raise ConfigurationError(
                    "service_url must look like pulsar://host:6650 or pulsar+ssl://host:6651 "
                    f"(several hosts separated by commas), got {url!r}"
                )
            for host in url.partition("://")[2].rstrip("/").split(","):
                self._check_port(host)
            return
        # An AutoClusterFailover (of this package or pulsar-client), or a ServiceInfoProvider.
        if not (hasattr(url, "primary") or hasattr(url, "initial_service_info")):
            raise ConfigurationError(
                "service_url must be a str, an AutoClusterFailover or a ServiceInfoProvider, "
                f"got {type(url).__name__}"
            )
        for name in ("authentication", "tls_trust_certs_file_path"):
            if getattr(self, name) is not None:
                raise ConfigurationError(
                    f"{name} must be set in each ServiceInfo when service_url is not a str"
                )
