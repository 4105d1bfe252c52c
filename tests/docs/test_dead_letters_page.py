"""The commands and programs of `docs/dead-letters.md` run, on a development broker."""

from __future__ import annotations

import asyncio
import io
import re
import shlex
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import cli, letters
from pulsar_encore.deadletters import DeadLetters, LetterGroup
from pulsar_encore.devbroker import BrokerSettings, BrokerThread, run_in_thread
from tests.harness.pages import blocks_of, run_block, text_of

PAGE = text_of("dead-letters.md")
DISCARD, FROM_PYTHON = blocks_of("dead-letters.md")
COMMANDS = [
    line.partition("#")[0].strip()
    for block in blocks_of("dead-letters.md", "sh")
    for line in block.code.splitlines()
    if line.startswith("pulsar-encore ")
]
FINGERPRINT = "4f0c9a2b71de"  # of the group that the page shows
DEAD = "orders-billing-DLQ"
TIMEOUTS = 3


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerThread]:
    with run_in_thread(BrokerSettings(keep_acked=True)) as running:
        monkeypatch.setenv("PULSAR_URL", running.url)
        yield running


@pytest.fixture
async def client(broker: BrokerThread) -> AsyncIterator[encore.Client]:
    async with encore.Client(broker.url) as client:
        yield client


@pytest.fixture
async def groups(client: encore.Client) -> list[LetterGroup]:
    """Letters of two failures, and their groups: three timeouts and one KeyError."""
    policy = encore.DeadLetterPolicy(1, initial_subscription_name="encore-replay")
    async with (
        client.subscribe(
            "orders", "billing", encore.ConsumerType.Shared, dead_letter_policy=policy
        ) as consumer,
        client.create_producer("orders") as producer,
    ):
        await asyncio.gather(
            *(
                producer.send(b'{"order": %d}' % each, {"region": "eu"}, partition_key="c7")
                for each in range(TIMEOUTS + 1)
            )
        )
        for each in range(TIMEOUTS + 1):
            message = await consumer.receive(timeout=10)
            try:
                raise TimeoutError("gateway took 5 s") if each else KeyError("price of 17")
            except (TimeoutError, KeyError) as error:
                await consumer.reject(message, error)
        while consumer.counters().dead_letters < TIMEOUTS + 1:
            await asyncio.sleep(0.01)
    return await DeadLetters(client, DEAD).list()


async def run_command(line: str, group: LetterGroup) -> tuple[int, str, str]:
    """Run a command of the page on a group of letters. Return its code, output and errors."""
    words = shlex.split(line.replace(FINGERPRINT, group.fingerprint))[1:]
    out, problems = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(problems):
        code = await asyncio.wait_for(asyncio.to_thread(cli.main, words), 30)
    return code, out.getvalue(), problems.getvalue()


@pytest.mark.parametrize("line", COMMANDS)
async def test_a_command_of_the_page_runs(
    line: str, broker: BrokerThread, groups: list[LetterGroup]
) -> None:
    code, out, problems = await run_command(line, groups[0])
    assert (code, bool(out)) == (0, True), problems
    sent = {"--dry-run": TIMEOUTS, "--limit 1": 1, "--all": TIMEOUTS + 1}
    expected = next((sent[each] for each in sent if each in line), TIMEOUTS)
    if " replay " in line:
        verb = "would be sent" if "--dry-run" in line else "sent and acked"
        assert f"{expected} letters {verb}" in out


async def test_the_letter_on_the_page_is_printed_like_this(
    broker: BrokerThread, groups: list[LetterGroup]
) -> None:
    (shown,) = blocks_of("dead-letters.md", "text")
    _, out, _ = await run_command(f"pulsar-encore dlq show {DEAD} {FINGERPRINT}", groups[0])
    printed = [_label(line) for line in out.splitlines()]
    labels = [_label(line) for line in shown.code.splitlines() if line.strip() != "..."]
    assert [each for each in printed if each in labels] == labels


def _label(line: str) -> str:
    """Return the constant part of a line: a name, or the whole of another line."""
    return re.split(r"  +(?=\S)(?<!^)| = | \d", line.strip())[0]


