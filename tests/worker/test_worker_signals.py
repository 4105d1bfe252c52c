"""SIGTERM to a process with a `Worker` under load: exit codes, limits of time, and no lost acks."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from signal_programs import SLACK_S, program

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread, run_in_thread

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows delivers no SIGTERM")

COUNT = 400
DRAIN_S = 4.0

WORKER = """
url, done, drain = sys.argv[1], sys.argv[2], float(sys.argv[3])
started = 0
READY = 16  # all slots are busy

def begin():
    global started
    started += 1
    if started == READY:
        say("ready")

def end(value):
    with open(done, "a") as file:
        file.write(value.decode() + "\\n")

HANDLER

async def main():
    async with encore.Client(url, transport="native") as client:
        worker = encore.Worker(
            client, "orders", "billing", handler, initial_position=encore.InitialPosition.Earliest
        )
        await encore.run(worker, drain=drain)

asyncio.run(main())
"""


def worker_program(handler: str) -> str:
    return WORKER.replace("HANDLER", handler)


ORDINARY = """
async def handler(value):
    begin()
    await asyncio.sleep(0.02)
    end(value)
"""


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with run_in_thread() as running:
        yield running


@pytest.fixture
def filled(broker: BrokerThread) -> BrokerThread:
    async def fill() -> None:
        async with (
            encore.Client(broker.url) as client,
            client.create_producer("orders", batching_enabled=False) as producer,
        ):
            await asyncio.gather(*(producer.send(b"%d" % number) for number in range(COUNT)))

    asyncio.run(fill())
    return broker


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_no_message_is_processed_again_after_a_drain_under_load(
    filled: BrokerThread, tmp_path: Path, number: int
) -> None:
    done = tmp_path / "done"
    for _ in range(3):
        with program(worker_program(ORDINARY), filled.url, str(done), "20") as running:
            running.send(number)
            assert running.end() == 0, running.errors
            assert running.took_s < 10
        processed = done.read_text().split()
        assert len(set(processed)) == len(processed), "no message twice"
        left = COUNT - len(processed)
        assert filled.backlog("orders", "billing") == left, "every processed message is acked"
        assert left > 0, "the signal came under load"


def test_a_process_whose_handlers_block_the_loop_is_gone_two_seconds_after_the_budget(
    filled: BrokerThread, tmp_path: Path
) -> None:
    handler = """
async def handler(value):
    begin()
    if started == READY:
        time.sleep(1000)
    await asyncio.sleep(0.02)
"""
    with program(
        worker_program(handler), filled.url, str(tmp_path / "done"), str(DRAIN_S)
    ) as running:
        running.send(signal.SIGTERM)
        assert running.end() == 128 + signal.SIGTERM, running.errors
    assert DRAIN_S < running.took_s < DRAIN_S + 2 + SLACK_S
    assert "worker 'orders/billing' has not ended" in running.errors
    assert "in handler" in running.errors, "the stack"


def test_a_process_whose_handlers_ignore_their_cancellation_is_gone_after_the_budget(
    filled: BrokerThread, tmp_path: Path
) -> None:
    handler = """
async def handler(value):
    begin()
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass
"""
    with program(
        worker_program(handler), filled.url, str(tmp_path / "done"), str(DRAIN_S)
    ) as running:
        running.send(signal.SIGTERM)
        running.end()
    assert running.took_s < DRAIN_S + 2 + SLACK_S
    assert "ignores its cancellation" in running.errors


def test_a_plain_function_that_sleeps_does_not_keep_the_process(
    filled: BrokerThread, tmp_path: Path
) -> None:
    handler = """
def handler(value):
    begin()
    time.sleep(1000)
"""
    with program(
        worker_program(handler), filled.url, str(tmp_path / "done"), str(DRAIN_S)
    ) as running:
        running.send(signal.SIGTERM)
        assert running.end() == 0, running.errors
    assert running.took_s < DRAIN_S + 2 + SLACK_S


def test_a_process_whose_broker_is_away_is_gone_within_the_budget(
    filled: BrokerThread, tmp_path: Path
) -> None:
    with program(
        worker_program(ORDINARY), filled.url, str(tmp_path / "done"), str(DRAIN_S)
    ) as running:
        filled.outage()
        running.send(signal.SIGTERM)
        running.end()
    assert running.took_s < DRAIN_S + 3.5, running.errors  # a close may wait 5 s for the broker
