"""Exceptions that a program on the stock transport catches by the names of `pulsar` as well.

Each class made here derives from an exception of this package, from the exception of the same name
in `pulsar.exceptions`, and from `pulsar.asyncio.PulsarException`. Most exceptions are raised above
the transports, so these classes are not named where one is raised: `PulsarException` picks them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pulsar.asyncio
import pulsar.exceptions

from ... import exceptions
from ...errors import PulsarException


def _theirs(ours: type[PulsarException]) -> type[Exception]:
    """The exception of `pulsar` that one of ours stands for."""
    for kind in ours.__mro__:
        # `ClosedError` has another name there: that of its result.
        for name in (kind.__name__, vars(kind).get("result", "")):
            found: type[Exception] | None = getattr(pulsar.exceptions, name, None)
            if found is not None:
                return found
    raise AssertionError(f"{ours.__name__} has no PulsarException")  # pragma: no cover


def _dual(ours: type[PulsarException]) -> type[PulsarException]:
    def reduce(self: Any) -> Any:
        # As an exception of ours: where a pickle is read, `pulsar` need not be loaded.
        _, *rest = super(dual, self).__reduce__()
        return (ours, *rest)

    dual: type[PulsarException] = type(
        ours.__name__,
        (ours, _theirs(ours), pulsar.asyncio.PulsarException),
        {
            "__doc__": ours.__doc__,
            "__module__": ours.__module__,  # as tracebacks show it
            "__qualname__": ours.__qualname__,
            "__reduce__": reduce,
        },
    )
    return dual


def _all(kind: type[PulsarException]) -> Iterator[type[PulsarException]]:
    yield kind
    for each in kind.__subclasses__():
        if each.__module__ in (PulsarException.__module__, exceptions.__name__):
            yield from _all(each)


_DUAL: Final = {kind: _dual(kind) for kind in set(_all(PulsarException))}


def use_dual_exceptions() -> None:
    """Raise every `PulsarException` of this process as one of these classes from now on."""
    PulsarException._raised_as.update(_DUAL)
