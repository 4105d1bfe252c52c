"""The options of a `Client(...)`, converted for the native transport.

Options that only concern the C++ client are ignored. So is `tls_validate_hostname`: its default is
False as in `pulsar-client`, which cannot be told from a chosen False. The host name in a
certificate is always verified, unless `tls_allow_insecure_connection` is set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from ... import authentication, stock
from ...authentication import Authentication, AuthenticationTLS
from ...authentication.oauth2 import AuthenticationOauth2
from ...errors import ConfigurationError, NotSupportedError
from ...options import ClientOptions
from ...options.checks import seconds
from ...values.service_info import AutoClusterFailover, ServiceInfo, ServiceInfoProvider
from .client_settings import ClientSettings
from .clusters import Clusters, Failover, OneCluster, Provided
from .connection.cluster_service import ClusterService
from .connection.sockets import Sockets
from .connection.tls_context import TlsContext


def unsupported(options: ClientOptions) -> str | None:
    """Return why the native transport does not support the options, or None."""
    where = options.service_url
    if isinstance(where, str):
        if where.startswith("memory:"):
            return "memory:// needs the stock transport"
        return _unreachable_reason(where) or _unsupported_authentication(options.authentication)
    if isinstance(where, AutoClusterFailover):
        infos = [where.primary, *where.secondary]
        return next(filter(None, map(_unsupported_info, infos)), None)
    if not isinstance(where, ServiceInfoProvider):
        for name in ("AutoClusterFailover", "ServiceInfoProvider"):
            if stock.is_one(where, f"pulsar.{name}"):
                return (
                    f"service_url is a pulsar.{name}, of pulsar-client: only the C++ client can "
                    "read its ServiceInfos; use the class of pulsar_encore"
                )
    return None  # the result of a provider is checked when it arrives


def _unsupported_info(info: Any) -> str | None:
    if not isinstance(info, ServiceInfo):
        return (
            "a ServiceInfo is of pulsar-client, and only the C++ client can read it: use "
            "pulsar_encore.ServiceInfo"
        )
    return _unreachable_reason(info.service_url) or _unsupported_authentication(info.authentication)


def _unreachable_reason(url: str) -> str | None:
    if url.startswith("http") and not has_httpx2():
        return "a service_url of http needs httpx2: pip install 'pulsar-encore[http]'"
    return None


def _unsupported_authentication(given: Any) -> str | None:
    try:
        known = authentication.of(given)
    except NotSupportedError as error:
        return str(error)
    if known is None:
        return None
    if type(known).data is Authentication.data:
        return f"{type(known).__name__} needs the stock transport"
    if isinstance(known, AuthenticationOauth2) and not has_httpx2():
        return "AuthenticationOauth2 needs httpx2: pip install 'pulsar-encore[oauth2]'"
    return None


def has_httpx2() -> bool:
    return find_spec("httpx2") is not None


def of_options(
    options: ClientOptions, logger_of: Callable[[str], logging.Logger] = logging.getLogger
) -> tuple[Clusters, ClientSettings]:
    """Return the clusters and the settings of a native client.

    Args:
        logger_of: Returns the logger of the client for the name of a logger of this package.

    Raises:
        NotSupportedError: if `unsupported` gives a reason.
    """
    reason = unsupported(options)
    if reason is not None:
        raise NotSupportedError(f"the native transport cannot serve this: {reason}")
    timeout = options.reattach_timeout
    settings = ClientSettings(
        operation_timeout_s=options.operation_timeout_seconds,
        connection_timeout_s=options.connection_timeout_ms / 1000,
        listener_name=options.listener_name,
        lookups=options.concurrent_lookup_requests,
        discovery_s=seconds(options.partitions_update_interval, "partitions_update_interval"),
        reattach_timeout_s=None if timeout is None else seconds(timeout, "reattach_timeout"),
        recreate_after_s=seconds(options.recreate_after, "recreate_after"),
        max_partitions=options.max_partitions,
        max_uncompressed_size=options.max_uncompressed_size,
        logger_of=logger_of,
    )
    return _clusters(options, logger_of), settings


def _clusters(options: ClientOptions, logger_of: Callable[[str], logging.Logger]) -> Clusters:
    where = options.service_url
    if isinstance(where, str):
        trusted = options.tls_trust_certs_file_path
        return OneCluster(_service(options, where, options.authentication, trusted))
    if isinstance(where, AutoClusterFailover):
        return Failover(
            [_service_of(options, info) for info in (where.primary, *where.secondary)],
            check_s=where.check_interval_ms / 1000,
            failures=where.failover_threshold,
            successes=where.switch_back_threshold,
        )
    return Provided(where, lambda info: _service_of(options, info), logger_of)


def _service_of(options: ClientOptions, info: Any) -> ClusterService:
    if not (isinstance(info, ServiceInfo) or stock.is_one(info, "pulsar.ServiceInfo")):
        raise ConfigurationError(
            f"a ServiceInfoProvider must give a ServiceInfo, got {type(info).__name__}"
        )
    reason = _unsupported_info(info)
    if reason is not None:
        raise NotSupportedError(f"the native transport cannot use this cluster: {reason}")
    return _service(options, info.service_url, info.authentication, info.tls_trust_certs_file_path)


def _service(options: ClientOptions, url: str, given: Any, trusted: str | None) -> ClusterService:
    known = authentication.of(given)
    certificate = options.tls_certificate_file_path
    key = options.tls_private_key_file_path
    if isinstance(known, AuthenticationTLS):
        certificate, key = known.certificate_path, known.private_key_path
    tls = TlsContext(
        trust_file=trusted,
        certificate_file=certificate,
        key_file=key,
        insecure=options.tls_allow_insecure_connection,
    )
    return ClusterService.at(url, Sockets(tls), known, tls)
