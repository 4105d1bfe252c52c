"""`pulsar-encore explain` is right for a message in each of its states, on a real Pulsar."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import cli
from pulsar_encore.deadletters import DeadLetters
from tests.harness.admin import Admin
from tests.harness.contract.cluster import ENGINES, Engine
from tests.harness.contract.contract_kit import SUBSCRIPTION, publish, subscribe, take
from tests.harness.pulsar_server import Server

# looptime's plugin requests a loop before every synchronous test; see the suite's fixtures.
asyncio.set_event_loop(None)

pytestmark = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)


class Explainer:
    """Asks about one message after the other."""

    def __init__(self, pulsar: Server, topic: str) -> None:
        self._words = ["--url", pulsar.service_url, "--admin-url", pulsar.admin_url, "--json"]
        self._topic = topic

    async def __call__(self, message_id: Any, *more: str) -> dict[str, Any]:
        out, problems = io.StringIO(), io.StringIO()
        words = ["explain", str(message_id), "--topic", self._topic, *self._words, *more]
        if "--subscription" not in more:
            words += ["--subscription", SUBSCRIPTION]
        with redirect_stdout(out), redirect_stderr(problems):
            await asyncio.wait_for(asyncio.to_thread(cli.main, words), 60)
        assert out.getvalue(), problems.getvalue()
        answer: dict[str, Any] = json.loads(out.getvalue())
        return answer

    async def until(self, message_id: Any, state: str) -> dict[str, Any]:
        for _ in range(100):
            answer = await self(message_id)
            if answer["state"] == state:
                return answer
            await asyncio.sleep(0.1)
        raise AssertionError(answer)


@pytest.fixture
def explain(pulsar: Server, topic: str) -> Explainer:
    return Explainer(pulsar, topic)


async def test_not_delivered_in_flight_and_acked(
    pulsar: Server, topic: str, engine: Engine, explain: Explainer
) -> None:
    async with engine.client(pulsar.service_url) as client:
        consumer = await subscribe(client, topic, receiver_queue_size=1)
        await consumer.close()
        async with await client.create_producer(topic, batching_enabled=False) as producer:
            first = await producer.send(b"one")
            last = await producer.send(b"two")
        assert (await explain(first))["state"] == "not_delivered"
        consumer = await subscribe(client, topic, consumer_name="billing-1")
        one, two = await take(consumer, 2)
        answer = await explain.until(first, "delivered")
        assert any("billing-1" in each for each in answer["details"])
        await consumer.acknowledge(two)
        assert (await explain.until(last, "acked"))["id"] == str(last)
        assert (await explain(first))["state"] == "delivered"
        await consumer.acknowledge(one)
        await explain.until(first, "acked")
        assert (await explain(first, "--subscription", "no-such"))["state"] == "no_subscription"
        ledger = first.ledger_id()
        assert (await explain(f"{ledger}:99:-1"))["state"] == "not_published"
        assert (await explain("1:0:-1"))["state"] in ("trimmed", "acked")


async def test_one_message_of_a_batch_is_not_said_to_be_acked_or_open(
    pulsar: Server, topic: str, engine: Engine, explain: Explainer
) -> None:
    async with engine.client(pulsar.service_url) as client:
        consumer = await subscribe(client, topic, batch_index_ack_enabled=True)
        async with await client.create_producer(
            topic, batching_enabled=True, batching_max_publish_delay_ms=200
        ) as producer:
            sent = await asyncio.gather(*(producer.send(b"%d" % each) for each in range(3)))
        taken = await take(consumer, 3)
        await consumer.acknowledge(taken[1])
        answer = await explain.until(taken[1].message_id(), "delivered")
        assert any("may be acked already" in each for each in answer["details"])
        await consumer.acknowledge(taken[0])
        await consumer.acknowledge(taken[2])
        answer = await explain.until(taken[0].message_id(), "acked")
        assert answer["id"].endswith(":0") and len(sent) == 3


async def test_a_partitioned_topic(
    pulsar: Server, topic: str, engine: Engine, explain: Explainer, admin: Admin
) -> None:
    await asyncio.to_thread(admin.create_partitioned_topic, topic, 3)
    async with engine.client(pulsar.service_url) as client:
        consumer = await subscribe(client, topic)
        await publish(client, topic, [b"a"], keys=["k"])
        [message] = await take(consumer, 1)
        answer = await explain.until(message.message_id(), "delivered")
        assert answer["topic"].endswith(f"-partition-{message.message_id().partition()}")
        await consumer.acknowledge(message)
        await explain.until(message.message_id(), "acked")


async def test_retry_letters_dead_letters_and_replays(
    pulsar: Server, topic: str, engine: Engine, explain: Explainer
) -> None:
    async with engine.client(pulsar.service_url) as client:
        consumer = await subscribe(
            client,
            topic,
            retry_enable=True,
            dead_letter_policy=encore.DeadLetterPolicy(max_redeliver_count=2),
        )
        await publish(client, topic, [b"poison"])
        [message] = await take(consumer, 1)
        sent = message.message_id()
        await consumer.reconsume_later(message, delay=4, error=KeyError("EUR"))
        answer = await explain.until(sent, "retry_letter")
        due = datetime.fromisoformat(answer["due"])
        assert due.tzinfo is not None and "-RETRY" in answer["topic"]
        assert "until" in answer["summary"]
        assert any("KeyError" in each for each in answer["details"])
        [message] = await take(consumer, 1)
        answer = await explain.until(sent, "delivered")
        assert "-RETRY" in answer["topic"]
        await consumer.reconsume_later(message, delay=1, error=KeyError("EUR"))
        await explain.until(sent, "retry_letter")
        [message] = await take(consumer, 1)
        await consumer.reconsume_later(message, delay=1, error=KeyError("EUR"))
        answer = await explain.until(sent, "dead_letter")
        assert "KeyError" in answer["summary"] and "-DLQ" in answer["topic"]

        dead = DeadLetters(client, f"{topic}-{SUBSCRIPTION}-DLQ")
        await dead.replay()
        [message] = await take(consumer, 1)
        answer = await explain.until(sent, "delivered")
        assert (answer["topic"], answer["id"]) == (topic, str(message.message_id()))
        await consumer.acknowledge(message)
        answer = await explain.until(sent, "acked")
        assert answer["summary"].startswith("replayed")


async def test_a_success_on_the_retry_topic_is_acked(
    pulsar: Server, topic: str, engine: Engine, explain: Explainer
) -> None:
    async with engine.client(pulsar.service_url) as client:
        consumer = await subscribe(client, topic, retry_enable=True)
        await publish(client, topic, [b"later"])
        [message] = await take(consumer, 1)
        sent = message.message_id()
        await consumer.reconsume_later(message, delay=0.1)
        [message] = await take(consumer, 1)
        await consumer.acknowledge(message)
        answer = await explain.until(sent, "acked")
        assert answer["summary"].startswith("retry letter")


async def test_a_message_that_waits_for_its_redelivery(
    pulsar: Server, topic: str, engine: Engine, explain: Explainer
) -> None:
    async with engine.client(pulsar.service_url) as client:
        consumer = await subscribe(client, topic)
        await publish(client, topic, [b"later"])
        [message] = await take(consumer, 1)
        await consumer.negative_acknowledge(message, delay=60)
        answer = await explain.until(message.message_id(), "delivered")
        assert "or nacked" in answer["summary"]
        assert any("--health" in each for each in answer["not_seen"])


async def test_a_deleted_topic_and_a_trimmed_message(
    pulsar: Server, topic: str, engine: Engine, explain: Explainer, admin: Admin
) -> None:
    assert (await explain("1:0:-1"))["state"] == "no_topic"
    assert topic not in await asyncio.to_thread(admin.topics)
    async with engine.client(pulsar.service_url) as client:
        consumer = await subscribe(client, topic)
        await publish(client, topic, [b"a"])
        [message] = await take(consumer, 1)
        await consumer.acknowledge(message)
        await explain.until(message.message_id(), "acked")
        await asyncio.to_thread(admin.unload, topic)  # closes the ledger
        await publish(client, topic, [b"b"])
        await asyncio.to_thread(admin.trim, topic)
        await explain.until(message.message_id(), "trimmed")
        await consumer.close()
    before = set(await asyncio.to_thread(admin.topics))
    await asyncio.to_thread(admin.delete_topic, topic)
    assert (await explain(message.message_id()))["state"] == "no_topic"
    assert before - {topic} == set(await asyncio.to_thread(admin.topics)) - {topic}


@contextmanager
def health_port(consumer: encore.Consumer) -> Iterator[str]:
    """Serve the pending messages of a consumer as a worker's health port does."""
    loop = asyncio.get_running_loop()

    async def pending() -> list[encore.PendingMessage]:
        return list(consumer.pending())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = asyncio.run_coroutine_threadsafe(pending(), loop).result(10)
            worker = {"name": "billing", "pending": [asdict(each) for each in found]}
            body = json.dumps({"workers": [worker]}, default=datetime.isoformat).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


