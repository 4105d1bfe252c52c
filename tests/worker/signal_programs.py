"""Programs that run workers, in processes of their own, for tests with real signals."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
SDK = HERE.parents[1] / "sdk"
#: What a slow machine may need on top of a limit, in s.
SLACK_S = 5.0

PROGRAM = """
import asyncio, logging, os, signal, sys, threading, time
import pulsar_encore as encore
from fake_worker import FakeWorker

logging.basicConfig(level="INFO", format="%(levelname)s %(message)s")
# A shell starts background jobs with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def ready():
    print("ready", flush=True)
    await asyncio.sleep(1000)

def say(text):
    print(text, flush=True)

"""


class Program:
    """A Python program that prints `ready` when its worker serves."""

    def __init__(self, text: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM + text, *arguments],
            env=os.environ | {"PYTHONPATH": os.pathsep.join((str(SDK), str(HERE)))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.sent_at: float = 0.0
        self.took_s: float = 0.0
        self.out: str = ""
        self.errors: str = ""

    def send(self, number: int) -> None:
        self.sent_at = self.sent_at or time.monotonic()
        self.process.send_signal(number)

    def read_line(self) -> str:
        assert self.process.stdout is not None
        line = b""
        # Byte by byte: a buffered read could take later lines, which `communicate` would miss.
        while not line.endswith(b"\n") and (byte := os.read(self.process.stdout.fileno(), 1)):
            line += byte
        return line.decode().rstrip()

    def end(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        self.out, self.errors = self.process.communicate(timeout=60)
        self.took_s = time.monotonic() - self.sent_at
        return self.process.returncode


@contextmanager
def program(text: str, *arguments: str) -> Iterator[Program]:
    running = Program(text, *arguments)
    try:
        first = running.read_line()
        assert first == "ready", first + running.process.communicate(timeout=60)[1]
        yield running
    finally:
        running.process.kill()
        running.process.communicate()
