"""Exceptions that a program on the stock transport can also catch as exceptions of `pulsar`.

Each class derives from an exception of this package, its namesake in `pulsar.exceptions`, and
`pulsar.asyncio.PulsarException`. Most exceptions are raised above the transports, so
`PulsarException` picks these classes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pulsar.asyncio
import pulsar.exceptions

from ...errors import PulsarException


def _pulsar_class(ours: type[PulsarException]) -> type[Exception]:
    for kind in ours.__mro__:
        # `ClosedError` has another name in `pulsar`: the name of its result.
        for name in (kind.__name__, vars(kind).get("result", "")):
            found: type[Exception] | None = getattr(pulsar.exceptions, name, None)
            if found is not None:
                return found
    raise AssertionError(f"{ours.__name__} has no PulsarException")  # pragma: no cover


@cache
def _dual(ours: type[PulsarException]) -> type[PulsarException]:
    """Return the class to raise in place of ours or a program's subclass of it."""
    if issubclass(ours, pulsar.asyncio.PulsarException):
        return ours

    def reduce(self: Any) -> Any:
        # As the plain class: the process that reads the pickle may not have `pulsar`.
        _, *rest = super(dual, self).__reduce__()
        return (ours, *rest)

    dual: type[PulsarException] = type(
        ours.__name__,
        (ours, _pulsar_class(ours), pulsar.asyncio.PulsarException),
        {
            "__doc__": ours.__doc__,
            "__module__": ours.__module__,  # as tracebacks show it
            "__qualname__": ours.__qualname__,
            "__reduce__": reduce,
        },
    )
    return dual


def use_dual_exceptions() -> None:
    """Raise every `PulsarException` of this process as one of these classes from now on."""
    PulsarException._raised_as = _dual
