"""`lag`, `tail`, and `dlq ls` of a namespace, on a real Pulsar."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import redirect_stderr, redirect_stdout

import pytest

import pulsar_encore as encore
from pulsar_encore import cli, letters
from tests.harness.admin import Admin
from tests.harness.contract.contract_kit import SUBSCRIPTION, publish, subscribe, take
from tests.harness.pulsar_server import Server

# looptime's plugin requests a loop before every synchronous test; see the suite's fixtures.
asyncio.set_event_loop(None)


async def command(*words: str) -> tuple[int, str, str]:
    out, problems = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(problems):
        code = await asyncio.wait_for(asyncio.to_thread(cli.main, list(words)), 60)
    return code, out.getvalue(), problems.getvalue()


async def test_lag_counts_messages_of_batches_and_creates_nothing(
    pulsar: Server, topic: str, admin: Admin
) -> None:
    where = ("--url", pulsar.service_url, "--admin-url", pulsar.admin_url)
    assert (await command("lag", topic, "s", *where))[0] == 3
    assert topic not in await asyncio.to_thread(admin.topics)
    async with encore.Client(pulsar.service_url) as client:
        consumer = await subscribe(client, topic)
        await publish(client, topic, [b"%d" % each for each in range(6)], batch=3)
        taken = await take(consumer, 6)
        for message in taken[:3]:
            await consumer.acknowledge(message)
        for _ in range(50):
            code, out, _ = await command("lag", topic, SUBSCRIPTION, *where, "--json")
            if code == 0 and json.loads(out)["messages"] == 3:
                break
            await asyncio.sleep(0.1)
        answer = json.loads(out)
        assert (code, answer["messages"], answer["exact"]) == (0, 3, True)
        code, _, problems = await command("lag", topic, "no-such", *where)
        assert (code, "no subscription no-such" in problems) == (3, True)
        stats = await asyncio.to_thread(admin.stats, topic)
        assert set(stats["subscriptions"]) == {SUBSCRIPTION}


@pytest.mark.parametrize("partitions", [0, 2])
async def test_tail_prints_selected_messages_and_leaves_no_subscription(
    pulsar: Server, topic: str, admin: Admin, partitions: int
) -> None:
    where = ("--url", pulsar.service_url)
    assert (await command("tail", topic, *where))[0] == 3
    assert topic not in await asyncio.to_thread(admin.topics)
    if partitions:
        await asyncio.to_thread(admin.create_partitioned_topic, topic, partitions)
    async with encore.Client(pulsar.service_url) as client:
        async with await client.create_producer(topic, batching_enabled=False) as producer:
            first = await producer.send(b"\x1b[31mred", partition_key="k", properties={"a": "1"})
            last = await producer.send(b"\xff", partition_key="k")
    code, out, _ = await command("tail", topic, *where)
    lines = out.splitlines()
    assert (code, len(lines)) == (0, 2)
    assert lines[0].startswith(f"{first}  20") and "+00:00" in lines[0]
    assert lines[0].endswith("key=k  a=1  \\x1b[31mred")
    assert lines[1].endswith("0xff")
    _, out, _ = await command("tail", topic, *where, "--from-id", str(last), "--json")
    [answer] = map(json.loads, out.splitlines())
    assert (answer["id"], answer["key"]) == (str(last), "k")
    for words in (("--property", "a=1"), ("--limit", "1"), ("--key", "k", "--limit", "1")):
        assert len((await command("tail", topic, *where, *words))[1].splitlines()) == 1
    name = f"{topic}-partition-0" if partitions else topic
    assert not (await asyncio.to_thread(admin.stats, name))["subscriptions"]


async def test_tail_decodes_with_the_schema_of_the_topic(pulsar: Server, topic: str) -> None:
    async with encore.Client(pulsar.service_url) as client:
        async with await client.create_producer(topic, schema=encore.schema.StringSchema()) as p:
            await p.send("text")
    assert (await command("tail", topic, "--url", pulsar.service_url))[1].endswith("  text\n")


async def test_dead_letter_topics_of_a_namespace(pulsar: Server, topic: str, admin: Admin) -> None:
    namespace = f"public/{topic.rpartition('-')[2]}"
    await asyncio.to_thread(admin.create_namespace, namespace)
    where = ("--namespace", namespace, "--url", pulsar.service_url)
    try:
        assert (await command("dlq", "ls", *where))[0] == 3
        home = f"persistent://{namespace}/orders"
        async with encore.Client(pulsar.service_url) as client:
            for suffix, count in (("-s-DLQ", 2), ("", 1)):
                properties = {letters.REAL_TOPIC: home, letters.REAL_SUBSCRIPTION: "s"}
                await publish(client, home + suffix, [b"x"] * count, properties=properties)
        code, out, _ = await command("dlq", "ls", *where, "--json")
        [found] = json.loads(out)
        assert (code, found["topic"], found["letters"]) == (0, f"{home}-s-DLQ", 2)
        url = ("--url", pulsar.service_url)
        code, out, _ = await command("dlq", "discard", f"{home}-s-DLQ", *url, "--all", "--yes")
        assert (code, out.splitlines()[0]) == (0, "2 letters discarded, 0 not selected")
        code, out, _ = await command("dlq", "discard", f"{home}-s-DLQ", *url, "--all", "--yes")
        assert code != 0
    finally:
        await asyncio.to_thread(admin.delete_namespace, namespace)
