"""`pulsar-encore state` shows and moves the content of a directory, and an error is one line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import pulsar_encore as encore
from pulsar_encore import cli
from pulsar_encore.devbroker import BrokerSettings, BrokerThread, run_in_thread
from pulsar_encore.state.rocks import RocksStore

ORDERS = "persistent://public/default/orders"
REFUNDS = "persistent://public/default/refunds-partition-2"
DUE_MS = 1_800_000_000_000  # 2027-01-15T08:00:00Z


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Create a state with two waiting messages of a batch and one of a partition."""
    path = tmp_path / "state"
    store = RocksStore(path, wall_now_ms=1_000)
    orders = store.topic_store(ORDERS, "billing")
    orders.records.record_nack((7, 5, 0), DUE_MS, 3, 1_000, size=2)
    orders.records.record_nack((7, 5, 1), DUE_MS + 1_000, 1, 1_000, size=2)
    refunds = store.topic_store(REFUNDS, "audit", "a")
    refunds.records.record_nack((8, 0, -1), DUE_MS - 1_000, 1, 1_000)
    store.close()
    return path


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with run_in_thread(BrokerSettings()) as running:
        yield running


def run_command(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = cli.main(["state", *map(str, words)])
    out, problems = capsys.readouterr()
    return code, out, problems


# inspect


def test_inspect_reports_the_owner_and_the_waiting_messages(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, problems = run_command(capsys, "inspect", state)
    assert (code, problems) == (0, "")
    assert f"none; the last was process {os.getpid()} on " in out
    span = "2027-01-15T08:00:00+00:00 to 2027-01-15T08:00:01+00:00"
    assert f"{ORDERS}  billing\n  2 waiting, due {span}\n" in out
    assert "  1 records; messages by attempts: 1: 1, 3: 1\n" in out


def test_inspect_works_as_json_and_beside_a_live_owner(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RocksStore(state, wall_now_ms=2_000)
    try:
        code, out, _ = run_command(capsys, "inspect", state, "--json")
    finally:
        store.close()
    found = json.loads(out)
    assert (code, found["waiting"], found["records"], found["unreadable"]) == (0, 3, 2, 0)
    assert found["owner"]["pid"] == os.getpid()
    assert (found["owner"]["closed"], found["owner"]["since_ms"]) == (False, 2_000)
    orders, refunds = found["topics"]
    assert orders["attempts"] == {"1": 1, "3": 1}
    assert (refunds["topic"], refunds["consumer"], refunds["waiting"]) == (REFUNDS, "a", 1)
    assert refunds["earliest_ms"] == refunds["latest_ms"] == DUE_MS - 1_000


# export


def test_export_writes_a_line_for_each_message_in_order_of_due_times(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, problems = run_command(capsys, "export", state)
    assert (code, problems) == (0, "")
    first, second, third = map(json.loads, out.splitlines())
    assert first == {
        "topic": REFUNDS,
        "subscription": "audit",
        "consumer": "a",
        "message_id": "8:0:2",
        "due": "2027-01-15T07:59:59.000+00:00",
        "attempts": 1,
    }
    assert (second["message_id"], second["attempts"]) == ("7:5:-1:0", 3)
    assert (third["message_id"], third["due"]) == ("7:5:-1:1", "2027-01-15T08:00:01.000+00:00")


def test_export_can_select_one_topic_or_subscription(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run_command(capsys, "export", state, "--topic", "refunds")
    assert [json.loads(line)["topic"] for line in out.splitlines()] == [REFUNDS]
    _, out, _ = run_command(capsys, "export", state, "--subscription", "billing")
    assert [json.loads(line)["topic"] for line in out.splitlines()] == [ORDERS, ORDERS]


# Errors


@pytest.mark.parametrize("command", ["inspect", "export", "evacuate"])
def test_an_unusable_directory_is_a_one_line_error(
    command: str, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = tmp_path / "nothing"
    code, out, problems = run_command(capsys, command, nothing)
    assert (code, out, problems.count("\n")) == (2, "", 1)
    assert problems.startswith("pulsar-encore: there is no state in ")
    assert not nothing.exists()
    for file in (state / "db").glob("MANIFEST-*"):
        file.write_bytes(b"\xff" * 100)
    code, out, problems = run_command(capsys, command, state)
    assert (code, out, problems.count("\n")) == (2, "", 1), problems


@pytest.mark.parametrize("command", ["export", "evacuate"])
def test_the_error_for_an_unknown_topic_or_subscription_lists_the_known_ones(
    command: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, problems = run_command(capsys, command, state, "--topic", "returns")
    assert (code, out) == (2, "")
    assert f"'persistent://public/default/returns'; it has {ORDERS}, " in problems
    code, _, problems = run_command(capsys, command, state, "--subscription", "x")
    assert (code, problems.count("\n")) == (2, 1)
    assert "'x'; it has audit, billing" in problems


def test_without_a_broker_the_state_does_not_change(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, problems = run_command(capsys, "evacuate", state, "--url", "pulsar://127.0.0.1:1")
    assert (code, out, problems.count("\n")) == (2, "", 1)
    assert "nobody listens there" in problems
    assert json.loads(run_command(capsys, "inspect", state, "--json")[1])["waiting"] == 3


def test_the_error_for_a_live_owner_names_it(
    state: Path, broker: BrokerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RocksStore(state, wall_now_ms=2_000)
    try:
        ran = _run("evacuate", state, "--url", broker.url)
    finally:
        store.close()
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert f"belongs to process {os.getpid()} on " in ran.stderr


# evacuate


def test_a_dry_run_contacts_no_broker_and_moves_nothing(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("evacuate", state, "--dry-run", "--url", "pulsar://127.0.0.1:1")
    code, out, _ = run_command(capsys, *words)
    assert code == 0 and out.startswith("3 messages would be moved\n")
    assert f"    to {ORDERS}-billing-RETRY\n" in out
    found = json.loads(run_command(capsys, *words, "--json", "--retry-topic", "late")[1])
    assert found["waiting"] == 3
    assert {each["retry_topic"] for each in found["topics"]} == {"persistent://public/default/late"}


def test_evacuate_moves_existing_messages_and_reports_missing_ones(
    state: Path, broker: BrokerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(_nack_messages(broker.url, state, 5))
    code, out, problems = run_command(capsys, "evacuate", state, "--url", broker.url)
    assert (code, problems) == (1, ""), out
    assert out.startswith("5 of 8 messages moved, 1 left\n")
    assert f"  5 to {ORDERS}-billing-RETRY\n" in out
    assert "2 messages are no longer in their topic" in out and "7:5:-1:0, 7:5:-1:1 of" in out
    assert "1 messages cannot be moved and stay" in out and "--forget-missing" in out
    code, out, _ = run_command(capsys, "evacuate", state, "--url", broker.url, "--forget-missing")
    assert code == 0 and "1 messages are no longer in their topic" in out
    code, out, _ = run_command(capsys, "evacuate", state, "--url", broker.url, "--json")
    assert code == 0 and json.loads(out)["waiting"] == json.loads(out)["moved"] == 0


def test_messages_that_cannot_be_moved_stay_and_set_exit_code_1(
    tmp_path: Path, broker: BrokerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    async def in_use() -> tuple[int, str]:
        await _nack_messages(broker.url, tmp_path, 5)
        async with encore.Client(broker.url) as client:
            await client.subscribe("orders", "billing")
            ran = await asyncio.to_thread(_run, "evacuate", tmp_path, "--url", broker.url, "--json")
            return ran.returncode, ran.stdout

    code, out = asyncio.run(in_use())
    report = json.loads(out)
    assert (code, report["moved"], report["refused"], report["left"]) == (1, 0, 5, 5)
    assert all("is in use" in reason for reason in report["reasons"])


def test_an_interrupted_evacuation_says_so_and_loses_nothing(
    tmp_path: Path, broker: BrokerThread
) -> None:
    asyncio.run(_nack_messages(broker.url, tmp_path, 3_000))
    with subprocess.Popen(
        _command("evacuate", tmp_path, "--url", broker.url, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background processes ignore Ctrl-C, and their children inherit this.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        retry = f"{ORDERS}-billing-RETRY"
        while broker.call(lambda running: _length(running, retry)) < 100:
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        out, problems = process.communicate(timeout=60)
    assert process.returncode == 130, problems
    report = json.loads(out)
    assert 100 <= report["moved"] < 3_000
    assert problems.startswith(f"interrupted: {report['moved']} messages were moved, ")
    ran = _run("evacuate", tmp_path, "--url", broker.url, "--json")
    assert (ran.returncode, json.loads(ran.stdout)["moved"]) == (0, 3_000 - report["moved"])
    assert broker.call(lambda running: _length(running, retry)) == 3_000


def _length(running: object, topic: str) -> int:
    topics = running.service.catalogue.topics  # type: ignore[attr-defined]
    return topics[topic].log.end if topic in topics else 0


def _command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "pulsar_encore", "state", *map(str, words)]


def _run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_command(*words), capture_output=True, text=True, timeout=60)


async def _nack_messages(url: str, path: Path, count: int) -> None:
    """Nack messages on a host with a state directory, and stop the host."""
    async with encore.Client(url) as client:
        consumer = await client.subscribe(
            "orders",
            "billing",
            encore.ConsumerType.Shared,
            negative_ack_redelivery_delay_ms=3_600_000,
            state=encore.RocksState(path),
        )
        producer = await client.create_producer("orders", block_if_queue_full=True)
        await asyncio.gather(*(producer.send(b"%d" % each) for each in range(count)))
        for _ in range(count):
            await consumer.negative_acknowledge(await consumer.receive(timeout=30))
        await consumer.close()
