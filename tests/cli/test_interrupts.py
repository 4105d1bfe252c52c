"""Work that a signal asks to stop: it stops and reports the interruption, or it completes."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time

import pytest

from pulsar_encore.cli.interruption import InterruptedWork, until_interrupted

SIGNALS = [signal.SIGINT, signal.SIGTERM]


def nothing() -> None:
    raise AssertionError("it was asked to end")


def handlers() -> list[object]:
    return [signal.getsignal(each) for each in SIGNALS]


def test_uninterrupted_work_returns_its_result_or_error() -> None:
    before = handlers()
    assert until_interrupted(lambda: 5, nothing) == 5
    with pytest.raises(KeyError):
        until_interrupted(lambda: {}["a"], nothing)
    assert handlers() == before


@pytest.mark.parametrize("number", SIGNALS)
def test_interrupted_work_is_asked_to_stop_and_stops(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before, asked = handlers(), threading.Event()

    def work() -> None:
        os.kill(os.getpid(), number)
        assert asked.wait(10)
        logging.error("a call was cut off")
        sys.stderr.write("a call was cut off\n")
        raise RuntimeError("a call was cut off")

    with pytest.raises(InterruptedWork) as caught:
        until_interrupted(work, asked.set)
    assert caught.value.number == number
    assert handlers() == before
    assert "cut off" not in capsys.readouterr().err
    assert not logging.root.manager.disable


def test_work_that_completes_after_an_interrupt_returns_its_result() -> None:
    asked = threading.Event()

    def work() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.wait(10)
        return 5

    assert until_interrupted(work, asked.set) == 5


def test_a_failed_request_to_stop_is_repeated() -> None:
    asked = threading.Semaphore(0)

    def ask() -> None:
        asked.release()
        raise ConnectionError("gone")

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.acquire(timeout=10)
        assert asked.acquire(timeout=10)
        raise RuntimeError("it ends")

    with pytest.raises(InterruptedWork):
        until_interrupted(work, ask)


@pytest.mark.parametrize("twice", [False, True])
def test_work_that_does_not_stop_is_abandoned(twice: bool) -> None:
    free = threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        free.wait(60)

    def ask() -> None:
        if twice:
            os.kill(os.getpid(), signal.SIGINT)

    began = time.monotonic()
    waits = {"grace_s": 30.0, "soon_s": 0.01} if twice else {"grace_s": 0.01}
    with pytest.raises(InterruptedWork):
        until_interrupted(work, ask, **waits)
    free.set()
    assert time.monotonic() - began < 20


def test_outside_of_the_main_thread_the_work_just_runs() -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(until_interrupted(lambda: 5, nothing)))
    thread.start()
    thread.join(10)
    assert found == [5]
