"""The commands, and killed replays, on a development broker with the stock transport."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from letters_kit import DEAD, HOME, QUIET, bodies, publish_on, read_from, write_letters_on

import pulsar_encore as encore
from pulsar_encore import cli, letters
from pulsar_encore.cli import dlq
from pulsar_encore.cli.demo import poison_message
from pulsar_encore.cli.demo.measurement import measure
from pulsar_encore.cli.demo.scenario import SIDES, row_of
from pulsar_encore.deadletters import DeadLetters, Selection
from pulsar_encore.devbroker import BrokerSettings, BrokerThread, run_in_thread

LETTERS = 300
RATE = 200
MAX_DUPLICATES = 64  # in flight, plus acks of the last 0.1 s


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with run_in_thread(BrokerSettings(keep_acked=True)) as running:
        yield running


async def start_command(
    broker: BrokerThread,
    *words: str,
    stdin: int | None = None,
    stderr: int = asyncio.subprocess.PIPE,
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pulsar_encore.cli", "dlq", *words, "--url", broker.url),
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        # A shell's background processes ignore Ctrl-C, and their children inherit this.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


@asynccontextmanager
async def at_terminal(
    broker: BrokerThread, *words: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """Start a command whose stdin and stderr are a terminal; the int is the user's side."""
    there, here = os.openpty()
    try:
        process = await start_command(broker, *words, stdin=here, stderr=here)
        os.close(here)
        try:
            yield process, there
        finally:
            if process.returncode is None:
                process.kill()
    finally:
        os.close(there)


async def question_at(there: int) -> bytes:
    """Return what a terminal shows up to the question of a command."""
    asked = b""
    while b"[y/N]" not in asked:
        asked += await asyncio.wait_for(asyncio.to_thread(os.read, there, 4096), 20)
    return asked


async def run_command(broker: BrokerThread, *words: str) -> tuple[int | None, str, str]:
    """Run a command to its end in a thread: a process for each would import everything anew."""
    out, problems = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(problems):
        running = asyncio.to_thread(cli.main, ["dlq", *words, "--url", broker.url])
        code = await asyncio.wait_for(running, 30)
    return code, out.getvalue(), problems.getvalue()


def replayed_count(broker: BrokerThread) -> int:
    return broker.call(lambda running: running.service.catalogue.topic(HOME).log.end)


async def interrupt_after(broker: BrokerThread, count: int, kind: signal.Signals) -> int | None:
    """Run a replay, and send a signal after this number of replayed letters."""
    process = await start_command(
        broker, "replay", DEAD, "--all", "--rate", str(RATE), "--replay-id", "r"
    )
    while replayed_count(broker) < count and process.returncode is None:
        await asyncio.sleep(0.01)
    process.send_signal(kind)
    await asyncio.wait_for(process.communicate(), 30)
    return process.returncode


async def test_a_killed_replay_continues_where_it_stopped(broker: BrokerThread) -> None:
    sent = [b"%05d" % number for number in range(LETTERS)]
    await write_letters_on(broker.url, sent)
    broker.create_topic(HOME)
    for count in (40, 130):
        assert await interrupt_after(broker, count, signal.SIGKILL) == -signal.SIGKILL
        assert count <= replayed_count(broker) < LETTERS
    code, out, problems = await run_command(broker, "replay", DEAD, "--all", "--replay-id", "r")
    assert code == 0, problems
    assert "sent and acked" in out
    home = await read_from(broker.url)
    counted = Counter(bodies(home))
    assert set(counted) == set(sent)
    # Delivery is at least once: a letter can be stored without its ack. At this rate few are in
    # flight.
    assert len(home) - LETTERS <= 2 * MAX_DUPLICATES
    marks = {(each.data(), each.properties()[letters.REPLAYED_FROM]) for each in home}
    assert len(marks) == LETTERS
    assert {each.properties()[letters.REPLAY_ID] for each in home} == {"r"}


async def test_an_interrupted_replay_sends_nothing_twice(broker: BrokerThread) -> None:
    sent = [b"%05d" % number for number in range(LETTERS)]
    await write_letters_on(broker.url, sent)
    broker.create_topic(HOME)
    assert await interrupt_after(broker, 50, signal.SIGINT) == 130
    before = replayed_count(broker)
    assert 50 <= before < LETTERS
    code, out, _ = await run_command(broker, "replay", DEAD, "--all")
    assert (code, out.split()[0]) == (0, str(LETTERS - before))
    assert sorted(bodies(await read_from(broker.url))) == sent


