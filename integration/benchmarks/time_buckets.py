"""The TimeBucket table: ten million entries with due times, in our index and in other structures.

make bench ONLY=time_buckets
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from .java_programs import JavaProgramError, class_path, missing_java
from .nack_structures import PER_LEDGER, Measured, measured_apart
from .own_process import answer_of
from .processes import Runner, broker
from .rows import Row
from .trial import Benchmark, Trial

_MANY: Final = 10_000_000  # for memory, which differs little from run to run
_QUICK_MANY: Final = 1_000_000
_FEW: Final = 500_000  # for speed
_QUICK_FEW: Final = 100_000
_STOCK_ENTRIES: Final = 200_000
_WITHIN_S: Final = 300
_MAIN_CLASS: Final = "encore.benchmarks.Structures"
_JVM: Final = ("-XX:+UseSerialGC", "-Xms256m", "-Xmx3g")


class Shape(NamedTuple):
    """Entries due in each millisecond, and bits of the due time that are dropped."""

    per_ms: int
    bits: int


SHAPES: Final = (Shape(1, 10), Shape(4, 10), Shape(8, 10), Shape(8, 15))
_QUICK_SHAPES: Final = (SHAPES[0], SHAPES[-1])


_DICT_NOTE: Final = "each of the hundred steps of the clock goes over all entries"
_STOCK_NOTE: Final = (
    f"memory is extrapolated from {_STOCK_ENTRIES:,} pending nacks; only the client's own timer "
    "drains its tracker, so draining is not measured"
)
_JAVA_NOTE: Final = (
    "memory is the live heap, without the JVM; times are without its compiler and collector"
)


class Figures(NamedTuple):
    """Figures of a structure; 0 for those that cannot be measured."""

    bytes_each: float
    add_ns: float
    drain_per_s: float


class Table(NamedTuple):
    """Rows of one kind, and how their value follows from the figures; `once` without pairs."""

    title: str
    unit: str
    value: Callable[[Figures], float]
    once: bool = False


ADD: Final = Table("add", "ns", lambda f: f.add_ns)
DRAIN: Final = Table("drain", "M ids/s", lambda f: f.drain_per_s / 1e6)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A structure beside our index.

    Attributes:
        name: Name in the table.
        measure: Measures it with a shape, a number of entries, and whether to drain them.
        has_buckets: False if the shape does not change the figures: one measurement is enough.
        note: A remark for readers.
    """

    name: str
    measure: Callable[[Shape, int, bool], Figures]
    has_buckets: bool = False
    note: str = ""

    def key(self, shape: Shape) -> str:
        """Return the name of a measurement in a round."""
        return _name(self.name, shape) if self.has_buckets else self.name


def run(trial: Trial) -> Iterator[Row]:
    """Measure the speed in pairs, and the memory of many more entries once.

    Raises:
        MeasurementError: if the stock client failed.
    """
    shapes = _QUICK_SHAPES if trial.quick else SHAPES
    few = trial.sized(_FEW, _QUICK_FEW)
    many = trial.sized(_MANY, _QUICK_MANY)
    absent, java = _java()
    with broker(trial.url) as url:
        subjects = (
            *java,
            Subject(name="heap of triples", measure=partial(_python, "heap"), note="`heapq`"),
            Subject(name="dict", measure=partial(_python, "dict"), note=_DICT_NOTE),
            Subject(name="stock (C++)", measure=partial(_stock, Runner(url)), note=_STOCK_NOTE),
        )
        pairs = trial.in_turns(
            f"{few / 1e6:g} M entries", _calls(subjects, shapes, few, drain=True)
        )
        for table in (ADD, DRAIN):
            yield from rows_of(table, shapes, subjects, absent, pairs)
        once: dict[str, list[Figures]] = {}
        for name, call in _calls(subjects, shapes, many, drain=False).items():
            trial.step(f"memory of {many / 1e6:g} M entries: {name}")
            once[name] = [call()]
        memory = Table(
            *(f"memory of {many / 1e6:g} M entries", "MB", lambda f: f.bytes_each * many / 1e6),
            once=True,
        )
        yield from rows_of(memory, shapes, subjects, absent, once)


