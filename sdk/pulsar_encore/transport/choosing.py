"""Which transport a client gets: as it was told, or as its environment says.

Owns `make_transport`. A transport is imported when it is chosen, so that the C++ library of the
stock one is loaded where that is used, and nowhere else.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from ..errors import ConfigurationError, NotSupportedError
from ..options import ClientOptions
from ..options.client import DEFAULT_RECREATE_AFTER_S
from .base import Transport

log: Final = logging.getLogger("pulsar_encore.client")

#: What decides where a client does not.
VARIABLE: Final = "PULSAR_ENCORE_TRANSPORT"
_NAMES: Final = ("auto", "native", "stock")
_DEFAULT: Final = "auto"


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
        NotSupportedError: The native one was asked for, and cannot serve the options; or the stock
            one has to be used, and an option is for the native one.
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
    if name == "auto":
        name = _automatic(options)
    if name == "stock":
        _refuse_native_options(options)
        from .stock import StockTransport

        return StockTransport(options)
    from .native.options import of_options
    from .native.transport import NativeTransport

    return NativeTransport(*of_options(options))


# Options of the native transport that the C++ library has nothing for, and their defaults.
_NATIVE_OPTIONS: Final = {
    "reattach_timeout": None,
    "recreate_after": DEFAULT_RECREATE_AFTER_S,
}


def _refuse_native_options(options: ClientOptions) -> None:
    """
    Raises:
        NotSupportedError: An option has a value that the stock transport cannot obey.
    """
    for name, default in _NATIVE_OPTIONS.items():
        value = getattr(options, name)
        if value != default:
            raise NotSupportedError(
                f"{name}={value!r} is for the native transport: leave it out, or use "
                "transport='native'"
            )


def _automatic(options: ClientOptions) -> str:
    from .native.options import unsupported

    reason = unsupported(options)
    if reason is None:
        log.info("transport: native")
        return "native"
    log.info("transport: stock, because the native one cannot serve this: %s", reason)
    return "stock"