async def test_an_interrupted_replay_reports_that_it_waits_for_an_unreachable_broker() -> None:
    with run_in_thread(BrokerSettings(keep_acked=True)) as broker:
        await write_letters_on(broker.url, [b"%05d" % number for number in range(LETTERS)])
        broker.create_topic(HOME)
        process = await start_command(broker, "replay", DEAD, "--all", "--rate", str(RATE))
        while replayed_count(broker) < 20:
            await asyncio.sleep(0.01)
    try:
        await asyncio.sleep(0.2)  # letters that no broker accepts
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        line = await asyncio.wait_for(process.stderr.readline(), 10)
        assert line.startswith(b"interrupted: waiting for letters in flight")
    finally:
        process.kill()
        await process.communicate()


async def test_a_lost_connection_loses_nothing_and_sends_no_letter_twice(
    broker: BrokerThread,
) -> None:
    expected = [b"w%04d" % number for number in range(150)]
    await write_letters_on(broker.url, [b"kept"] * 30, fingerprint="bbbbbbbbbbbb")
    await write_letters_on(broker.url, expected)
    async with encore.Client(broker.url, transport="stock", logger=QUIET) as client:
        dead = DeadLetters(client, DEAD)
        only = Selection(fingerprints=["aaaaaaaaaaaa"])
        work = asyncio.ensure_future(dead.replay(only, rate=150))
        for _ in range(2):
            await asyncio.sleep(0.4)
            assert broker.drop_connections()
        report = await work
        assert (report.selected, report.replayed) == (150, 150)
        assert set(bodies(await read_from(broker.url))) == set(expected)
        assert (await dead.replay()).replayed == 30


async def test_the_brokers_unacked_window_does_not_stop_a_replay() -> None:
    """Skipped letters stay unacked. On an Exclusive subscription they do not count for a window."""
    with run_in_thread(BrokerSettings(max_unacked_per_consumer=20)) as broker:
        await write_letters_on(broker.url, [b"passed by"] * 100, fingerprint="bbbbbbbbbbbb")
        await write_letters_on(broker.url, [b"wanted"] * 3)
        async with encore.Client(broker.url, transport="stock", logger=QUIET) as client:
            only = Selection(fingerprints=["aaaaaaaaaaaa"])
            report = await DeadLetters(client, DEAD).replay(only)
        assert (report.replayed, report.passed) == (3, 100)


async def test_letters_are_listed_and_shown_without_control_characters(
    broker: BrokerThread,
) -> None:
    evil = {letters.ERROR_MESSAGE: "\x1b[2Jgone\u202e", "na\x07me": "a\nforged = line"}
    await write_letters_on(broker.url, [b"\x1b]0;title\x07 text"], **evil)
    await write_letters_on(broker.url, [b"\xff\x00\x01"], fingerprint=None, real_topic=None)
    code, table, _ = await run_command(broker, "ls", DEAD)
    assert code == 0
    code, listed, _ = await run_command(broker, "ls", DEAD, "--json")
    assert code == 0
    groups = json.loads(listed)
    assert {group["count"] for group in groups} == {1}
    samples = {group["fingerprint"]: group["sample_id"] for group in groups}
    code, shown, _ = await run_command(broker, "show", DEAD, samples["aaaaaaaaaaaa"])
    assert code == 0
    for text in (table, listed, shown):
        assert not set(text) & set("\x1b\x07\x7f\u202e")
    assert "\\x1b[2Jgone\\u202e" in shown
    assert "\\x1b]0;title\\x07 text" in shown
    assert "na\\x07me = a\\x0aforged = line" in shown
    code, shown, _ = await run_command(broker, "show", DEAD, "-")
    assert (code, "ff 00 01" in shown) == (0, True)
    words = ("--dry-run", "--fingerprint", "-", "--fingerprint", "aaaaaaaaaaaa")
    code, out, problems = await run_command(broker, "replay", DEAD, *words)
    assert (code, problems) == (1, "")
    assert "1 letters would be sent" in out
    assert "no REAL_TOPIC" in out


ELSEWHERE = "persistent://public/default/payroll"


