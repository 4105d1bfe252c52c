"""The choice of a client's transport. Only the chosen transport is imported."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import fields
from typing import Final

from ..errors import ConfigurationError, NotSupportedError
from ..options import ClientOptions
from .interface import Transport

LOG_NAME: Final = "pulsar_encore.client"

VARIABLE: Final = "PULSAR_ENCORE_TRANSPORT"
_NAMES: Final = ("auto", "native", "stock")
_DEFAULT: Final = "auto"
# Options that the C++ client does not have, or that Python cannot set.
_NATIVE_ONLY: Final = frozenset(
    {
        "max_partitions",
        "max_uncompressed_size",
        "partitions_update_interval",
        "reattach_timeout",
        "recreate_after",
    }
)


def make_transport(
    options: ClientOptions,
    name: str | None,
    logger_of: Callable[[str], logging.Logger] = logging.getLogger,
) -> Transport:
    """Make the transport of a client.

    Args:
        name: "native", "stock", or "auto": the native transport if it supports the options, else
            the stock transport. None for the environment variable `PULSAR_ENCORE_TRANSPORT`.
        logger_of: Returns the logger of the client for the name of a logger of this package.

    Raises:
        NotSupportedError: if "native" does not support the options, or the stock transport is used
            with an option of the native transport.
    """
    where = "transport"
    if name is None:
        name, where = os.environ.get(VARIABLE, "") or _DEFAULT, VARIABLE
    if name not in _NAMES:
        raise ConfigurationError(f"{where} must be one of {', '.join(_NAMES)}, got {name!r}")
    if isinstance(options.service_url, str) and options.service_url.startswith("memory:"):
        raise ConfigurationError(
            "memory:// is no broker: give transport=testing.MemoryTransport(), or a service_url"
        )
    reason = f"{where}={name!r}"
    if name == "auto":
        name, reason = _choose(options, logger_of(LOG_NAME))
    if name == "stock":
        _check_for_stock(options, reason)
        from .stock import StockTransport

        return StockTransport(options)
    from .native.native_transport import NativeTransport
    from .native.service_options import of_options

    return NativeTransport(*of_options(options, logger_of))


def _choose(options: ClientOptions, log: logging.Logger) -> tuple[str, str]:
    """Return the name of the transport, and why it is not the native one."""
    from .native.service_options import unsupported

    reason = unsupported(options)
    if reason is None:
        log.info("transport: native")
        return "native", ""
    log.warning(
        "transport: stock, because the native one cannot serve this: %s. The stock transport lacks "
        "some features and options. Pass transport='stock' to choose it without this warning",
        reason,
    )
    return "stock", reason


def _check_for_stock(options: ClientOptions, reason: str) -> None:
    """Raise NotSupportedError if an option of the native transport is not at its default."""
    for field in fields(options):
        if field.name in _NATIVE_ONLY and getattr(options, field.name) != field.default:
            raise NotSupportedError(
                f"{field.name} is not supported by the stock transport, which this client gets "
                f"({reason}): leave it out, or use transport='native'"
            )
