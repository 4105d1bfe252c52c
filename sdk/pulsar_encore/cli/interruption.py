"""Work that Ctrl-C or SIGTERM asks to end, and that is not cut off in the middle.

Owns `until_interrupted`. A handler that raises would do so anywhere, in a library's call to another
process too; so the work has a thread of its own, and the main thread waits for it and for signals.
A second signal shortens the wait: no work can hold a terminal for ever.
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
"""For work that was asked to end; Spark starts within 10 s, and stops within 3."""
SOON_S: Final = 3.0
"""The same, once it was asked twice."""
_ASK_INTERVAL_S: Final = 0.5  # what was asked may have begun something new before it saw that

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class InterruptedWork(Exception):
    """A signal came before the work was done.

    Args:
        number: Of the signal.
    """

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

    From another than the main thread, where no handler can be set, the work is just done.

    Args:
        work: Ends soon when it was asked to, in whatever way; what it raises then is not raised
            here, as that comes of being asked. Work that was done all the same is done.
        ask: Asks it, from another thread, and again until the work has ended. What it raises is
            not heard: what it would ask may be gone.
        grace_s: How long the work may go on then; later it is left alone in its thread, which does
            not keep the process.
        soon_s: How long after a second signal.

    Raises:
        InterruptedWork: It was interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    outcome: Future[T] = Future()
    events: SimpleQueue[int | None] = SimpleQueue()  # a handler may put into it at any moment

    def perform() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # the main thread's to raise
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
            # None is a handler that was not set in Python.
            signal.signal(each, signal.SIG_DFL if handler is None else handler)


def _wait(
    events: SimpleQueue[int | None], ask: Callable[[], None], grace_s: float, soon_s: float
) -> None:
    """Until the work has ended, or its time has."""
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
    """What libraries log and print of calls that were cut off is nothing that failed."""
    previous = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with Path(os.devnull).open("w") as nothing, redirect_stderr(nothing):
            yield
    finally:
        logging.disable(previous)