async def test_without_a_terminal_there_is_no_question_and_letters_go_only_to_a_named_topic(
    broker: BrokerThread,
) -> None:
    """The publisher wrote REAL_TOPIC, so an operator has to name the topic as well."""
    await write_letters_on(broker.url, [b"1"])
    await write_letters_on(broker.url, [b"2"], real_topic=ELSEWHERE)
    code, out, _ = await run_command(broker, "replay", DEAD, "--all")
    assert code == 1
    assert "1 letters sent and acked" in out
    assert "named after" in out
    assert "--real-topic" in out
    code, out, _ = await run_command(broker, "replay", DEAD, "--real-topic", "payroll")
    assert (code, f"1 to {ELSEWHERE}" in out) == (0, True)


@pytest.mark.parametrize(("answer", "sent"), [("yes", 2), ("no", 1), ("", 1)])
async def test_the_command_asks_for_confirmation_at_a_terminal(
    broker: BrokerThread, answer: str, sent: int
) -> None:
    await write_letters_on(broker.url, [b"1"])
    await write_letters_on(broker.url, [b"2"], real_topic=ELSEWHERE)
    async with at_terminal(broker, "replay", DEAD, "--all") as (process, there):
        asked = await question_at(there)
        assert f"1 to {ELSEWHERE}".encode() in asked
        os.write(there, f"{answer}\n".encode())
        out, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == (0 if sent == 2 else 1)
    assert f"{sent} letters sent and acked" in out.decode()
    assert bodies(await read_from(broker.url, ELSEWHERE)) == [b"2"][: sent - 1]


@pytest.mark.parametrize(("answer", "limit", "left"), [("y", None, 3), ("y", 2, 5), ("n", None, 7)])
async def test_discard_takes_only_the_letters_that_it_showed(
    broker: BrokerThread, answer: str, limit: int | None, left: int
) -> None:
    """Letters are written while the user reads the question."""
    await write_letters_on(broker.url, [b"%d" % number for number in range(4)])
    options = () if limit is None else ("--limit", str(limit))
    async with at_terminal(broker, "discard", DEAD, "--all", *options) as (process, there):
        asked = await question_at(there)
        assert b"4 with fingerprint" in asked
        assert (b"the first 2 that are left of" in asked) == (limit == 2)
        await write_letters_on(broker.url, [b"%d" % number for number in range(4, 7)])
        os.write(there, f"{answer}\n".encode())
        out, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == (0 if answer == "y" else 1)
    if answer == "y":
        assert out.startswith(b"%d letters discarded" % (7 - left))
        assert b"no letter" not in out
    _, out_again, _ = await run_command(broker, "discard", DEAD, "--all", "--yes")
    assert out_again.startswith(f"{left} letters discarded, 0 not selected")


async def test_discard_without_a_terminal_needs_a_yes(broker: BrokerThread) -> None:
    await write_letters_on(broker.url, [b"1"])
    code, out, problems = await run_command(broker, "discard", DEAD, "--all")
    assert (code, out) == (2, "")
    assert "--yes" in problems and "--dry-run" in problems
    code, out, _ = await run_command(broker, "discard", DEAD, "--all", "--dry-run")
    assert (code, out.startswith("1 letters would be discarded")) == (0, True)
    code, out, _ = await run_command(broker, "discard", DEAD, "--all", "--yes")
    assert (code, out.startswith("1 letters discarded")) == (0, True)


async def test_a_topic_of_replayed_messages_is_refused_without_a_question(
    broker: BrokerThread,
) -> None:
    await write_letters_on(broker.url, [b"1"])
    assert (await run_command(broker, "replay", DEAD, "--all"))[0] == 0
    async with at_terminal(broker, "replay", HOME, "--all") as (process, there):
        await asyncio.wait_for(process.communicate(), 30)
        said = os.read(there, 4096)
    assert process.returncode == 3
    assert b"none of the 1 messages" in said and b"[y/N]" not in said
    home = broker.call(lambda running: running.service.catalogue.topic(HOME))
    assert not home.subscriptions


async def test_an_interrupt_counts_as_no(broker: BrokerThread) -> None:
    await write_letters_on(broker.url, [b"2"], real_topic=ELSEWHERE)
    async with at_terminal(broker, "replay", DEAD, "--all") as (process, there):
        await question_at(there)
        process.send_signal(signal.SIGINT)
        out, _ = await asyncio.wait_for(process.communicate(), 10)
    assert (process.returncode, out) == (130, b"")
    assert ELSEWHERE not in broker.call(lambda running: dict(running.service.catalogue.topics))