def rows_of(
    table: Table,
    shapes: Sequence[Shape],
    subjects: Sequence[Subject],
    absent: str,
    figures: Mapping[str, Sequence[Figures]],
) -> Iterator[Row]:
    """Yield the rows of one table.

    Args:
        absent: Why the structures of Java were not measured, or "": the note of their rows then.
        figures: The figures of each round, named as `Subject.key` does.
    """
    for shape in shapes:
        ours = tuple(map(table.value, figures[_name("index", shape)]))
        title = f"{table.title}, {shape.per_ms}/ms, {shape.bits} bits"
        if absent:
            yield Row(what=title, unit=table.unit, ours=ours, beside="PIP-393 (Java)", note=absent)
        for subject in subjects:
            others = tuple(map(table.value, figures[subject.key(shape)]))
            if all(others):
                yield Row(
                    what=title,
                    unit=table.unit,
                    ours=ours,
                    other=others,
                    beside=subject.name,
                    higher_is_better=table is DRAIN,
                    chart=table.title,
                    bars=table.once,
                    note=subject.note,
                )


def _name(structure: str, shape: Shape) -> str:
    return f"{structure}, {shape.per_ms}/ms, {shape.bits} bits"


def _calls(
    subjects: Sequence[Subject], shapes: Sequence[Shape], entries: int, *, drain: bool
) -> dict[str, Callable[[], Figures]]:
    """Return the measurements of one round, each once."""
    calls: dict[str, Callable[[], Figures]] = {}
    for shape in shapes:
        calls[_name("index", shape)] = partial(_python, "index", shape, entries, drain)
        for subject in subjects:
            calls.setdefault(subject.key(shape), partial(subject.measure, shape, entries, drain))
    return calls


def _python(structure: str, shape: Shape, entries: int, drain: bool) -> Figures:
    figures = measured_apart(structure, *shape, entries, drain=drain)
    return Figures(figures.bytes / entries, figures.add_ns, figures.drain_per_s)


def _stock(runner: Runner, _shape: Shape, _entries: int, _drain: bool) -> Figures:
    module = "integration.benchmarks.stock_nacks"
    work = runner(module, "pending", within_s=_WITHIN_S, count=_STOCK_ENTRIES)
    figures = asyncio.run(work)
    bytes_each = (figures["bytes"] or 0.0) / _STOCK_ENTRIES
    return Figures(bytes_each, figures["add_ns"] or 0.0, 0.0)


def _java() -> tuple[str, tuple[Subject, ...]]:
    """Return why the structures of Java cannot be measured, or "", and the structures."""
    if reason := missing_java():
        return f"not measured: {reason}", ()
    try:
        path = class_path("structures")
    except JavaProgramError as error:
        return f"not measured: {str(error).partition(chr(10))[0]}", ()
    return "", (
        Subject(
            name="PIP-393 (Java)",
            measure=partial(_java_structure, path, "pip393"),
            has_buckets=True,
            note=_JAVA_NOTE,
        ),
        Subject(
            name="heap of triples (Java)",
            measure=partial(_java_structure, path, "heap"),
            note=_JAVA_NOTE,
        ),
    )


def _java_structure(path: str, structure: str, shape: Shape, entries: int, drain: bool) -> Figures:
    numbers = (*shape, entries, PER_LEDGER)
    end = "drain" if drain else "keep"
    command = ["java", *_JVM, "-cp", path, _MAIN_CLASS, structure, *map(str, numbers), end]
    figures = Measured(**answer_of(command))
    return Figures(figures.bytes / entries, figures.add_ns, figures.drain_per_s)


BENCHMARK: Final = Benchmark(
    name="time_buckets",
    title="Due times: the TimeBucket table",
    about=(
        "Consecutive entries, 50,000 in a ledger, wait for their due times in the index of this "
        "package and in other structures. Each has a process of its own. Memory is measured once, "
        "with ten million entries; adding and draining in pairs, with half a million. The heaps, "
        "the dict and the stock client have no buckets that the shape would change, so they are "
        "measured once in a round."
    ),
    seconds=100,
    quick_s=20,
    run=run,
)
