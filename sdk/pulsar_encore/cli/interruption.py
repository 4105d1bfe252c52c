"""End work at Ctrl-C or SIGTERM without cutting it off in the middle.

A signal handler that raises would do so anywhere, also inside a library's call to another process.
The work therefore has its own thread, and the main thread waits for the work and for signals.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final, TypeVar

T = TypeVar("T")

GRACE_S: Final = 30.0
"""Seconds that interrupted work may take; Spark starts within 10 s, and stops within 3."""
SOON_S: Final = 3.0
"""After a second signal."""
_ASK_INTERVAL_S: Final = 0.5  # the work may have begun something new before it saw the last request

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class InterruptedWork(Exception):
    """A signal came before the work was done."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def until_interrupted(
    work: Callable[[], T],
    ask: Callable[[], None],
    *,
    grace_s: float = GRACE_S,
    soon_s: float = SOON_S,
) -> T:
    """Do work in a thread, and ask it to end at SIGINT or SIGTERM.

    Outside the main thread, where no handler can be set, the work is just done. If the work
    succeeds in spite of a signal, its result is returned.

    Args:
        ask: Asks the work to end. Called repeatedly from another thread. Its exceptions are
            dropped, because the object that it asks may be gone, and so are those of interrupted
            work.
        grace_s: How long interrupted work may take. Later it is left alone in its thread, which
            does not keep the process alive.
        soon_s: The same after a second signal, so that no work holds a terminal for ever.

    Raises:
        InterruptedWork: if a signal came first.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    outcome: Future[T] = Future()
    events: SimpleQueue[int | None] = SimpleQueue()  # a handler may put into it at any moment

    def perform() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # raised in the main thread
            outcome.set_exception(error)
        finally:
            events.put(None)

    def on_signal(number: int, frame: FrameType | None) -> None:
        events.put(number)

    previous = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        threading.Thread(target=perform, name="work", daemon=True).start()
        number = events.get()
        if number is None:
            return outcome.result()
        _wait(events, ask, grace_s, soon_s)
        if outcome.done() and outcome.exception() is None:
            return outcome.result()
        raise InterruptedWork(number)
    finally:
        for each, handler in previous.items():
            # None means that the handler was not set in Python.
            signal.signal(each, signal.SIG_DFL if handler is None else handler)


def _wait(
    events: SimpleQueue[int | None], ask: Callable[[], None], grace_s: float, soon_s: float
) -> None:
    ended = threading.Event()

    def ask_repeatedly() -> None:
        while not ended.is_set():
            try:
                ask()
            except Exception:
                pass
            ended.wait(_ASK_INTERVAL_S)

    deadline = time.monotonic() + grace_s
    with _silence():
        threading.Thread(target=ask_repeatedly, name="asking", daemon=True).start()
        try:
            while (remaining := deadline - time.monotonic()) > 0:
                if events.get(timeout=remaining) is None:
                    return
                deadline = min(deadline, time.monotonic() + soon_s)
        except Empty:
            pass
        finally:
            ended.set()


@contextmanager
def _silence() -> Iterator[None]:
    """Silence libraries: their messages about interrupted calls are no errors."""
    previous = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with Path(os.devnull).open("w") as nothing, redirect_stderr(nothing):
            yield
    finally:
        logging.disable(previous)
