"""Service addresses with credentials, and failover, with the names of `pulsar-client`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

from .. import stock
from ..authentication.authentication import Authentication, check, text
from ..errors import ConfigurationError
from ..options.checks import integer


class ServiceInfo:
    """The address of one cluster and how to connect to it.

    Args:
        service_url: An address, as in `Client`.
        authentication: One of the Authentication classes, or None.
        tls_trust_certs_file_path: File with trusted certificates, or None.

    Raises:
        ConfigurationError: if an argument has the wrong type.
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
        """An Authentication of this package or of `pulsar-client`, or None, as it was passed."""
        return self._authentication

    @property
    def use_tls(self) -> bool:
        """True if the scheme of the address is that of TLS."""
        return self._service_url.startswith(("pulsar+ssl://", "https://"))

    @property
    def tls_trust_certs_file_path(self) -> str | None:
        return self._certificates

    @cached_property
    def _service_info(self) -> Any:
        """The value as an object of the C++ client."""
        native = None if self._authentication is None else self._authentication.auth
        return stock.library().ServiceInfo(self._service_url, native, self._certificates)

    @classmethod
    def wrap(cls, service_info: Any) -> Self:
        """Convert an object of the C++ client, which keeps its authentication."""
        info = cls(service_info.service_url, None, service_info.tls_trust_certs_file_path)
        info.__dict__["_service_info"] = service_info
        return info

    def __repr__(self) -> str:
        return (
            f"ServiceInfo(service_url={self.service_url!r}, use_tls={self.use_tls!r}, "
            f"tls_trust_certs_file_path={self.tls_trust_certs_file_path!r})"
        )


class ServiceInfoProvider:
    """Tells a client which cluster to use, now and later. Subclasses implement the methods.

    Example:
        ```python
        class FromRegistry(pulsar_encore.ServiceInfoProvider):
            def initial_service_info(self):
                return pulsar_encore.ServiceInfo(registry.current())

            def initialize(self, on_service_info_update):
                registry.subscribe(
                    lambda url: on_service_info_update(pulsar_encore.ServiceInfo(url))
                )
        ```
    """

    def initial_service_info(self) -> ServiceInfo:
        """Return the cluster to connect to first."""
        raise NotImplementedError

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        """Store a function that moves the client to another cluster. Called once."""
        raise NotImplementedError

    def close(self) -> None:
        """Release resources. Called when the client is closed."""


class AutoClusterFailover:
    """A primary cluster, and others to use while the primary does not answer.

    Args:
        primary: The preferred cluster.
        secondary: The other clusters, in order; at least one.
        check_interval_ms: Time between two probes, in ms.
        failover_threshold: Failed probes in a row after which the client leaves a cluster.
        switch_back_threshold: Successful probes of `primary` in a row after which the client
            returns.

    Raises:
        ConfigurationError: if a value is wrong.

    Example:
        ```python
        client = pulsar_encore.Client(
            pulsar_encore.AutoClusterFailover(
                pulsar_encore.ServiceInfo("pulsar://east:6650"),
                [pulsar_encore.ServiceInfo("pulsar://west:6650")],
            )
        )
        ```
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