async def test_a_health_port_tells_in_flight_from_nacked(
    pulsar: Server, topic: str, engine: Engine, explain: Explainer
) -> None:
    async with engine.client(pulsar.service_url) as client:
        consumer = await subscribe(client, topic)
        async with await client.create_producer(
            topic, batching_enabled=True, batching_max_publish_delay_ms=200
        ) as producer:
            await asyncio.gather(*(producer.send(b"%d" % each) for each in range(2)))
        first, second = await take(consumer, 2)
        await consumer.negative_acknowledge(second, delay=60, error=KeyError("EUR"))
        with health_port(consumer) as url:
            answer = await explain(first.message_id(), "--health", url)
            assert answer["state"] == "in_flight", answer
            answer = await explain(second.message_id(), "--health", url)
            assert answer["state"] == "waiting", answer
            assert answer["due"] is not None
            assert not answer["not_seen"] or "health" not in str(answer["not_seen"])


async def test_the_health_port_of_a_worker_tells_running_from_waiting_and_blocked(
    pulsar: Server, topic: str, engine: Engine, explain: Explainer
) -> None:
    running, ended = asyncio.Event(), asyncio.Event()

    async def handle(payload: bytes) -> None:
        if payload == b"fails":
            raise KeyError("EUR")
        running.set()
        await ended.wait()

    async with engine.client(pulsar.service_url) as client:
        worker = encore.Worker(
            client,
            topic,
            SUBSCRIPTION,
            handle,
            order="key",
            retry=encore.RetryPolicy(attempts=3, backoff=[60]),
            initial_position=encore.InitialPosition.Earliest,
        )
        async with await client.create_producer(topic, batching_enabled=False) as producer:
            fails = await producer.send(b"fails", partition_key="a")
            behind = await producer.send(b"behind", partition_key="a")
            runs = await producer.send(b"runs", partition_key="b")
        with encore.health.serve(worker, port=0, debug=True) as server:
            async with worker:
                await asyncio.wait_for(running.wait(), 30)
                url = f"http://127.0.0.1:{server.port}"
                found = [await explain(each, "--health", url) for each in (runs, fails, behind)]
                ended.set()
    assert [each["state"] for each in found] == ["in_flight", "waiting", "waiting"]
    assert found[0]["summary"].startswith("its handler runs in the worker")
    assert "KeyError" in found[1]["summary"] and found[1]["due"] is not None
    assert "behind an earlier message" in found[2]["summary"]
    assert "do not list it" not in str(found)


