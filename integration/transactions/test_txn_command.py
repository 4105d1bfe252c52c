"""`pulsar-encore txn` on a real Pulsar."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

import pytest

from pulsar_encore import (
    Client,
    ConsumerType,
    InitialPosition,
    ReceiveTimeout,
    Transaction,
    TransactionNotFound,
    TransactionOutcomeUnknown,
    TransportError,
    TxnId,
    cli,
)
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Broker

from ..conftest import OwnPulsar

#: Long enough for a message that the broker should not send.
QUIET_MS = 400


async def command(*words: str) -> tuple[int, str, str]:
    out, problems = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(problems):
        code = await asyncio.wait_for(asyncio.to_thread(cli.main, ["txn", *words]), 60)
    return code, out.getvalue(), problems.getvalue()


class Opened(NamedTuple):
    """An open transaction with one send and one ack, of a client that still runs."""

    client: Client
    txn: Transaction
    topic: str
    input: str
    #: Position of its message.
    first: str


@contextlib.asynccontextmanager
async def opened(url: str, topic: str) -> AsyncIterator[Opened]:
    source = f"{topic}-in"
    async with Client(url, transport="native") as client:
        producer = await client.create_producer(topic, batching_enabled=False)
        inputs = await client.create_producer(source, batching_enabled=False)
        consumer = await client.subscribe(
            source, "billing", ConsumerType.Shared, initial_position=InitialPosition.Earliest
        )
        await inputs.send(b"in")
        message = await consumer.receive(timeout_millis=10_000)
        txn = await client.transaction(timeout=120)
        sent = await producer.send(b"in the transaction", txn=txn)
        await consumer.acknowledge(message, txn=txn)
        await producer.send(b"plain")
        await consumer.close()
        yield Opened(client, txn, topic, source, f"{sent.ledger_id()}:{sent.entry_id()}")
        with contextlib.suppress(TransactionNotFound):
            await client.abort_transaction(txn.id)


def where(broker: Broker) -> tuple[str, ...]:
    return ("--url", broker.service_url, "--admin-url", broker.admin_url)


async def receive(client: Client, topic: str) -> list[bytes]:
    """Return the messages that a new subscription gets."""
    found = []
    async with client.subscribe(
        topic, "reader", ConsumerType.Exclusive, initial_position=InitialPosition.Earliest
    ) as consumer:
        with contextlib.suppress(ReceiveTimeout):
            while True:
                found.append((await consumer.receive(timeout_millis=QUIET_MS)).data())
    return found


async def redelivered(client: Client, topic: str) -> list[bytes]:
    async with client.subscribe(topic, "billing", ConsumerType.Shared) as consumer:
        with contextlib.suppress(ReceiveTimeout):
            return [(await consumer.receive(timeout_millis=QUIET_MS)).data()]
    return []


def check_fields(found: dict[str, Any], open_one: Opened) -> None:
    assert found["id"] == str(open_one.txn.id)
    assert (found["state"], found["timeout"], found["owner"]) == ("open", 120.0, None)
    assert 100 < found["left"] < 120 and 0 <= found["age"] < 20
    assert found["topics"] == [{"topic": open_one.topic, "first": open_one.first}]
    assert found["subscriptions"] == [
        {"topic": open_one.input, "subscription": "billing", "cumulative": None}
    ]


async def test_an_open_transaction_is_listed_shown_and_explained(
    transactional: Broker, topic: str
) -> None:
    at = where(transactional)
    async with opened(transactional.service_url, topic) as one:
        txn_id = str(one.txn.id)
        code, out, problems = await command("ls", *at, "--json")
        assert (code, problems) == (0, "")
        [found] = [each for each in json.loads(out) if each["id"] == txn_id]
        check_fields(found, one)
        code, out, _ = await command("ls", *at)
        assert (code, txn_id in out) == (0, True)
        code, out, _ = await command("ls", *at, "--json", "--older-than", "1h")
        assert (code, json.loads(out)) == (0, [])

        code, out, _ = await command("show", txn_id, *at, "--json")
        assert code == 0
        check_fields(json.loads(out), one)
        code, out, _ = await command("show", f"{one.txn.id.most}:{one.txn.id.least}", *at)
        assert code == 0
        assert f"produced to  {topic}, first message {one.first}\n" in out
        assert f"acked on     {one.input} billing\n" in out

        code, out, problems = await command("explain", txn_id, *at)
        assert (code, problems) == (0, "")
        assert out.startswith("open: it began 0:00:0")
        assert f"readers and consumers of {topic} see nothing from {one.first} on" in out
        assert f"acked in {one.input} on the subscription billing" in out
        assert "not seen" not in out
        assert await receive(one.client, topic) == []  # as the sentence says
        code, out, _ = await command("explain", txn_id, *at, "--json")
        answer = json.loads(out)
        assert (code, answer["state"]) == (0, "open")
        check_fields(answer["transaction"], one)


async def test_another_transaction_of_the_topic_is_named(transactional: Broker, topic: str) -> None:
    async with opened(transactional.service_url, topic) as one:
        second = await one.client.transaction(timeout=120)
        async with one.client.create_producer(topic) as producer:
            await producer.send(b"second", txn=second)
        _, out, _ = await command("explain", str(second.id), *where(transactional))
        assert f"{one.txn.id} holds up {topic}, too, from {one.first} on" in out
        await second.abort()


@pytest.mark.parametrize("as_json", [False, True])
async def test_abort_frees_the_topic_and_the_subscription(
    transactional: Broker, topic: str, as_json: bool
) -> None:
    at = where(transactional)
    words = ["--json"] if as_json else []
    async with opened(transactional.service_url, topic) as one:
        txn_id = str(one.txn.id)
        code, out, problems = await command("abort", txn_id, *at[:2], *words)
        assert (code, problems) == (0, "")
        if as_json:
            assert json.loads(out) == {"id": txn_id, "outcome": "aborted"}
        else:
            assert out.startswith(f"{txn_id} is aborted")
        assert await receive(one.client, topic) == [b"plain"]
        assert await redelivered(one.client, one.input) == [b"in"]

        code, out, problems = await command("abort", txn_id, *at[:2])
        assert (code, out) == (3, "") and "has ended, timed out, or belongs" in problems
        code, out, _ = await command("show", txn_id, *at, *words)
        assert (code, out) == (3, "null\n" if as_json else "")
        code, out, _ = await command("explain", txn_id, *at)
        assert code == 3 and out.startswith("ended: ")


@pytest.mark.parametrize("as_json", [False, True])
async def test_commit_needs_force_and_makes_the_messages_visible(
    transactional: Broker, topic: str, as_json: bool
) -> None:
    at = where(transactional)[:2]
    words = ["--json"] if as_json else []
    async with opened(transactional.service_url, topic) as one:
        txn_id = str(one.txn.id)
        code, out, problems = await command("commit", txn_id, *at, *words)
        assert (code, out) == (2, "") and "--force" in problems
        assert await receive(one.client, topic) == []
        code, out, problems = await command("commit", txn_id, *at, "--force", *words)
        assert (code, problems) == (0, "")
        if as_json:
            assert json.loads(out) == {"id": txn_id, "outcome": "committed"}
        assert await receive(one.client, topic) == [b"in the transaction", b"plain"]
        assert await redelivered(one.client, one.input) == []


async def test_ids_that_the_cluster_has_not_given(transactional: Broker, topic: str) -> None:
    at = where(transactional)
    async with opened(transactional.service_url, topic) as one:
        later = TxnId(0, one.txn.id.least + 1000)
        for txn_id, text in (
            (str(later), "the newest id of its coordinator is"),
            ("7:0", "this cluster has no coordinator 7"),
            (f"{1 << 40}:0", "this cluster has no coordinator"),
            (f"0:{(1 << 64) - 1}", "the newest id of its coordinator is"),
        ):
            code, out, _ = await command("explain", txn_id, *at)
            assert (code, out.startswith("never_begun: "), text in out) == (3, True, True), out
            assert (await command("abort", txn_id, *at[:2]))[0] == 3


async def test_a_broker_without_transactions_is_named(own_pulsar: OwnPulsar) -> None:
    broker = await asyncio.to_thread(own_pulsar, transactionCoordinatorEnabled=False)
    at = where(broker)
    for words in (
        ("ls", *at),
        ("show", "0:1", *at),
        ("explain", "0:1", *at),
        ("abort", "0:1", *at[:2]),
        ("commit", "0:1", "--force", *at[:2]),
    ):
        code, out, problems = await command(*words)
        assert (code, out) == (2, ""), words
        assert "set transactionCoordinatorEnabled=true" in problems


async def test_a_deleted_topic_does_not_hide_other_transactions(
    transactional: Broker, topic: str
) -> None:
    at = where(transactional)
    async with opened(transactional.service_url, topic) as one:
        gone = f"{topic}-gone"
        other = await one.client.transaction(timeout=120)
        async with one.client.create_producer(gone) as producer:
            await producer.send(b"1", txn=other)
        await asyncio.to_thread(Admin(transactional.admin_url).delete_topic, gone)
        code, out, problems = await command("ls", *at, "--json")
        assert code == 1
        assert str(one.txn.id) in {each["id"] for each in json.loads(out)}
        assert f"{other.id} is open, and its broker cannot describe it" in problems
        assert f"Topic not found {gone}" in problems
        code, out, _ = await command("explain", str(other.id), *at)
        assert (code, out.startswith("open: its broker knows it")) == (0, True)
        assert (await command("abort", str(other.id), *at[:2]))[0] == 0
        code, _, problems = await command("ls", *at, "--json")
        assert (code, problems) == (0, "")


@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_a_transaction_in_a_terminated_topic_ends_when_that_topic_is_deleted(
    transactional: Broker, topic: str, end: str
) -> None:
    at, admin, other = where(transactional), Admin(transactional.admin_url), f"{topic}-b"

    async def explained() -> str:
        return (await command("explain", str(txn.id), *at))[1]

    async with (
        Client(transactional.service_url, operation_timeout_seconds=4) as client,
        client.create_producer(other) as kept,
    ):
        async with client.create_producer(topic) as producer:
            txn = await client.transaction(timeout=5)
            await producer.send(b"never", txn=txn)
            await kept.send(b"two", txn=txn)
            await asyncio.to_thread(admin.terminate, topic)
            with pytest.raises((TransactionOutcomeUnknown, TransportError)):
                await (txn.commit() if end == "commit" else txn.abort())
        await kept.send(b"plain")
        # The other topic has its end.
        assert await receive(client, other) == (
            [b"two", b"plain"] if end == "commit" else [b"plain"]
        )
        assert "the transaction ends when that topic is deleted" in await explained()
        await asyncio.to_thread(admin.delete_topic, topic)
        async with asyncio.timeout(60):
            while "when that topic is deleted" in await explained():  # noqa: ASYNC110 - of the broker
                await asyncio.sleep(0.5)