NOTHING = object()  # no document
NO_REPLAY = {
    "replay_id": "r",
    "dry_run": False,
    "selected": 0,
    "replayed": 0,
    "passed": 0,
    "targets": {},
    "refused": 0,
    "refusals": [],
    "reasons": {},
    "reached_end": True,
    "at_limit": False,
    "missing": ["1:2:-1"],
    "doubtful": 0,
}
#: Commands, with the JSON document that they print for a topic without letters.
DISPLAYS: tuple[tuple[tuple[str, ...], Any], ...] = (
    (("ls",), NOTHING),
    (("ls", "--json"), []),
    (("show", "1:2"), NOTHING),
    (("show", "-", "--json"), None),
    (("show", "1:2", "--json"), None),
    (("replay", "--id", "1:2", "--replay-id", "r", "--json"), NO_REPLAY),
    (("replay", "--all", "--dry-run"), NOTHING),
)


def document(out: str) -> Any:
    return json.loads(out) if out else NOTHING


@pytest.mark.parametrize("partitions", [0, 3])
async def test_listing_does_not_create_a_topic(partitions: int) -> None:
    """The broker creates every requested topic."""
    with run_in_thread(BrokerSettings(auto_create_partitions=partitions)) as broker:
        for words, printed in DISPLAYS:
            code, out, problems = await run_command(broker, words[0], "orders-DLO", *words[1:])
            assert (code, document(out)) == (3, printed)
            assert "there is no dead-letter topic" in problems
            assert "orders-DLO: check the name" in problems
            assert problems.count("\n") == 1
        assert not broker.call(lambda running: dict(running.service.catalogue.topics))
        assert not broker.call(lambda running: dict(running.service.catalogue.partitioned))


async def test_a_topic_without_letters_is_named_and_gets_no_subscription(
    broker: BrokerThread,
) -> None:
    broker.create_topic("orders-DLO")
    for words, printed in DISPLAYS:
        code, out, problems = await run_command(broker, words[0], "orders-DLO", *words[1:])
        assert (code, document(out)) == (3, printed)
        assert "orders-DLO holds no letters: check the name" in problems
    await publish_on(broker.url, HOME, [b"1", b"2"])
    for dry in ((), ("--dry-run",)):
        code, out, problems = await run_command(broker, "replay", HOME, "--all", *dry)
        assert (code, out) == (3, "")
        assert problems.count("\n") == 1
        assert "none of the 2 messages" in problems
        assert "is this the dead-letter topic?" in problems
    await write_letters_on(broker.url, [b"1"])
    code, out, _ = await run_command(broker, "replay", DEAD, "--all", "--dry-run")
    assert (code, out.startswith("1 letters would be sent")) == (0, True)
    topics = broker.call(lambda running: dict(running.service.catalogue.topics))
    assert not [
        (name, topic.subscriptions) for name, topic in topics.items() if topic.subscriptions
    ]
    code, _, problems = await run_command(broker, "ls", DEAD, "--fingerprint", "bbbbbbbbbbbb")
    assert (code, "none of the letters" in problems) == (0, True)


async def test_the_error_names_a_missing_topic_on_a_broker_without_creation() -> None:
    with run_in_thread(BrokerSettings(auto_create=False)) as broker:
        for words in (("ls",), ("show", "1:2"), ("replay", "--all")):
            code, out, problems = await run_command(broker, words[0], "orders-DLO", *words[1:])
            assert (code, out) == (3, "")
            assert "there is no dead-letter topic" in problems
        assert not broker.call(lambda running: list(running.service.catalogue.topics))


async def test_a_replay_reports_where_it_stopped_which_letters_failed_and_why(
    broker: BrokerThread,
) -> None:
    await write_letters_on(broker.url, [b"1", b"2", b"3"])
    await write_letters_on(
        broker.url, [b"%d" % number for number in range(7)], real_topic=ELSEWHERE
    )
    await write_letters_on(broker.url, [b"lost"], real_topic=None)
    code, out, _ = await run_command(broker, "replay", DEAD, "--all", "--limit", "2")
    assert (code, "stopped at the limit of 2" in out) == (0, True)
    code, out, _ = await run_command(broker, "replay", DEAD, "--all", "--limit", "50")
    assert (code, "stopped at the limit" in out) == (1, False)
    assert "8 letters cannot be sent and stay:\n  7: its REAL_TOPIC" in out
    assert out.count("payroll") == 1
    assert "\n  1: the letter has no REAL_TOPIC" in out
    _, listed, _ = await run_command(broker, "ls", DEAD, "--json", "--real-topic", "payroll")
    (group,) = json.loads(listed)
    words = ("--id", group["sample_id"], "--id", "987654:1:-1", "--target", "payroll")
    code, out, _ = await run_command(broker, "replay", DEAD, *words)
    assert (code, "1 letters sent" in out, "no letter 987654:1:-1" in out) == (0, True, True)
    code, _, problems = await run_command(broker, "replay", DEAD, "--id", "987654:1:-1")
    assert (code, "has no letter 987654:1:-1" in problems) == (2, True)


