"""CPU time of the nack index: adding beside the plain PIP-393 layout, draining beside the request.

"Plain" is due time -> ledger -> Roaring bitmap as in PIP-393, in Python, without a membership test
(`nack_structures.PlainLayout`). Draining is `pop_due` for 500 keys at a time, as the consumer does
it, and is compared with releasing the messages and encoding the command that requests them.

    python -m integration.benchmarks.nack_index_cpu [--pairs 7] [--quick]
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterable
from time import process_time
from typing import Final, NamedTuple

from pulsar_encore.core.due_index import MessageKey, TimeBucketIndex, precision_bits
from pulsar_encore.core.topic_state import TopicState
from pulsar_encore.transport.native.consumer import ack_commands

from .nack_structures import PlainLayout, in_order
from .pending_set import in_batches
from .rows import Row, spread_text
from .trial import Benchmark, Trial

KEYS: Final = 300_000
QUICK_KEYS: Final = 60_000
NACKS: Final = 30_000
QUICK_NACKS: Final = 10_000
BURST: Final = 500
DELAY_MS: Final = 60_000
DRAIN_BAR: Final = 0.15


class _Drained(NamedTuple):
    """CPU time in us for each nack."""

    pop: float
    request: float


def _add_ns(
    add: Callable[[MessageKey, int, int], object], keys: list[tuple[MessageKey, int, int]]
) -> float:
    gc.collect()
    start = process_time()
    for key, due_ms, bits in keys:
        add(key, due_ms, bits)
    return (process_time() - start) / len(keys) * 1e9


def _drain(size: int, nacked: int, count: int) -> _Drained:
    """Nack `nacked` messages of each entry of `size`, one in each ms, and redeliver all."""
    state = TopicState(
        None,
        0,
        "persistent://public/default/t",
        -1,
        shared=True,
        nacks=TimeBucketIndex(),
        timeouts=TimeBucketIndex(),
    )
    due_ms, bits = DELAY_MS, precision_bits(DELAY_MS)
    for number in range(count // nacked):
        entry, _ = state.arrive((1, number), size if size > 1 else 0, 0, range(size))
        assert entry is not None
        for index in range(size):
            entry.deliver(index)
        for index in range(nacked):
            due_ms += 1
            state.nack(entry, (number * 7 + index) % size, due_ms, bits)
    gc.collect()
    now_ms, pop, request, found = 2 * due_ms, 0.0, 0.0, 0
    while True:
        start = process_time()
        due = state.take_nacks(now_ms, BURST)
        popped = process_time()
        if not due:
            break
        groups = state.release(due, now_ms)
        ids = [(ledger, entry_id) for ledger, entries in groups for entry_id in entries]
        ack_commands.redeliver(1, ids)
        state.nacks.done(due)
        request += process_time() - popped
        pop += popped - start
        found += len(due)
    return _Drained(pop / found * 1e6, request / found * 1e6)


def run(trial: Trial) -> Iterable[Row]:
    """Measure adding and draining."""
    keys = trial.sized(KEYS, QUICK_KEYS)
    for what, arrivals, bar in (
        ("in order", list(in_order(1, 10, keys)), 2.25),
        ("one message in ten, batches of 10", list(in_batches(1, 10, 10 * keys)), 3.5),
    ):
        mine, plain = trial.alternate(
            f"add {what}",
            lambda rows=arrivals: _add_ns(TimeBucketIndex().add, rows),  # type: ignore[misc]
            lambda rows=arrivals: _add_ns(PlainLayout().add, rows),  # type: ignore[misc]
        )
        yield Row(
            what=f"add: {what}",
            unit="ns",
            ours=mine,
            other=plain,
            beside="plain PIP-393 layout",
            bar=bar,
            chart="Adding a nack",
        )
    count = trial.sized(NACKS, QUICK_NACKS)
    for what, size, nacked in (
        ("unbatched", 1, 1),
        ("one message of batches of 10", 10, 1),
        ("batches of 10", 10, 10),
    ):
        trial.step(f"drain {what}")
        runs = [_drain(size, nacked, count) for _ in range(trial.pairs)]
        yield Row(
            what=f"drain: {what}",
            unit="us",
            ours=tuple(each.pop for each in runs),
            other=tuple(each.request for each in runs),
            beside="releasing and encoding",
            bar=DRAIN_BAR,
            chart="Draining nacks",
        )


BENCHMARK = Benchmark(
    name="nack_index_cpu",
    title="CPU time of the nack index",
    about=(
        "Adding to the index of pending nacks, beside the plain layout of PIP-393 in Python, and "
        "draining it, beside releasing the messages and encoding the command that requests them."
    ),
    seconds=20,
    quick_s=6,
    run=run,
)


def main() -> int:
    """Print the rows. Return 1 if a bar was missed, else 0."""
    parser = argparse.ArgumentParser(description="CPU time of the nack index.")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    missed = False
    for row in run(Trial(pairs=options.pairs, quick=options.quick)):
        assert row.ratio is not None and row.other_figure is not None
        print(f"{row.what:42} {spread_text(row.figure):>22} {row.unit}, {row.beside}", end=" ")
        print(f"{spread_text(row.other_figure)}: {spread_text(row.ratio)} {row.verdict}")
        missed = missed or not row.met
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
