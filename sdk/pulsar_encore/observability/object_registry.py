"""The open consumers, producers and workers of a process, and the totals of closed ones."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from . import instruments as of
from .histogram import Cell, Histogram, HistogramValue
from .instruments import Instrument
from .loop_reads import LoopReads
from .samples import Labels, Points, Snapshot, Values, add, add_all, points_of

#: Longest wait for event loops that do not answer. A scrape has 10 s by default.
_WAIT_S = 1.0


@dataclass(slots=True)
class _Open:
    """An open object.

    Attributes:
        loop: Returns the event loop of the object, which can change; None before its start.
        read: Reads an object; called on its event loop.
        last: The last values that were read.
    """

    thing: ref[Any]
    loop: Callable[[Any], asyncio.AbstractEventLoop | None]
    read: Callable[[Any], Snapshot]
    last: Snapshot = field(default_factory=Snapshot)


class ObjectRegistry:
    """Adds up the values of all objects with equal labels.

    The counters of a closed object stay in the sums, so that they do not fall when another one with
    the same labels opens. The registry keeps no object alive.

    Args:
        new_histogram: Makes the histogram of an instrument and labels.
    """

    def __init__(
        self,
        new_histogram: Callable[[Instrument, Labels], Histogram] = lambda *_: Histogram(
            of.DURATION_BOUNDS
        ),
        logger: logging.Logger | None = None,
    ) -> None:
        self._new_histogram = new_histogram
        self._logger = logger or logging.getLogger(__name__)
        self._has_failed = False
        self.clear()

    def clear(self) -> None:
        """Forget all objects and values.

        The locks are new ones: after a fork, a thread of the parent process may hold the old ones.
        """
        self._lock = threading.Lock()
        self._objects: dict[int, _Open] = {}
        self._base: Values = {}
        self._cells: dict[tuple[Instrument, Labels, int], Cell] = {}  # one for each thread
        self._histograms: dict[tuple[Instrument, Labels], Histogram] = {}
        self._reads = LoopReads(self._read_loop)

    # Changes, on the event loops

    def opened(
        self,
        thing: Any,
        loop: Callable[[Any], asyncio.AbstractEventLoop | None],
        read: Callable[[Any], Snapshot],
    ) -> None:
        """Add an object. Adding it again has no effect."""
        with self._lock:
            known = self._objects.get(id(thing))
            if known is None or known.thing() is not thing:
                self._retire(known)
                self._objects[id(thing)] = _Open(ref(thing), loop, read)

    def closed(self, thing: Any) -> None:
        """Read an object for the last time, and keep its counters."""
        known = self._objects.get(id(thing))
        if known is None or known.thing() is not thing:
            return
        self._read_one(known)
        with self._lock:
            self._retire(self._objects.pop(id(thing), None))

    def _retire(self, known: _Open | None) -> None:
        if known is not None:
            add_all(self._base, known.last.counters)

    def cell(self, instrument: Instrument, labels: Labels) -> Cell:
        """Return the part of the sum of these labels that belongs to the calling thread."""
        key = instrument, labels, threading.get_ident()
        with self._lock:
            found = self._cells.get(key)
            if found is None:
                found = self._cells[key] = Cell()
            return found

    def count(self, instrument: Instrument, labels: Labels, amount: float = 1) -> None:
        """Add to a counter, or to a gauge that changes by events."""
        self.cell(instrument, labels).value += amount

    def histogram(self, instrument: Instrument, labels: Labels) -> Histogram:
        """Return the histogram of these labels."""
        key = instrument, labels
        with self._lock:
            found = self._histograms.get(key)
            if found is None:
                found = self._histograms[key] = self._new_histogram(instrument, labels)
            return found

    # Collection, on any thread

    def collect(self) -> Points:
        """Return all values, by instrument.

        If an event loop does not answer within 1 s, its objects have their last values, and
        the gauge `SNAPSHOT_AGE` says how old they are.
        """
        with self._lock:
            objects = list(self._objects.items())
        loops = set()
        for key, each in objects:
            thing = each.thing()
            if thing is None:
                with self._lock:
                    # A new object may have taken the id since.
                    if self._objects.get(key) is each:
                        self._retire(self._objects.pop(key))
            elif (loop := each.loop(thing)) is not None:
                loops.add(loop)
        age_s = self._reads.run(loops, _WAIT_S)
        with self._lock:
            values = dict(self._base)
            for (instrument, labels, _), cell in self._cells.items():
                add(values, instrument, labels, cell.value)
            for each in self._objects.values():
                add_all(values, each.last.counters)
                add_all(values, each.last.gauges)
            histograms: dict[tuple[Instrument, Labels], HistogramValue] = {
                key: each.value() for key, each in self._histograms.items()
            }
        values[of.SNAPSHOT_AGE, ()] = age_s
        return points_of(values, histograms)

    def _read_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            objects = list(self._objects.values())
        for each in objects:
            thing = each.thing()
            if thing is not None and each.loop(thing) is loop:
                self._read_one(each)

    def _read_one(self, known: _Open) -> None:
        thing = known.thing()
        if thing is None:
            return
        try:
            known.last = known.read(thing)
        except Exception:
            # The last values stay. One object must not hide the metrics of all others.
            if not self._has_failed:
                self._has_failed = True
                self._logger.exception(
                    "the metrics of %r cannot be read; further errors are not logged", thing
                )
