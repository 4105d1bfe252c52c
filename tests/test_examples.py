"""Every example runs, in a process of its own and on a broker of its own, and says what it should.

An example without an expectation here fails, and so does an expectation without an example.
"""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import testing

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MOST_LINES = 60
LONGEST_S = 40

#: Notebooks, in cells: they need Java, so that `integration/spark` runs them.
ON_SPARK = {"spark_orders.py"}

#: File -> pattern of the whole output; times are matched to the tenth they cannot be below.
EXPECTED = {
    "ack_timeout.py": r"forgotten received, and forgotten\nforgotten came back after 1\.\d s\n",
    "values/backoff.py": (
        r"attempt 1 after 0\.\d s\nattempt 2 after 0\.[2-9] s\n"
        r"attempt 3 after (0\.[4-9]|1\.\d) s\nattempt 4 after (0\.[89]|1\.\d) s\n"
    ),
    "batch_receive.py": r"(stored \d+ rows\n)+100 rows in all\n",
    "consume_and_settle.py": (
        r"billed order-0 at attempt 1\norder-1 comes again in a moment\n"
        r"billed order-2 at attempt 1\nbilled order-1 at attempt 2\n"
    ),
    "drop_in.py": (
        r"message 0, redelivered 0 times\nmessage 2, redelivered 0 times\n"
        r"message 1, redelivered 1 times\n"
    ),
    "durable_nacks.py": (
        r"nacked for 2 s by a worker that was killed\n"
        r"'the bank is closed' came after [2-9]\.\d s\nat attempt 2\n"
    ),
    "leases.py": (
        r"a job for later was settled by its handle\n"
        r"a job that hangs came again, at attempt 2\n"
        r"a long job took longer than its lease, and is done\n"
    ),
    "listener.py": r"hello Ada\nhello Edsger\nhello Grace\n",
    "nack_delays.py": (
        r"fast came back after 0\.[4-9] s\nslow came back after 1\.\d s\n"
        r"what was done did not come back\n"
    ),
    "receipts_and_events.py": (
        r"transport: native\nkey: b'\\xff\\x00'\nthe connection is lost\nconnected again\n"
        r"the broker has confirmed the ack\n"
    ),
    "replay_dead_letters.py": (
        r"2 x TimeoutError: prices\n1 x KeyError: 'prices'\n2 replayed, 1 stay\n"
        r"(order [02] again, after-the-outage\n){2}"
    ),
    "retry_and_dead_letters.py": (
        r"(look [123]: no price for 'poison'\n){3}"
        r"dead after 3 attempts: ValueError\nbill raised it\n"
    ),
    "testing_a_consumer.py": (
        r"received one\nthe connection breaks\nreceived two\nboth were acknowledged\n"
    ),
    "virtual_time.py": r"put off\ndone after 60 minutes\n1 redelivery was asked for\n",
    "typed_schema.py": r"Order 7 of Ada\nrefused before sending: ContentError\n",
}


def test_every_example_is_expected_and_every_expectation_an_example() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*EXPECTED, *ON_SPARK}
    assert {path.name for path in EXAMPLES.glob("spark_*.py")} == ON_SPARK


@pytest.mark.parametrize("name", sorted(ON_SPARK))
def test_a_notebook_has_cells_with_titles(name: str) -> None:
    """Each is code that compiles by itself, and the first imports what the others use."""
    source = (EXAMPLES / name).read_text()
    introduction, *cells = re.split(r"^# %% (?=\S)", source, flags=re.MULTILINE)
    assert ast.get_docstring(ast.parse(introduction))
    assert len(cells) > 5
    for number, cell in enumerate(cells):
        found = list(ast.walk(ast.parse(f"# {cell}")))
        assert any(isinstance(each, ast.stmt) for each in found)
        imports = any(isinstance(each, (ast.Import, ast.ImportFrom)) for each in found)
        assert imports is (number == 0), cell


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) < MOST_LINES


@pytest.fixture(scope="module")
def started() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """All of them at once: they mostly wait, for the delays they are about."""
    processes = {
        name: subprocess.Popen(
            [sys.executable, str(EXAMPLES / name)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in EXPECTED
        if (EXAMPLES / name).is_file()
    }
    yield processes
    for process in processes.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_example_says_what_it_should(
    name: str, started: dict[str, subprocess.Popen[str]]
) -> None:
    process = started[name]
    output, problems = process.communicate(timeout=LONGEST_S)
    said = "".join(f"{line}\n" for line in output.splitlines() if not _from_the_engine(line))
    assert process.returncode == 0, problems
    assert re.fullmatch(EXPECTED[name], said), f"{output}\n{problems}"


async def test_the_readmes_first_example_runs_as_it_is_printed() -> None:
    """Only the address, the delay and the last line, which would never end, are other ones."""
    source = (EXAMPLES.parent / "README.md").read_text()
    example = source.partition("```python\n")[2].partition("```")[0]
    assert "delay=30" in example
    assert len(example.splitlines()) < 20

    class Busy(Exception):
        pass

    billed: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    seen: list[bytes] = []

    async def bill(value: bytes) -> None:
        seen.append(value)
        if len(seen) == 1:
            raise Busy
        billed.set_result(value)

    async with testing.broker() as url, encore.Client(url) as client:
        first = await client.subscribe("orders", "billing", encore.ConsumerType.Shared)
        await first.close()  # the subscription stays, and keeps what is sent before the example
        await (await client.create_producer("orders")).send(b"order")
        shorter = example.replace("delay=30", "delay=0.2").replace("asyncio.run(main())", "")
        names: dict[str, Any] = {"bill": bill, "Busy": Busy}
        exec(shorter.replace("pulsar://localhost:6650", url), names)
        running = asyncio.create_task(names["main"]())
        await asyncio.wait([billed, running], timeout=10, return_when=asyncio.FIRST_COMPLETED)
        assert seen == [b"order", b"order"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _from_the_engine(line: str) -> bool:
    """The engine logs warnings to stdout, such as that of the connection that an example breaks."""
    return re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ (WARN|ERROR)", line) is not None
