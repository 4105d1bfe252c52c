"""Every example runs in its own process with its own broker, and prints the expected output.

An example without an expectation here fails, and so does an expectation without an example.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import pulsar_encore as encore
from pulsar_encore import testing
from tests.harness.pages import DOCS, blocks_of

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MAX_LINES = 60
MAX_LINES_OF_A_RECIPE = 85
TIMEOUT_S = 40

#: Programs that need Java, so `integration/spark` runs them: a notebook, and a job.
NOTEBOOKS = {"spark_orders.py"}
SPARK_JOBS = {"spark_parquet.py"}
#: Programs that run until they get a signal.
SERVICES = {"production_worker.py"}
#: Programs of `docs/recipes`. They run until they get a signal, in the tests of their pages.
RECIPES = {path.name for path in EXAMPLES.glob("recipe_*.py")}
#: Files for pytest.
UNDER_PYTEST = {"testing_a_worker.py"}

#: File -> pattern of the whole output. The patterns of times allow the smallest possible value.
EXPECTED = {
    "ack_timeout.py": r"forgotten received, but not acked\nforgotten redelivered after 1\.\d s\n",
    "backoff.py": (
        r"attempt 1 after 0\.\d s\nattempt 2 after 0\.[2-9] s\n"
        r"attempt 3 after (0\.[4-9]|1\.\d) s\nattempt 4 after (0\.[89]|1\.\d) s\n"
    ),
    "batch_receive.py": r"(stored \d+ rows\n)+100 rows in total\n",
    "consume_and_settle.py": (
        r"billed order-0 at attempt 1\norder-1 will be redelivered\n"
        r"billed order-2 at attempt 1\nbilled order-1 at attempt 2\n"
    ),
    "drop_in.py": (
        r"message 0, redelivered 0 times\nmessage 2, redelivered 0 times\n"
        r"message 1, redelivered 1 times\n"
    ),
    "durable_nacks.py": (
        r"nacked for 2 s by a worker that was killed\n"
        r"'the bank is closed' redelivered after [2-9]\.\d s\nat attempt 2\n"
    ),
    "leases.py": (
        r"a job for later was acked by its handle\n"
        r"a job that hangs was redelivered, attempt 2\n"
        r"a long job took longer than its lease, and is done\n"
    ),
    "listener.py": r"hello Ada\nhello Edsger\nhello Grace\n",
    "nack_delays.py": (
        r"fast redelivered after 0\.[4-9] s\nslow redelivered after 1\.\d s\n"
        r"the acked message was not redelivered\n"
    ),
    "receipts_and_events.py": (
        r"transport: native\nkey: b'\\xff\\x00'\nthe connection is lost\nconnected again\n"
        r"the ack receipt has arrived\n"
    ),
    "replay_dead_letters.py": (
        r"2 x TimeoutError: prices\n1 x KeyError: 'prices'\n2 replayed, 1 not selected\n"
        r"(order [02] replayed, after-the-outage\n){2}"
    ),
    "retry_and_dead_letters.py": (
        r"(attempt [123]: no price for 'poison'\n){3}"
        r"dead-lettered after 3 attempts: ValueError\nbill raised it\n"
    ),
    "testing_a_consumer.py": (
        r"received one\nthe connection was dropped\nreceived two\nboth were acked\n"
    ),
    "virtual_time.py": r"nacked\ndone after 60 minutes\n1 request for redelivery\n",
    "worker_database.py": (
        r"99 rows, 1 dead letter\n7, NOT NULL constraint failed: readings\.celsius\n"
    ),
    "worker_exactly_once.py": r"200 orders, 200 invoices, 200 different ones\n",
    "worker_long_handler.py": (
        r"attempt 1 begins at minute 0\nstopped after minute 46\ngiven back: 1\n"
        r"attempt 1 begins at minute 46\ndone\nfailed attempts: 0\n"
    ),
    "worker_manual_ack.py": (
        r"a scanned page is submitted\nhandlers that run: 0\na scanned page is acked\nbacklog: 0\n"
    ),
    "worker_publish_results.py": r"lamp for Ada\nchair for Ada\n2 parcels\n",
    "worker_retry_letters.py": (
        r"attempt 1 after 0 minutes\nattempt 2 after 0 minutes\nattempt 3 after 60 minutes\n"
        r"2 retries, 0 dead letters\n"
        r"one went through the retry letter topic: the bank is closed\n"
    ),
    "worker_rollout.py": (
        r"1\.0 has drained: 0 handlers left behind\nin order, each once: True\n"
        r"both versions worked: True\n"
    ),
    "worker_several_handlers.py": (
        r"(billed Ada\n|billed Grace\n|paid back Edsger\n){3}"
        r"example-orders/shop: 2 succeeded\nexample-refunds/shop: 1 succeeded\n"
    ),
    "worker_topic_pattern.py": (
        r"list: an order of example-shop-de\nlist: an order of example-till\n"
        r"pattern: an order of example-shop-de\npattern: an order of example-shop-fr\n"
        r"pattern: an order of example-shop-it\n"
    ),
    "worker_trace_context.py": (r"(00-(lamp|chair): committed \['insert \2', 'update \2'\]\n){2}"),
    "transaction.py": (
        r"no price for a lamp\nexample-orders: chair\nexample-orders: table\n"
        r"example-invoices: 40 for a chair\nexample-invoices: 250 for a table\n"
    ),
    "typed_schema.py": r"Order 7 of Ada\nrefused before sending: ContentError\n",
}


def test_every_example_has_an_expectation_and_the_reverse() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        *EXPECTED,
        *NOTEBOOKS,
        *SPARK_JOBS,
        *SERVICES,
        *RECIPES,
        *UNDER_PYTEST,
    }
    assert {path.name for path in EXAMPLES.glob("spark_*.py")} == NOTEBOOKS | SPARK_JOBS


@pytest.mark.parametrize("name", sorted(NOTEBOOKS))
def test_a_notebook_has_cells_with_titles(name: str) -> None:
    """Each cell compiles alone, and the first one has all imports."""
    source = (EXAMPLES / name).read_text()
    introduction, *cells = re.split(r"^# %% (?=\S)", source, flags=re.MULTILINE)
    assert ast.get_docstring(ast.parse(introduction))
    assert len(cells) > 5
    for number, cell in enumerate(cells):
        found = list(ast.walk(ast.parse(f"# {cell}")))
        assert any(isinstance(each, ast.stmt) for each in found)
        imports = any(isinstance(each, (ast.Import, ast.ImportFrom)) for each in found)
        assert imports is (number == 0), cell


@pytest.mark.parametrize("name", sorted({*EXPECTED, *SERVICES, *SPARK_JOBS, *UNDER_PYTEST}))
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) < MAX_LINES


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recipe_is_short_and_a_page_shows_it(name: str) -> None:
    program = (EXAMPLES / name).read_text()
    assert len(program.splitlines()) < MAX_LINES_OF_A_RECIPE
    pages = [str(path.relative_to(DOCS)) for path in (DOCS / "recipes").glob("*.md")]
    shown = [page for page in pages for block in blocks_of(page) if block.code == program]
    assert len(shown) == 1


@pytest.fixture(scope="module")
def processes() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Start all examples at once, because they mostly wait for delays."""
    running = {
        name: subprocess.Popen(
            [sys.executable, str(EXAMPLES / name)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in EXPECTED
        if (EXAMPLES / name).is_file()
    }
    yield running
    for process in running.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_example_prints_the_expected_output(
    name: str, processes: dict[str, subprocess.Popen[str]]
) -> None:
    process = processes[name]
    output, errors = process.communicate(timeout=TIMEOUT_S)
    printed = "".join(f"{line}\n" for line in output.splitlines() if not _is_log_line(line))
    assert process.returncode == 0, errors
    assert re.fullmatch(EXPECTED[name], printed), f"{output}\n{errors}"


def test_the_tests_of_an_example_pass(tmp_path: Path) -> None:
    """Plugins are loaded by name: this checkout's plugin, whatever is installed."""
    settings = tmp_path / "pytest.ini"
    settings.write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    options = ["-q", "-Werror", "-pno:cacheprovider", f"-c{settings}"]
    plugins = ["-ppytest_asyncio.plugin", "-ppulsar_encore_pytest"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *plugins, str(EXAMPLES / "testing_a_worker.py")],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_a_production_worker_needs_twelve_lines_beyond_the_application() -> None:
    source = (EXAMPLES / "production_worker.py").read_text()
    program, _, worker = source.partition("# The worker: ")
    code = [each for each in worker.splitlines()[1:] if each and not each.startswith("#")]
    assert len(code) <= 12
    assert "encore.Worker(" not in program
    assert "encore.Client(" not in program


async def test_a_production_worker_bills_answers_its_probe_and_drains_at_sigterm() -> None:
    @dataclass
    class Order:
        number: int
        total: int

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with testing.broker() as url, encore.Client(url) as client:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(EXAMPLES / "production_worker.py"),
            url,
            str(port),
            stdout=subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while not (await _probe(port)).startswith("HTTP/1.0 200"):
                    await asyncio.sleep(0.1)
                schema = encore.Json(Order)
                producer = await client.create_producer("orders", schema=schema)
                for number, total in enumerate((5, -1, 7)):
                    await producer.send(Order(number, total), partition_key=str(number))
                while (
                    '"succeeded": 2, "failed": 1, "retried": 0, "rejected": 1'
                    not in await _probe(port)
                ):
                    await asyncio.sleep(0.1)
                process.send_signal(signal.SIGTERM)
                printed, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0
        assert sorted(printed.decode().splitlines()) == [
            "charged 5 for order 0",
            "charged 7 for order 2",
        ]
        orders = "persistent://public/default/orders"
        assert url.broker.backlog(orders, "billing") == 0
        async with client.create_reader(f"{orders}-billing-DLQ", encore.MessageId.earliest) as dead:
            letter = await dead.read_next(timeout=10)
            assert "negative total" in str(letter.properties())


async def _probe(port: int) -> str:
    """Return the answer of the probe; "" if nobody listens yet."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return ""
    writer.write(b"GET /ready HTTP/1.0\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()


def _is_log_line(line: str) -> bool:
    """Return True for a warning that the C++ client logs to stdout, such as a lost connection."""
    return re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ (WARN|ERROR)", line) is not None
