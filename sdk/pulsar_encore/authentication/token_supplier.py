"""A token supplier that the C++ client calls, and its release at process exit.

The C++ client releases a supplier on its own thread, some time after the last client was closed. A
thread that wants the interpreter after its end is unwound by force, which aborts the process.

An exception of a supplier would end the process when the C++ client answers an AUTH_CHALLENGE or
looks up a topic by HTTP. So if a supplier fails, the C++ client gets the last token, which may
still be valid, or an empty one. A broker that refuses it closes the connection. The C++ client then
reconnects after a backoff and calls the supplier again.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol
from weakref import ref

from ..eventloop.process import at_exit, keep_for_ever

Supplier = Callable[[], str | Awaitable[str]]

logger: logging.Logger = logging.getLogger(__name__)

_EXIT_WAIT_S: Final = 1.0  # longest wait for the C++ client at process exit

_library_objects: Final[dict[threading.Event, ref[Any]]] = {}


def supplier_name(supplier: Supplier) -> str:
    return str(getattr(supplier, "description", "the token's supplier"))


class PendingSupplier(Protocol):
    """Pending calls of a client that is not connected yet."""

    def fail_authentication(self, why: str) -> None:
        """Fail the calls with an AuthenticationError, on any thread."""


def library_authentication(
    supplier: Supplier,
    create: Callable[[Callable[[], object]], Any],
    waiting: Iterable[PendingSupplier] = (),
) -> Any:
    """Create the C++ client's authentication object for `supplier`.

    The object is destroyed before the interpreter ends, or leaked on purpose.

    Args:
        supplier: The application's function.
        create: Creates the object from a function that the C++ client may call on any thread.
        waiting: Fails if the supplier fails before its first token. Otherwise the C++ client would
            retry with an empty token until a timeout that does not name the supplier.
    """
    callback = _LibraryCallback(supplier, waiting)
    native = create(callback)
    _library_objects[callback.deleted] = ref(native)
    return native


class _LibraryCallback:
    """The function that threads of the C++ client call. Process exit waits for `deleted`."""

    __slots__ = ("_last_token", "_supplier", "_waiting", "deleted")

    def __init__(self, supplier: Supplier, waiting: Iterable[PendingSupplier]) -> None:
        self._supplier = supplier
        self._waiting = waiting
        self._last_token: str | bytes = ""
        self.deleted = threading.Event()

    def __call__(self) -> str | bytes:
        """Return a token. Never raises."""
        try:
            result = self._supplier()
            token = _token(
                asyncio.run(as_coroutine(result)) if inspect.isawaitable(result) else result
            )
        except BaseException as error:
            # A logging handler may raise, too.
            with contextlib.suppress(BaseException):
                self._report_failure(error)
            return self._last_token
        self._last_token = token
        return token

    def _report_failure(self, error: BaseException) -> None:
        """Log the failure without its text, which may contain the secret."""
        if isinstance(error, _NoTokenError):
            reason = f"{supplier_name(self._supplier)} gave {error}"
        else:
            reason = f"{supplier_name(self._supplier)} raised {type(error).__name__}"
        if self._last_token:
            logger.warning("%s: the broker gets the token of the call before", reason)
            return
        for each in list(self._waiting):  # before logging, whose handlers may raise
            each.fail_authentication(reason)
        logger.error("%s, and there is no earlier token: the broker gets an empty one", reason)

    def __del__(self) -> None:
        _library_objects.pop(self.deleted, None)
        self.deleted.set()


class _NoTokenError(Exception):
    """A supplier did not return a token. The text does not show the value."""


def _token(result: object) -> str | bytes:
    """Check the result of a supplier. A subclass of str or bytes becomes its base class."""
    if isinstance(result, str):
        try:
            token: str | bytes = str.encode(result).decode()
        except UnicodeEncodeError:
            raise _NoTokenError("text that UTF-8 cannot encode") from None
    elif isinstance(result, bytes):
        token = bytes(result)  # the C++ client accepts bytes, too
    else:
        raise _NoTokenError(f"{type(result).__name__} (a token is a str)")
    if not token:
        raise _NoTokenError("an empty token")
    return token


async def as_coroutine(result: Awaitable[object]) -> object:
    """Return an awaitable as a coroutine."""
    return await result


# Runs after the exit handlers of the program, which may close its clients.
@at_exit
def _release_all() -> None:
    deadline = time.monotonic() + _EXIT_WAIT_S
    for deleted, native_ref in list(_library_objects.items()):
        native = native_ref()
        if native is None:
            deleted.wait(max(0.0, deadline - time.monotonic()))
        else:  # still in use: its release would come too late
            keep_for_ever(native)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_library_objects.clear)
