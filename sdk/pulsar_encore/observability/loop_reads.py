"""Reads of objects that belong to an event loop, from the thread of a monitoring system."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from weakref import WeakKeyDictionary

from ..eventloop.affinity import running_loop


class LoopReads:
    """Runs a function on event loops, and waits for a limited time.

    A loop that does not answer keeps its question: no second one is put until it has answered, so
    scrapes of a blocked loop do not pile up.

    Args:
        read: Reads the objects of a loop.
    """

    def __init__(self, read: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, Future[None]] = WeakKeyDictionary()
        self._read_s: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()

    def run(self, loops: Iterable[asyncio.AbstractEventLoop], wait_s: float) -> float:
        """Read the objects of these loops. Any thread can call this.

        Returns:
            0 if all loops have answered, else the longest time since a silent one was read, in s.
        """
        questions = {}
        for loop in loops:
            question = self._ask(loop)
            if question is not None:
                questions[question] = loop
        if not questions:
            return 0.0
        _, silent = wait(questions, wait_s)
        now_s = time.monotonic()
        return max((now_s - self._read_s[questions[each]] for each in silent), default=0.0)

    def _ask(self, loop: asyncio.AbstractEventLoop) -> Future[None] | None:
        """Put the question, or return None if the objects could be read at once."""
        if loop is running_loop() or not loop.is_running():
            # Nothing else changes the objects now. A closed loop never changes them again.
            self._read_now(loop)
            return None
        with self._lock:
            question = self._open.get(loop)
            if question is not None and not question.done():
                return question
            self._read_s.setdefault(loop, time.monotonic())
            self._open[loop] = question = Future()
        try:
            loop.call_soon_threadsafe(self._answer, loop, question)
        except RuntimeError:  # it was closed at the same moment
            self._answer(loop, question)
        return question

    def _answer(self, loop: asyncio.AbstractEventLoop, question: Future[None]) -> None:
        try:
            self._read_now(loop)
        finally:
            question.set_result(None)

    def _read_now(self, loop: asyncio.AbstractEventLoop) -> None:
        self._read(loop)
        self._read_s[loop] = time.monotonic()