async def test_a_second_replay_sends_nothing_and_ls_lists_the_letters_still(
    broker: BrokerThread, groups: list[LetterGroup]
) -> None:
    line = f"pulsar-encore dlq replay {DEAD} --fingerprint {FINGERPRINT}"
    assert (await run_command(line, groups[0]))[0] == 0
    code, _, problems = await run_command(line, groups[0])
    assert (code, "all of them were replayed" in problems) == (2, True)
    code, out, _ = await run_command(f"{line} --dry-run", groups[0])
    assert (code, f"{TIMEOUTS} letters would be sent" in out) == (0, True)
    code, out, _ = await run_command(f"pulsar-encore dlq ls {DEAD}", groups[0])
    assert (code, groups[0].fingerprint in out) == (0, True)


async def test_the_exit_codes_of_the_page(
    client: encore.Client, broker: BrokerThread, groups: list[LetterGroup]
) -> None:
    async with client.create_producer("payroll-billing-DLQ") as producer:
        forged = {letters.REAL_TOPIC: "salaries", letters.REAL_SUBSCRIPTION: "billing"}
        await producer.send(b"", forged)
    cases = {
        f"dlq ls {DEAD}": 0,
        "dlq replay payroll-billing-DLQ --all": 1,
        f"dlq replay {DEAD}": 2,
        f"dlq show {DEAD} 000000000000": 2,
        "dlq ls nothing-billing-DLQ": 3,
        "dlq replay orders --all": 3,  # its messages are no letters
    }
    commands = text_of("command-line.md")
    listed = {int(code) for code in re.findall(r"^\| (\d)(?: \|)", commands, flags=re.MULTILINE)}
    assert listed == {*cases.values()}
    for words, expected in cases.items():
        code, _, problems = await run_command(f"pulsar-encore {words}", groups[0])
        assert code == expected, problems


async def test_the_python_program_replays_one_group(
    client: encore.Client, groups: list[LetterGroup], capsys: pytest.CaptureFixture[str]
) -> None:
    code = FROM_PYTHON.code.replace(FINGERPRINT, groups[0].fingerprint)
    block = replace(FROM_PYTHON, code=code)
    names: dict[str, Any] = {"client": client, "time": time}
    await run_block(block, names)
    assert names["report"].replayed == TIMEOUTS
    assert names["report"].replay_id == "after-the-outage"
    assert capsys.readouterr().out.splitlines()[-1] == f"{TIMEOUTS} 1 []"


async def test_the_program_for_discards_acks_the_letters_of_one_error(
    client: encore.Client, groups: list[LetterGroup]
) -> None:
    [keys] = [each for each in groups if each.error_class == "KeyError"]
    block = replace(DISCARD, code=DISCARD.code.replace(FINGERPRINT, keys.fingerprint))
    await run_block(block, {"client": client})
    report = await DeadLetters(client, DEAD).replay()
    assert (report.replayed, report.targets) == (
        TIMEOUTS,
        {"persistent://public/default/orders": TIMEOUTS},
    )


def test_the_page_names_every_property_of_a_letter() -> None:
    section = PAGE.partition("## Properties of a letter")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([A-Z][A-Z_]+)`", section))
    assert named == letters.RESERVED - letters.PARKED


async def test_the_names_of_dead_letter_topics(client: encore.Client, broker: BrokerThread) -> None:
    broker.create_partitioned_topic("parts", 2)
    broker.create_topic("a")
    policy = encore.DeadLetterPolicy(1, initial_subscription_name="encore-replay")
    shared, prefix = encore.ConsumerType.Shared, "persistent://public/default/"

    async def names(topics: str | list[str], **options: Any) -> list[str]:
        async with client.subscribe(
            topics, "s", shared, dead_letter_policy=policy, **options
        ) as consumer:
            made = await consumer.create_letter_subscriptions()
            return [each.removeprefix(prefix) for each in made]

    assert await names("parts") == ["parts-partition-0-s-DLQ", "parts-partition-1-s-DLQ"]
    assert await names(["parts", "a"], retry_enable=True) == ["a-s-DLQ"]

    async def handle(value: bytes) -> None: ...

    async with encore.Worker(client, ["parts", "a"], "s", handle) as worker:
        while worker.health().state == "starting":
            await asyncio.sleep(0.01)
        made = await worker.consumer.create_letter_subscriptions()
    assert [each.removeprefix(prefix) for each in made] == ["a-s-DLQ", "parts-s-DLQ"]
