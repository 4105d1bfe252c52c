"""Where a client connects when that is more than an address, under stock's names.

Owns `ServiceInfo`, `AutoClusterFailover` and `ServiceInfoProvider`: plain values. Who moves between
clusters is the transport.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

from .. import stock
from ..authentication.authentication import Authentication, check, text
from ..errors import ConfigurationError
from ..options.checks import integer


class ServiceInfo:
    """One cluster, and how to connect to it.

    Args:
        service_url: As a `Client` takes it, a str.
        authentication: One of the Authentication classes, or None.
        tls_trust_certs_file_path: Trusted certificates, or None.

    Raises:
        ConfigurationError: An argument is of another kind.
    """

    def __init__(
        self,
        service_url: str,
        authentication: Authentication | None = None,
        tls_trust_certs_file_path: str | None = None,
    ) -> None:
        self._service_url = text(service_url, "service_url")
        check(authentication, "authentication")
        self._authentication = authentication
        if tls_trust_certs_file_path is not None:
            text(tls_trust_certs_file_path, "tls_trust_certs_file_path")
        self._certificates = tls_trust_certs_file_path

    @property
    def service_url(self) -> str:
        return self._service_url

    @property
    def authentication(self) -> Any:
        """As it was given: one of the Authentication classes, stock's or ours, or None."""
        return self._authentication

    @property
    def use_tls(self) -> bool:
        """As the scheme of the address says."""
        return self._service_url.startswith(("pulsar+ssl://", "https://"))

    @property
    def tls_trust_certs_file_path(self) -> str | None:
        return self._certificates

    @cached_property
    def _service_info(self) -> Any:
        """The C++ library's object, as stock's own code takes it."""
        native = None if self._authentication is None else self._authentication.auth
        return stock.library().ServiceInfo(self._service_url, native, self._certificates)

    @classmethod
    def wrap(cls, service_info: Any) -> Self:
        """One of the C++ library's object; its authentication stays in there."""
        info = cls(service_info.service_url, None, service_info.tls_trust_certs_file_path)
        info.__dict__["_service_info"] = service_info
        return info

    def __repr__(self) -> str:
        return (
            f"ServiceInfo(service_url={self.service_url!r}, use_tls={self.use_tls!r}, "
            f"tls_trust_certs_file_path={self.tls_trust_certs_file_path!r})"
        )


class ServiceInfoProvider:
    """Tells a client where to connect, now and later; a subclass says how it knows."""

    def initial_service_info(self) -> ServiceInfo:
        """Where the client connects first."""
        raise NotImplementedError

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        """Called once; the client goes where `on_service_info_update` is told."""
        raise NotImplementedError

    def close(self) -> None:
        """Called when the client is closed."""


class AutoClusterFailover:
    """Clusters to go to when the first does not answer.

    Args:
        primary: The one to be on when it answers.
        secondary: The others, in order; at least one.
        check_interval_ms: From probe to probe, in ms.
        failover_threshold: So many probes in a row fail before the client leaves.
        switch_back_threshold: So many probes of `primary` in a row succeed before it returns.

    Raises:
        ConfigurationError: A value is wrong; the text names it.
    """

    def __init__(
        self,
        primary: ServiceInfo,
        secondary: list[ServiceInfo],
        check_interval_ms: int = 5000,
        failover_threshold: int = 1,
        switch_back_threshold: int = 1,
    ) -> None:
        if not isinstance(secondary, list) or not secondary:
            raise ConfigurationError("secondary must be a list of at least one ServiceInfo")
        _check_service_info(primary, "primary")
        for index, each in enumerate(secondary):
            _check_service_info(each, f"secondary[{index}]")
        self.primary: ServiceInfo = primary
        self.secondary: list[ServiceInfo] = list(secondary)
        self.check_interval_ms: int = integer(
            check_interval_ms, "check_interval_ms", low=1, unit="ms"
        )
        self.failover_threshold: int = integer(failover_threshold, "failover_threshold", low=1)
        self.switch_back_threshold: int = integer(
            switch_back_threshold, "switch_back_threshold", low=1
        )

    def __repr__(self) -> str:
        return (
            f"AutoClusterFailover(primary={self.primary!r}, secondary={self.secondary!r}, "
            f"check_interval_ms={self.check_interval_ms!r}, "
            f"failover_threshold={self.failover_threshold!r}, "
            f"switch_back_threshold={self.switch_back_threshold!r})"
        )


def _check_service_info(value: Any, name: str) -> None:
    if not (isinstance(value, ServiceInfo) or stock.is_one(value, "pulsar.ServiceInfo")):
        raise ConfigurationError(f"{name} must be a ServiceInfo, got {type(value).__name__}")
