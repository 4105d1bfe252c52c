"""The cost of transactions on a real Pulsar: our native transport beside Java's client.

Both clients run each workload plainly and in transactions, in turns on one broker. The messages
have 100 bytes. The bars compare two ratios, ours and Java's: the figure in transactions divided by
the plain one of the same pair. For an empty transaction that is the plain time of one message.

Each client runs in one process for all pairs. Java first repeats each workload for some seconds, so
that the JIT compilers of its process and of the broker have done their work.

    make bench ONLY=java_transactions [URL=...]
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Literal

import pulsar_encore as encore
from pulsar_encore.cli.demo.workload import PAYLOAD, Figures, Stopwatch
from tests.harness.pulsar_server import own_broker

from .java_client import warm_up
from .java_programs import Answer, answering_program, java_program, missing_java
from .processes import Runner, fresh_topic
from .rows import Row, column, percentile, row_of
from .transaction_cost import GROUP, acks, exclusive_consumer, sends, transaction_if
from .trial import Benchmark, Trial

_MODULE: Final = "integration.benchmarks.java_transactions"  # also when this is `__main__`
_WITHIN_S: Final = 60
_WARM_S: Final = 2
#: Messages in a transaction, 0 for plain sends -> messages in one measurement.
SENDS: Final = {0: 40_000, 10_000: 40_000, 1_000: 10_000, 100: 1_000}
#: Messages of an entry, 0 for unbatched -> messages in one measurement.
ACKS: Final = {100: 20_000, 0: 10_000}
#: Messages at once -> messages in one measurement.
SINGLES: Final = {1: 20, 4: 60, 16: 160, 64: 448}
EMPTY: Final = 40

Kind = Literal["plain", "transaction", "empty"]
Pair = dict[str, list[Figures]]
"""The figures of "ours" and "java", in the order of measurement."""


def run(trial: Trial) -> Iterator[Row]:
    """Measure sends, acks, and transactions with one message or none.

    Raises:
        JavaProgramError: if a client failed, or Java's program cannot be compiled.
        MeasurementError: if a topic could not be filled.
    """
    with (
        _pulsar(trial.url) as url,
        answering_program(_MODULE, sys.executable, "-m", _MODULE, url) as ours,
        java_program("client", "Transactions", url, options=("-Xmx512m",)) as java,
    ):
        clients = _Clients(trial, url, {"ours": ours, "java": java})
        yield from _sends(clients)
        yield from _acks(clients)
        yield from _singles(clients)


@contextmanager
def _pulsar(url: str | None) -> Iterator[str]:
    """Yield `url`, or the address of a Pulsar with transactions that was started here."""
    if url is not None:
        yield url
        return
    settings = {
        "transactionCoordinatorEnabled": "true",
        "brokerDeleteInactiveTopicsEnabled": "false",
    }
    with own_broker("standalone", **settings) as broker:
        yield broker.service_url


class _Clients:
    """Our client and Java's, each in a process. Both measure the same workloads.

    Args:
        asks: Ask the processes "ours" and "java" for a workload.
    """

    def __init__(self, trial: Trial, url: str, asks: dict[str, Callable[..., Answer]]) -> None:
        self.trial: Trial = trial
        self._url = url
        self._asks = asks

    def filled_topic(self, count: int, batch: int) -> str:
        """Return a new topic with messages. `batch` is the number in an entry, 0 for unbatched."""
        topic = fresh_topic()
        work = Runner(self._url)(
            "stock", "fill", within_s=_WITHIN_S, topic=topic, count=count, batch=batch
        )
        asyncio.run(work)
        return topic

    def compare(
        self, what: str, workload: str, topic: str, *variants: tuple[int | str, ...]
    ) -> list[Pair]:
        """Measure the variants of a workload with both clients in turns.

        Args:
            workload: One of `WORKLOADS`.
            topic: A topic with messages, or "": each measurement has a new one.
            variants: Parameters of the workload.
        """

        def measure(ask: Callable[..., Answer], parameters: tuple[int | str, ...]) -> Figures:
            return dict(ask(workload, topic or fresh_topic(), *parameters))

        subjects = {
            f"{side} {number}": partial(measure, ask, parameters)
            for number, parameters in enumerate(variants)
            for side, ask in self._asks.items()
        }
        self.trial.step(f"{what}, warming up Java and the broker")
        theirs = [each for name, each in subjects.items() if name.startswith("java")]
        warm_up(lambda: [each() for each in theirs], self.trial.sized(_WARM_S, 0))
        found = self.trial.in_turns(what, subjects)
        return [
            {side: found[f"{side} {number}"] for side in self._asks}
            for number in range(len(variants))
        ]


def _sends(clients: _Clients) -> Iterator[Row]:
    sized = clients.trial.sized
    plain, *others = clients.compare(
        *("sends", "sends", ""),
        *((sized(each, each // 2), size) for size, each in SENDS.items()),
    )
    yield _row("sends, plain", plain)
    for size, found in zip([*SENDS][1:], others, strict=True):
        yield from beside_plain(f"sends in transactions of {size:,}", found, plain)


def _acks(clients: _Clients) -> Iterator[Row]:
    for batch, full in ACKS.items():
        count = clients.trial.sized(full, full // 2)
        topic = clients.filled_topic(count + GROUP, batch)
        shape = f"batches of {batch}" if batch else "unbatched"
        plain, found = clients.compare(
            *(f"acks, {shape}", "acks", topic),
            *((count, transactional) for transactional in (0, 1)),
        )
        yield _row(f"receive and ack in lists, {shape}, plain", plain)
        yield from beside_plain(f"the same in transactions of {GROUP:,}, {shape}", found, plain)


def _singles(clients: _Clients) -> Iterator[Row]:
    topic = clients.filled_topic(max(SINGLES.values()) + max(SINGLES), 0)
    kinds: tuple[Kind, ...] = ("plain", "transaction")
    cases = [(count, parallel, kind) for parallel, count in SINGLES.items() for kind in kinds]
    cases.append((EMPTY, 1, "empty"))
    *pairs, empty = clients.compare("single messages", "singles", topic, *cases)
    for number, parallel in enumerate(SINGLES):
        plain, found = pairs[2 * number : 2 * number + 2]
        if parallel == 1:
            yield _row("receive, send and ack, plain, p50", plain, "p50_ms")
            yield from beside_plain("begin, commit, p50", empty, plain, "p50_ms")
            yield from beside_plain(
                "receive, begin, send and ack, commit, p50", found, plain, "p50_ms"
            )
        yield _row(f"receive, send and ack, {parallel} at once, plain", plain)
        yield from beside_plain(f"transactions of one message, {parallel} at once", found, plain)


def beside_plain(what: str, found: Pair, plain: Pair, key: str = "per_s") -> Iterator[Row]:
    """Return the row of figures in transactions, and that of their ratios to the plain ones."""
    yield _row(what, found, key)
    shares = {
        side: tuple(
            mine / base
            for mine, base in zip(column(found[side], key), column(plain[side], key), strict=True)
        )
        for side in found
    }
    yield Row(
        what=f"{what}, beside plain",
        unit="of plain",
        ours=shares["ours"],
        other=shares["java"],
        beside="Java's client",
        bar=1.0,
        higher_is_better=key == "per_s",
        chart="Cost of transactions on a Pulsar, beside Java's client",
    )


def _row(what: str, found: Pair, key: str = "per_s") -> Row:
    return row_of(
        *(found, "ours", "java", key),
        what=what,
        unit="ms" if key == "p50_ms" else "msg/s",
        beside="Java's client",
        higher_is_better=key == "per_s",
    )


async def singles(url: str, topic: str, *, count: int, parallel: int, kind: Kind) -> Figures:
    """Receive messages, and send and ack one at a time in each of `parallel` tasks.

    The send and the ack of a message leave together, and the task waits for both answers.
    """
    times: list[float] = []
    async with (
        encore.Client(url) as client,
        exclusive_consumer(client, topic) as consumer,
        client.create_producer(
            f"{topic}-results-{uuid.uuid4().hex}", batching_enabled=False
        ) as producer,
    ):

        async def one() -> None:
            clock = Stopwatch()
            message = None if kind == "empty" else await consumer.receive()
            async with transaction_if(client, kind != "plain") as txn:
                if message is not None:
                    await asyncio.gather(
                        producer.send(PAYLOAD, txn=txn), consumer.acknowledge(message, txn=txn)
                    )
            times.append(clock())

        async def repeated(number: int) -> None:
            for _ in range(number):
                await one()

        async def at_once(number: int) -> None:
            await asyncio.gather(*(repeated(number) for _ in range(parallel)))

        await at_once(1)
        times.clear()
        clock = Stopwatch()
        await at_once(count // parallel)
        seconds = clock()
    return {"per_s": len(times) / seconds, "p50_ms": percentile(times, 0.5) * 1e3}


#: The workloads of our process, with the names of their parameters.
WORKLOADS: Final = {
    "sends": (sends, ("count", "size")),
    "acks": (acks, ("count", "transactional")),
    "singles": (singles, ("count", "parallel", "kind")),
}


def answer(url: str, line: str) -> Figures:
    """Run the workload of a line of words, as Java's program does.

    Raises:
        TimeoutError: if it takes too long, as it does when the broker has ended.
    """
    name, topic, *words = line.split()
    workload, names = WORKLOADS[name]
    values = (int(word) if word.isdecimal() else word for word in words)
    work = workload(url, topic, **dict(zip(names, values, strict=True)))
    return asyncio.run(asyncio.wait_for(work, _WITHIN_S))


BENCHMARK: Final = Benchmark(
    name="java_transactions",
    title="Transactions on a Pulsar, beside Java's client",
    about=(
        "100-byte messages on a Pulsar 4.2.4 of this run, with the native transport and with "
        "Java's client 4.2.4. Sends are in batches, in one transaction after the other. Acks are "
        "lists of 1,000 with receipts, on an Exclusive subscription. Single messages are "
        'unbatched. Rows "beside plain" have the ratio of the figure in transactions to the plain '
        "one for each client, and their bar is that ours is no worse than Java's."
    ),
    seconds=180,
    quick_s=None,
    run=run,
    available=missing_java,
)


if __name__ == "__main__":
    for asked in sys.stdin:
        print(json.dumps(answer(sys.argv[1], asked)), flush=True)
