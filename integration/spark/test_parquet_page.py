"""A reader of `docs/spark-parquet.md` gets the printed output, and each order once."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import pulsar_encore as encore
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
    for query in spark.streams.active:  # after a failure
        query.stop()
    spark.conf.set(TIME_ZONE, str(zone))


class Reader:
    """A person who follows the page in a shell and a Python session.

    Args:
        values: Texts of the page, and the text that takes their place.
        capture: The output of the blocks.
    """

    def __init__(self, values: Mapping[str, str], capture: pytest.CaptureFixture[str]) -> None:
        self._values = values
        self._capture = capture
        self._names: dict[str, Any] = {}
        self._programs: dict[str, str] = {}
        self._printed = ""

    def follow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run the page from the first program on. The broker runs already."""
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
            for command in code.splitlines() if language == "sh" else ():
                program, *arguments = shlex.split(command)
                if program == "python":
                    has_run = True
                    monkeypatch.setattr(sys, "argv", arguments)
                    self._run_program(arguments[0])

    def _run_program(self, path: str) -> None:
        """Run a program of the page, or of the examples, in this process: Spark runs already."""
        source = self._programs.get(path) or Path(path).read_text(encoding="utf-8")
        exec(compile(source, path, "exec"), {"__name__": "__main__"})

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
    pulsar: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page ends with the job of the examples, which continues the queries of the page."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    values = {
        "pulsar://localhost:6650": pulsar.service_url,
        '"orders"': f'"{topic}"',
        '"orders-lake-DLQ"': f'"{topic}-lake-DLQ"',
        " orders lake": f" {topic} {tmp_path}/lake",
        '"lake/': f'"{tmp_path}/lake/',
        "/path/to/checkout": str(ROOT),
    }
    Reader(values, capsys).follow(monkeypatch)
    orders = session.read.parquet(f"{tmp_path}/lake/orders").collect()
    assert sorted(row["id"] for row in orders) == [n for n in range(1, 81) if n % 10]
    compacted = session.read.parquet(f"{tmp_path}/lake/compacted").collect()
    assert sorted(row["id"] for row in compacted) == [n for n in range(3, 81, 3) if n % 10]
    assert asyncio.run(letters(pulsar, f"{topic}-lake-DLQ")) == {
        b'{"id": %d, "total": ' % number for number in range(10, 81, 10)
    }


async def letters(pulsar: Server, topic: str) -> set[bytes]:
    """Return the letters that the page's subscription keeps."""
    async with encore.Client(pulsar.service_url) as client:
        consumer = await client.subscribe(topic, "encore-replay")
        found: set[bytes] = set()
        while len(found) < 8:  # a task that was repeated sends a letter twice
            found.add((await consumer.receive(timeout=WAIT_S)).data())
        return found
