"""SIGINT and SIGTERM during a triage that replays letters: one line, no loss, no process left."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.devbroker import BrokerSettings, run_in_thread

from .spark_kit import worker_environment

pytestmark = pytest.mark.timeout(400)

LETTERS = 160
HOME = "persistent://public/default/cut"
DEAD = f"{HOME}-billing-DLQ"
SENTENCE = re.compile(
    r"pulsar-encore: interrupted: (no batch was finished|(\d+) letters were stored in "
    r"\d batch(es)?, \2 of them sent home \(replay \w+\)); nothing is lost: run it again with the "
    r"same checkpoint, which may send some letters of the interrupted batch a second time"
)
TRACE = re.compile(r"Traceback|Error|Exception|^\s+at |pulsar-encore:")
QUIET = encore.ConsoleLogger(encore.LoggerLevel.Error)


async def publish_letters(url: str) -> None:
    async with encore.Client(url, transport="stock", logger=QUIET) as client:
        producer = await client.create_producer(DEAD, batching_enabled=False)
        sentence = {letters.REAL_TOPIC: HOME, letters.REAL_SUBSCRIPTION: "billing"}
        for number in range(LETTERS):
            origin = {letters.ORIGIN_MESSAGE_ID: f"1:{number}:-1"}
            await producer.send(b"%d" % number, properties=sentence | origin)


async def replayed_numbers(url: str) -> list[int]:
    async with encore.Client(url, transport="stock", logger=QUIET) as client:
        reader = await client.create_reader(HOME, encore.MessageId.earliest)
        found = []
        while await reader.has_message_available():
            found.append(int((await reader.read_next(timeout=10)).data()))
        return found


def start_triage(url: str, folder: Path) -> subprocess.Popen[str]:
    """Start the triage in a process group of its own, as a shell does, with its JVM and workers."""
    worker_environment()
    words = ["--topic", DEAD, "--url", url, "--replay", "--all", "--no-text-keys"]
    words += ["--checkpoint", str(folder / "done"), "--out", str(folder / "out")]
    words += ["--option", "maxEntriesPerTrigger=40", "--master", "local[2]"]
    return subprocess.Popen(
        [sys.executable, "-m", "pulsar_encore", "spark", "triage", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def still_running(children: list[psutil.Process]) -> list[str]:
    """Return the command lines of the processes that still run after 30 s."""
    until = time.monotonic() + 30
    while True:
        running = []
        for each in children:
            try:
                if each.is_running() and each.status() != psutil.STATUS_ZOMBIE:
                    running.append(" ".join(each.cmdline()))
            except psutil.NoSuchProcess:
                continue
        if not running or time.monotonic() > until:
            return running
        time.sleep(0.02)


def test_interrupted_triages_lose_no_letter_and_end_with_one_line(tmp_path: Path) -> None:
    """The run is interrupted twice while a stored batch is being sent, and then runs to its end."""
    with run_in_thread(BrokerSettings()) as broker:
        asyncio.run(publish_letters(broker.url))
        for batch, number, code in ((0, signal.SIGINT, 130), (1, signal.SIGTERM, 143)):
            process = start_triage(broker.url, tmp_path)
            stored = f"groups/run=*/batch={batch}/_SUCCESS"
            while process.poll() is None and not [*(tmp_path / "out").glob(stored)]:
                time.sleep(0.02)
            assert process.poll() is None, process.communicate()
            children = psutil.Process(process.pid).children(recursive=True)
            if number == signal.SIGINT:
                os.killpg(process.pid, number)  # as a terminal does
            else:
                os.kill(process.pid, number)
            out, err = process.communicate(timeout=60)
            assert (process.returncode, out) == (code, "")
            # The lines above are Java's output at its start.
            *java_lines, sentence = err.splitlines()
            assert SENTENCE.fullmatch(sentence), err
            assert not [each for each in java_lines if TRACE.search(each)], err
            assert still_running(children) == []
        process = start_triage(broker.url, tmp_path)
        out, err = process.communicate(timeout=240)
        assert (process.returncode, "were sent home" in out) == (0, True), err
        found = asyncio.run(replayed_numbers(broker.url))
    assert sorted(set(found)) == list(range(LETTERS))
    assert len(found) <= LETTERS + 2 * 40, "only those of a batch that was cut off come twice"
