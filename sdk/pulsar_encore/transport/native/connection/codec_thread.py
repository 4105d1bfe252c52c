"""Runs long codec calls in one thread for each client and loop. The codecs release the interpreter
lock."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

_Result = TypeVar("_Result")


class Codecs(Protocol):
    def submit(self, work: Callable[[], _Result]) -> Future[_Result]:
        """Run `work`; the future may be done already."""

    def shutdown(self) -> None:
        """Cancel the calls that have not begun."""


class CodecThread:
    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], _Result]) -> Future[_Result]:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="pulsar-encore-codec")
        try:
            return self._executor.submit(work)
        except RuntimeError:
            # No new threads after the shutdown of the client or of the interpreter.
            return CodecCalls().submit(work)

    def shutdown(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


class CodecCalls:
    """Runs codec calls on the loop, for virtual time, which does not wait for a thread."""

    def submit(self, work: Callable[[], _Result]) -> Future[_Result]:
        future: Future[_Result] = Future()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self) -> None:
        """Do nothing: no call is pending."""
