"""The commands that `docs/command-line.md` shows run, and print the shown lines."""

from __future__ import annotations

import asyncio
import io
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import cli
from tests.harness.pages import blocks_of

from .conftest import OwnPulsar

# looptime's plugin requests a loop before every synchronous test; see the suite's fixtures.
asyncio.set_event_loop(None)

_NORMAL = (
    (r"\d{4}-\d\d-\d\dT[\d:.]+(?:\+00:00|Z)", "TIME"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\d+:\d+:-1", "ID"),
    (r"\d:\d\d:\d\d\b", "AGE"),
    (r"\(\d+,\d+\)", "TXN"),
    (r"\b\d+:\d+\b", "POSITION"),
    (r"\b[0-9a-f]{12}\b", "HASH"),
    (r"[ ─]+", " "),
)


def normal(text: str) -> list[str]:
    for pattern, word in _NORMAL:
        text = re.sub(pattern, word, text)
    return [line.strip() for line in text.splitlines()]


async def run_command(line: str) -> str:
    out, problems = io.StringIO(), io.StringIO()
    words = shlex.split(line.removeprefix("$ pulsar-encore "))
    with redirect_stdout(out), redirect_stderr(problems):
        await asyncio.wait_for(asyncio.to_thread(cli.main, words), 60)
    assert not problems.getvalue(), problems.getvalue()
    return out.getvalue()


async def until_printed(line: str, text: str, *, but: str = "no such text") -> None:
    """Repeat a command until the letters are stored and the acks have arrived."""
    for _ in range(100):
        printed = await run_command(line)
        if text in printed and but not in printed:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(printed)


async def prepare(consumer: encore.Consumer, producer: encore.Producer) -> dict[str, Any]:
    """Leave one message for each state, and return the ids as the page names them."""
    for number in range(4):
        await producer.send(
            b'{"total": %d}' % number, partition_key=f"c{number}", properties={"shop": "north"}
        )
    found = [await consumer.receive(timeout=10) for _ in range(4)]
    await consumer.reconsume_later(found[0], delay=600, error=KeyError("EUR"))
    await consumer.acknowledge(found[1])
    await consumer.reject(found[3], "no such currency")
    ids = [str(each.message_id()) for each in found]
    return {"4612:0:-1": ids[0], "4612:2:-1": ids[2], "4612:3:-1": ids[3]}


async def test_the_commands_print_the_shown_lines(
    own_pulsar: OwnPulsar, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The shared broker has no transactions, which `txn` needs.
    pulsar = await asyncio.to_thread(own_pulsar, transactionCoordinatorEnabled=True)
    monkeypatch.setenv("PULSAR_URL", pulsar.service_url)
    monkeypatch.setenv("PULSAR_ADMIN_URL", pulsar.admin_url)
    name = topic.rpartition("/")[2]
    async with encore.Client(pulsar.service_url) as client:
        consumer = await client.subscribe(
            name,
            "billing",
            encore.ConsumerType.Shared,
            consumer_name="billing-0",
            retry_enable=True,
            dead_letter_policy=encore.DeadLetterPolicy(3),
        )
        producer = await client.create_producer(name, batching_enabled=False)
        ids = await prepare(consumer, producer)
        for shown, state in (("4612:0:-1", "retry_letter"), ("4612:3:-1", "dead_letter")):
            command = f"explain {ids[shown]} --topic {name} --subscription billing"
            await until_printed(command, state, but="the original is not acked")
        await until_printed(f"lag {name} billing", "1 message,")
        txn = await client.transaction(timeout=120)
        async with client.create_producer(f"{name}-invoices") as invoices:
            await invoices.send(b"1", txn=txn)
        ids["0:48"] = f"{txn.id.most}:{txn.id.least}"
        for block in blocks_of("command-line.md", "console"):
            line, _, expected = block.code.partition("\n")
            command = re.sub(r"\borders\b", name, line)
            for shown, real in ids.items():
                command = command.replace(shown, real)
            printed = normal((await run_command(command)).replace(name, "orders"))
            missing = [each for each in normal(expected) if each not in printed and each != "..."]
            assert not missing, (line, printed)