async def test_a_message_that_its_publisher_delayed(
    pulsar: Server, topic: str, engine: Engine, explain: Explainer
) -> None:
    async with engine.client(pulsar.service_url) as client:
        shared = await subscribe(client, topic)
        ordered = await client.subscribe(topic, "ordered", encore.ConsumerType.Exclusive)
        async with await client.create_producer(topic, batching_enabled=False) as producer:
            sent = await producer.send(b"later", deliver_after=timedelta(minutes=5))
        await take(ordered, 1)  # a delay is for Shared and Key_Shared only
        answer = await explain.until(sent, "not_delivered")
        due = datetime.fromisoformat(answer["due"])
        assert due > datetime.now(due.tzinfo) and "delayed it until" in answer["summary"]
        answer = await explain(sent, "--subscription", "ordered")
        assert (answer["state"], answer["due"]) == ("delivered", None)
        assert any("does not count the unacked" in each for each in answer["details"])
        await shared.close()


async def test_ids_that_never_existed(
    pulsar: Server, topic: str, engine: Engine, explain: Explainer, admin: Admin
) -> None:
    async with engine.client(pulsar.service_url) as client:
        await subscribe(client, topic)
        [first, *_] = await publish(client, topic, [b"a", b"b"])
        await asyncio.to_thread(admin.unload, topic)  # closes the ledger
        [*_, last] = await publish(client, topic, [b"c", b"d"], batch=2)
        answer = await explain(f"{first.ledger_id()}:2:-1")
        assert (answer["state"], "never one" in answer["summary"]) == ("not_published", True)
        answer = await explain(f"{last.ledger_id()}:{last.entry_id()}:-1:2")
        assert (answer["state"], "never one" in answer["summary"]) == ("not_published", True)
        answer = await explain(f"{last.ledger_id()}:9:-1")
        assert (answer["state"], "after the end" in answer["summary"]) == ("not_published", True)
    with pytest.raises(AssertionError, match="stores no messages"):
        await Explainer(pulsar, "non-persistent://public/default/volatile")("1:0:-1")


async def test_the_ids_of_letters_and_of_a_replay_lead_to_the_message(
    pulsar: Server, topic: str, engine: Engine, explain: Explainer
) -> None:
    async with engine.client(pulsar.service_url) as client:
        policy = encore.DeadLetterPolicy(max_redeliver_count=1)
        consumer = await subscribe(client, topic, retry_enable=True, dead_letter_policy=policy)
        [sent] = await publish(client, topic, [b"poison"])

        async def fail_twice() -> tuple[encore.MessageId, encore.MessageId]:
            [message] = await take(consumer, 1)
            await consumer.reconsume_later(message, delay=0.1, error=KeyError("EUR"))
            [retried] = await take(consumer, 1)
            await consumer.reconsume_later(retried, delay=0.1, error=KeyError("EUR"))
            return message.message_id(), retried.message_id()

        _, retry = await fail_twice()
        dead = (await explain.until(sent, "dead_letter"))["id"]
        for each, home in ((retry, f"{topic}-{SUBSCRIPTION}-RETRY"), (dead, f"{topic}-s-DLQ")):
            answer = await Explainer(pulsar, home)(each)
            assert (answer["state"], answer["id"]) == ("dead_letter", dead)
            assert f"{each} of {home} is a letter" in answer["details"][0]
        await DeadLetters(client, f"{topic}-{SUBSCRIPTION}-DLQ").replay()
        replayed, _ = await fail_twice()
        answer = await explain.until(replayed, "dead_letter")
        assert answer["id"] != dead and answer == await explain(sent) | {
            "details": answer["details"]
        }
        answer = await explain(replayed, "--subscription", "other")
        assert answer["state"] == "no_subscription"
