"""A reader of `docs/spark-parquet.md` gets the printed output; the example writes orders once."""

from __future__ import annotations

import asyncio
import re
import runpy
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import pulsar_encore as encore
from pulsar_encore.testing import BrokerSettings, BrokerThread
from tests.harness.page_shell import file_name
from tests.harness.pages import all_blocks
from tests.harness.pulsar_server import Server

from .spark_kit import ROOT

PAGE = "spark-parquet.md"
WAIT_S = 60
TIME_ZONE = "spark.sql.session.timeZone"


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of all tests. Settings and queries of the page end with the test."""
    zone = spark.conf.get(TIME_ZONE)
    yield spark
    for query in spark.streams.active:
        query.stop()
    spark.conf.set(TIME_ZONE, str(zone))


class Reader:
    """A person who follows the page in a shell and a Python session.

    Args:
        url: The broker to use in place of the page's.
        folder: The folder of the page.
        capture: The output of the blocks.
    """

    def __init__(self, url: str, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self._values = {"pulsar://localhost:6650": url, '"lake/': f'"{folder}/lake/'}
        self._capture = capture
        self._names: dict[str, Any] = {}
        self._programs: dict[str, str] = {}
        self._printed = ""

    def follow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        has_run = False
        for language, block in all_blocks(PAGE):
            if language == "text":
                if has_run:
                    self._expect(block.code)
                continue
            self._printed = ""
            code = block.code
            for word, value in self._values.items():
                code = code.replace(word, value)
            if name := file_name(block):
                self._programs[name] = code
            elif language == "python":
                exec(compile(code, PAGE, "exec"), self._names)
                has_run = True
            else:
                has_run = code.startswith("python ")
                if has_run:
                    arguments = shlex.split(code)[1:]
                    monkeypatch.setattr(sys, "argv", arguments)
                    exec(compile(self._programs[arguments[0]], arguments[0], "exec"), {})

    def _expect(self, text: str) -> None:
        """Wait until the lines are printed. Three dots stand for any text of a line."""
        pattern = ".*?".join(
            re.escape(line.strip()).replace(r"\.\.\.", r"[^\n]*?") for line in text.splitlines()
        )
        deadline = time.monotonic() + WAIT_S
        while not re.search(pattern, self._printed, flags=re.DOTALL):
            self._printed += self._capture.readouterr().out
            assert time.monotonic() < deadline, f"{text}\nis not in\n{self._printed}"
            time.sleep(0.05)


def test_a_reader_of_the_page_gets_the_printed_output(
    session: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with BrokerThread(BrokerSettings(port=0)) as broker:
        try:
            Reader(broker.url, tmp_path, capsys).follow(monkeypatch)
        finally:
            for query in session.streams.active:
                query.stop()


def test_two_runs_of_the_example_write_each_order_once(
    session: SparkSession,
    pulsar: Server,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def send(numbers: range) -> None:
        async with encore.Client(pulsar.service_url) as client:
            async with client.create_producer(topic) as producer:
                for number in numbers:
                    order = f'{{"id": {number}, "total": 1, "placed": "2026-03-0{number % 3 + 1}"}}'
                    await producer.send(order.encode() if number % 10 else b"broken %d" % number)

    async def letters() -> set[bytes]:
        async with encore.Client(pulsar.service_url) as client:
            consumer = await client.subscribe(f"{topic}-lake-DLQ", "encore-replay")
            return {(await consumer.receive(timeout=WAIT_S)).data() for _ in range(4)}

    job = runpy.run_path(str(ROOT / "examples" / "spark_parquet.py"))["main"]
    asyncio.run(send(range(1, 22)))
    job(pulsar.service_url, topic, str(tmp_path))
    assert capsys.readouterr().out == "2026-03-01 7\n2026-03-02 6\n2026-03-03 6\n"
    asyncio.run(send(range(22, 44)))
    job(pulsar.service_url, topic, str(tmp_path))
    assert capsys.readouterr().out == "2026-03-01 13\n2026-03-02 13\n2026-03-03 13\n"
    rows = session.read.parquet(str(tmp_path / "orders")).collect()
    assert sorted(row["id"] for row in rows) == [n for n in range(1, 44) if n % 10]
    assert asyncio.run(letters()) == {b"broken %d" % number for number in (10, 20, 30, 40)}
