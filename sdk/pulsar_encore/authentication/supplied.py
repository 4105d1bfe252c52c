"""A supplier of secrets in the hands of the C++ library.

Owns how the library calls one, and when it lets go. It does that on a thread of its own, some time
after its last client was closed, and needs the interpreter for it: a thread that wants the
interpreter when that has ended is unwound by force, and that aborts the process.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import ref

from ..process import at_end, keep_for_ever

Supplier = Callable[[], str | Awaitable[str]]

_EXIT_WAIT_S: Final = 1.0  # how long the process's end waits for the library

_held: Final[dict[threading.Event, ref[Any]]] = {}


def for_library(supplier: Supplier, create: Callable[[Callable[[], object]], Any]) -> Any:
    """The library's object that asks `supplier`; let go of before the process ends, or never."""
    called = _Called(supplier)
    native = create(called)
    _held[called.gone] = ref(native)
    return native


class _Called:
    """What a thread of the library calls; its deletion is what exit waits for."""

    __slots__ = ("_supplier", "gone")

    def __init__(self, supplier: Supplier) -> None:
        self._supplier = supplier
        self.gone = threading.Event()

    def __call__(self) -> object:
        given = self._supplier()
        return asyncio.run(awaited(given)) if inspect.isawaitable(given) else given

    def __del__(self) -> None:
        _held.pop(self.gone, None)
        self.gone.set()


async def awaited(given: Awaitable[object]) -> object:
    """What it gives, as a coroutine."""
    return await given


@at_end  # of the package's import, so called when the clients are closed
def _let_go() -> None:
    deadline = time.monotonic() + _EXIT_WAIT_S
    for gone, of in list(_held.items()):
        native = of()
        if native is None:
            gone.wait(max(0.0, deadline - time.monotonic()))
        else:  # the program has it still: whoever is last lets go too late
            keep_for_ever(native)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_held.clear)
