"""Which transport a client gets: as it was told, or as its environment says.

Owns `make_transport`. A transport is imported when it is chosen, so that the C++ library of the
stock one is loaded where that is used, and nowhere else.
"""

from __future__ import annotations

import logging
import os
from dataclasses import fields
from typing import Final

from ..errors import ConfigurationError, NotSupportedError
from ..options import ClientOptions
from .interface import Transport

log: Final = logging.getLogger("pulsar_encore.client")

#: What decides where a client does not.
VARIABLE: Final = "PULSAR_ENCORE_TRANSPORT"
_NAMES: Final = ("auto", "native", "stock")
_DEFAULT: Final = "auto"
# Options that the C++ client has not, or that Python cannot set.
_NATIVE_ONLY: Final = frozenset(
    {
        "max_partitions",
        "max_uncompressed_size",
        "partitions_update_interval",
        "reattach_timeout",
        "recreate_after",
    }
)


def make_transport(options: ClientOptions, name: str | None) -> Transport:
    """The transport of a client.

    Args:
        options: Checked.
        name: "native" speaks Pulsar's protocol itself, "stock" is over `pulsar-client`, "auto" the
            native one wherever that can serve the options, else stock's, with a line in the log.
            None leaves it to the environment variable `PULSAR_ENCORE_TRANSPORT`, and without that
            it is "auto".

    Raises:
        ConfigurationError: There is none of that name.
        NotSupportedError: The native one was asked for, and cannot serve the options; or it is
            stock's, and an option is the native transport's only.
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
        name, reason = _choose(options)
    if name == "stock":
        _check_for_stock(options, reason)
        from .stock import StockTransport

        return StockTransport(options)
    from .native.native_transport import NativeTransport
    from .native.service_options import of_options

    return NativeTransport(*of_options(options))


def _choose(options: ClientOptions) -> tuple[str, str]:
    """The transport, and why it is not the native one."""
    from .native.service_options import unsupported

    reason = unsupported(options)
    if reason is None:
        log.info("transport: native")
        return "native", ""
    log.info("transport: stock, because the native one cannot serve this: %s", reason)
    return "stock", reason


def _check_for_stock(options: ClientOptions, reason: str) -> None:
    """
    Raises:
        NotSupportedError: An option that only the native transport has is not at its default.
    """
    for field in fields(options):
        if field.name in _NATIVE_ONLY and getattr(options, field.name) != field.default:
            raise NotSupportedError(
                f"{field.name} is not supported by the stock transport, which this client gets "
                f"({reason}): leave it out, or {_native_advice(options)}"
            )


def _native_advice(options: ClientOptions) -> str:
    """What to change so that the client gets the native transport."""
    if options.logger is not None:
        return "leave logger= out and use transport='native'"
    return "use transport='native'"