async def test_the_error_for_an_unreachable_broker_names_the_commands_options() -> None:
    with socket.socket() as taken:  # no server listens
        taken.bind(("127.0.0.1", 0))
        url = f"pulsar://127.0.0.1:{taken.getsockname()[1]}"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pulsar_encore.cli", "dlq", "ls", DEAD, "--url", url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, problems = await asyncio.wait_for(process.communicate(), 50)
    assert (process.returncode, out) == (2, b"")
    assert problems.startswith(f"pulsar-encore: no answer from {url}: check --url".encode())
    assert b"nobody listens there" in problems
    assert b"_seconds" not in problems + out
    assert problems.count(b"\n") == 1


SHOWN = {
    "id",
    "topic",
    "real_topic",
    "written",
    "event",
    "key",
    "ordering_key",
    "fingerprint",
    "error_class",
    "error_message",
    "replay_id",
    "evidence",
    "properties",
    "payload",
    "payload_encoding",
    "payload_bytes",
    "payload_truncated",
    "encrypted",
}


async def test_json_shows_a_payload_as_text_or_base64(broker: BrokerThread) -> None:
    long = "é" * 3000
    await write_letters_on(broker.url, [long.encode()], colour="r\x1bed")
    await write_letters_on(broker.url, [b"\xff\x00\x01"], fingerprint="bbbbbbbbbbbb")
    code, out, problems = await run_command(broker, "show", DEAD, "aaaaaaaaaaaa", "--json")
    assert (code, problems) == (0, "")
    assert not set(out) & set("\x1b\x7f")
    shown = json.loads(out)
    assert shown.keys() == SHOWN
    assert (shown["payload"], shown["payload_encoding"]) == (long, "text")
    assert (shown["payload_bytes"], shown["payload_truncated"]) == (6000, False)
    assert shown["written"].endswith("+00:00") and shown["event"] is None
    assert (shown["real_topic"], shown["properties"]["colour"]) == (HOME, "r\x1bed")
    assert shown["evidence"][letters.FINGERPRINT] == shown["fingerprint"] == "aaaaaaaaaaaa"
    words = ("show", DEAD, shown["id"], "--bytes", "5", "--json")
    shown = json.loads((await run_command(broker, *words))[1])
    assert (shown["payload"], shown["payload_truncated"]) == ("éé", True)  # no half character
    for most, base64 in (("2000", "/wAB"), ("2", "/wA=")):
        words = ("show", DEAD, "bbbbbbbbbbbb", "--bytes", most, "--json")
        shown = json.loads((await run_command(broker, *words))[1])
        assert (shown["payload"], shown["payload_encoding"]) == (base64, "base64")
    code, text, _ = await run_command(broker, "show", DEAD, "bbbbbbbbbbbb", "--bytes", "2")
    assert (code, "as hex, the first 2 of them:\n  ff 00\n" in text) == (0, True)


async def test_the_json_report_is_complete_when_letters_stay_or_it_is_interrupted(
    broker: BrokerThread,
) -> None:
    sent = [b"%05d" % number for number in range(LETTERS)]
    await write_letters_on(broker.url, sent)
    await write_letters_on(broker.url, [b"lost"], real_topic=None)
    code, out, problems = await run_command(broker, "replay", DEAD, "--all", "--dry-run", "--json")
    assert (code, problems) == (1, "")
    report = json.loads(out)
    assert (report["dry_run"], report["selected"], report["replayed"]) == (True, LETTERS, 0)
    assert report["targets"] == {HOME: LETTERS}
    assert [each["letter_id"] for each in report["refusals"]] != []
    broker.create_topic(HOME)
    process = await start_command(broker, "replay", DEAD, "--all", "--rate", str(RATE), "--json")
    while not replayed_count(broker):
        await asyncio.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, problems = (each.decode() for each in await process.communicate())
    assert process.returncode == 130
    before = json.loads(out)["replayed"]
    assert 0 < before < LETTERS
    assert problems.startswith(f"interrupted: {before} letters")
    code, out, problems = await run_command(broker, "replay", DEAD, "--all", "--json")
    assert (code, problems) == (1, "")
    report = json.loads(out)
    assert (report["replayed"], report["refused"]) == (LETTERS - before, 1)
    assert sorted(bodies(await read_from(broker.url))) == [
        b"%05d" % each for each in range(LETTERS)
    ]


