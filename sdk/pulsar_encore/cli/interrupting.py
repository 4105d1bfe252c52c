"""A Spark job that a person or an operator ends: one sentence, and no JVM stays behind.

Owns `interruptible`. PySpark itself answers Ctrl-C by calling Java from inside of the call to Java
that was interrupted, and what is under way is told by everybody in a thousand lines. Here the job
runs on a thread, the main one waits for signals, and after one of them Java is told to be silent
before it is ended. What that does to a batch is what a crash does: the next run repeats it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn

from .exit_codes import INTERRUPTED, TERMINATED

_CODES: Final = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
_LOOK_S: Final = 0.2
_END_S: Final = 10.0  # for a JVM to tidy up; then it is killed


def interruptible(job: Callable[[], int], says: str) -> int:
    """Run a job on a thread; what it raises is raised here.

    Args:
        job: Gives the exit code.
        says: What is to be known when it is interrupted, in a sentence.
    """
    if threading.current_thread() is not threading.main_thread():
        return job()  # signals come to the main thread: they are not this call's matter
    ended = threading.Event()
    signals: list[int] = []
    outcome: dict[str, Any] = {}

    def work() -> None:
        try:
            outcome["code"] = job()
        except BaseException as error:
            outcome["error"] = error
        finally:
            ended.set()

    def interrupted(number: int, frame: object) -> None:
        signals.append(number)  # nothing more: the lock of an Event may be this thread's just now

    before = {number: signal.signal(number, interrupted) for number in _CODES}
    try:
        threading.Thread(target=work, name="pulsar-encore-job", daemon=True).start()
        while not (ended.wait(_LOOK_S) or signals):
            pass
        if signals and not ended.is_set():
            _end(_CODES[signal.Signals(signals[0])], says)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if "error" in outcome:
        raise outcome["error"]
    code: int = outcome["code"]
    return code


def _end(code: int, says: str) -> NoReturn:
    """Say it, end Java, and end: the thread cannot be, as it waits for Java."""
    sys.stdout.flush()
    sys.stderr.write(f"pulsar-encore: {says}\n")
    sys.stderr.flush()
    for number in _CODES:
        signal.signal(number, lambda *_: os._exit(code))  # once more: at once
    logging.disable(logging.CRITICAL)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    _end_java()
    os._exit(code)


def _end_java() -> None:
    """The JVM that PySpark started; where spark-submit did, that ends when this process has."""
    context: Any = getattr(sys.modules.get("pyspark.core.context"), "SparkContext", None)
    gateway: Any = getattr(context, "_gateway", None)
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is None:
        return
    with contextlib.suppress(Exception):  # it may be ending already
        java = gateway.jvm.java
        java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))
    if process is None:
        return
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