@pytest.mark.parametrize("words", [("ls",), ("ls", "--json"), ("show", "aaaaaaaaaaaa", "--json")])
async def test_a_closed_pipe_ends_a_command_silently(
    broker: BrokerThread, words: tuple[str, ...]
) -> None:
    await write_letters_on(broker.url, [b"x" * 500_000])
    reading, writing = os.pipe()
    os.close(reading)  # like `head` when it has enough
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pulsar_encore", "dlq", words[0], DEAD, *words[1:]),
        *("--url", broker.url),
        stdout=writing,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(writing)
    _, problems = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, problems) == (141, b"")


async def with_login(
    broker: BrokerThread, *options: str, **environment: str
) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pulsar_encore", "dlq", "ls", DEAD, "--json", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PULSAR_URL": broker.url, **environment},
    )
    out, problems = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode, out.decode(), problems.decode()


async def test_a_token_comes_from_a_file_or_the_environment_and_is_never_shown(
    tmp_path: Path,
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("let-me-in\n")
    bad.write_text("not-the-token")
    with run_in_thread(BrokerSettings(token="let-me-in")) as broker:
        broker.create_topic(DEAD)
        for options, environment in (
            (("--token-file", str(good)), {}),
            ((), {"PULSAR_TOKEN_FILE": str(good)}),
            ((), {"PULSAR_TOKEN": "let-me-in"}),
            (("--token-file", str(good)), {"PULSAR_TOKEN": "not-the-token"}),
        ):
            assert (await with_login(broker, *options, **environment))[:2] == (3, "[]\n")
        for options, environment, change in (
            (("--token-file", str(bad)), {}, "check the token of --token-file or PULSAR_TOKEN"),
            ((), {"PULSAR_TOKEN": "not-the-token"}, "check the token of --token-file"),
            ((), {}, "log in with --token-file, PULSAR_TOKEN"),
        ):
            code, out, problems = await with_login(broker, *options, **environment)
            assert (code, out) == (2, "")
            assert "refuses this login" in problems
            assert change in problems
            assert problems.count("\n") == 1
            assert "not-the-token" not in problems


def test_an_invalid_command_is_a_one_line_error_before_any_connection(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, names in (
        (["replay", "t"], "--all"),
        (["replay", "t", "--all", "--id", "1:2"], "--all"),
        (["replay", "t", "--all", "--rate", "0"], "rate"),
        (["replay", "t", "--all", "--limit", "0"], "limit"),
        (["replay", "t", "--all", "--target", "t"], "target"),
        (["ls", "t", "--since", "foo"], "since"),
        (["ls", " "], "topic"),
        (["show", "t", "1:2", "--bytes", "-1"], "bytes"),
        (["show", "t"], "An id or a fingerprint, as `pulsar-encore dlq ls t` lists them"),
    ):
        assert cli.main(["dlq", *words]) == 2
        captured = capsys.readouterr()
        assert names in captured.err
        assert "Traceback" not in captured.err


def test_times_are_parsed_as_typed() -> None:
    assert dlq.moment(None, "since") is None
    assert dlq.moment("2026-01-31T12:00+00:00", "since") == 1769860800
    hour, day = dlq.moment("1h", "since"), dlq.moment("1d", "since")
    assert hour is not None
    assert day is not None
    assert hour - day == pytest.approx(23 * 3600, abs=1)


async def test_the_demonstrations_row_can_be_measured(broker: BrokerThread) -> None:
    outcomes = {
        label: await measure(
            side,
            "poison_message",
            broker.url,
            f"poison-{label}",
            within_s=30,
            transport=transport,
            most=1,
        )
        for label, (side, transport) in SIDES.items()
    }
    assert (outcomes["stock"]["deliveries"], outcomes["stock"]["evidence"]) == (2, 0)
    for label in ("encore", "native"):
        ours = outcomes[label]
        assert (ours["deliveries"], ours["event_time"], ours["replayed"], ours["attempt"]) == (
            2,
            1,
            1,
            1,
        )
        # no stack, because the error was never raised
        assert ours["evidence"] == len(letters.EVIDENCE) - 1
    row = row_of(poison_message.SCENARIO, outcomes)
    assert row.missing == ()
    assert "received at attempt 1" in row.encore
    assert "received at attempt 1" in row.native
