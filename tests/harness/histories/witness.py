"""The stock client as a witness: publishes, reads dead letters, and reads the backlog at the end.

The functions block and run on threads. Nothing in this module is under test.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pulsar

from .clients import QUIET, SUBSCRIPTION, number_of
from .event_record import Position
from .workload import Segment, Workload

SLICE = 500
Produced = tuple[int, str, Position, str]  # number, topic or partition, position, key


def client_of(url: str) -> pulsar.Client:
    return pulsar.Client(url, logger=QUIET, operation_timeout_seconds=20)


def key_of(workload: Workload, number: int) -> str:
    return f"k{number % workload.keys}" if workload.keys else ""


def publish(
    url: str,
    workload: Workload,
    topics: Sequence[str],
    segment: Segment,
    first: int,
    report: Callable[[list[Produced]], None],
) -> None:
    """Publish a segment whose first number is `first`; `report` gets the persisted messages."""
    client = client_of(url)
    try:
        numbers = range(first, first + segment.messages)
        shares = [numbers[at :: workload.writers] for at in range(workload.writers)]
        errors: list[BaseException] = []

        def write(share: Sequence[int]) -> None:
            try:
                _write(client, workload, topics, segment, share, report)
            except BaseException as e:
                errors.append(e)

        threads = [threading.Thread(target=write, args=(share,)) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
    finally:
        client.close()


def _write(
    client: pulsar.Client,
    workload: Workload,
    topics: Sequence[str],
    segment: Segment,
    numbers: Sequence[int],
    report: Callable[[list[Produced]], None],
) -> None:
    batch = segment.batch
    options: dict[str, Any] = {}
    if batch:
        options = {
            "batching_enabled": True,
            "batching_max_messages": batch,
            "batching_max_publish_delay_ms": 5 if segment.per_second else 60_000,
        }
        if workload.keys:
            options["batching_type"] = pulsar.BatchingType.KeyBased
    producers = [
        client.create_producer(
            topic,
            block_if_queue_full=True,
            chunking_enabled=workload.chunk > 0,
            **options,
        )
        for topic in topics
    ]
    step = SLICE if not segment.per_second else max(1, segment.per_second // 20)
    began = time.monotonic()
    for start in range(0, len(numbers), step):
        sent: list[Produced] = []
        failed: list[str] = []
        waiting = threading.Semaphore(0)
        share = numbers[start : start + step]
        for number in share:
            topic = topics[number % len(topics)]
            key = key_of(workload, number)

            done = _Receipt(number, topic, key, sent, failed, waiting)
            body = b"%d;" % number
            if workload.chunk:
                body = body.ljust(workload.chunk * 2 + 100 + workload.chunk * (number % 2), b".")
            producers[number % len(topics)].send_async(body, done, partition_key=key or None)
        for producer in producers:
            producer.flush()
        for _ in share:
            if not waiting.acquire(timeout=60):
                raise RuntimeError("the broker did not confirm what was published within 60 s")
        if failed:
            raise RuntimeError(f"publishing failed: {failed[0]}")
        sent.sort()
        report(sent)
        if segment.per_second:
            due = began + (start + len(share)) * workload.writers / segment.per_second
            time.sleep(max(0.0, due - time.monotonic()))


class _Receipt:
    """The callback of one send, on a thread of the client."""

    def __init__(
        self,
        number: int,
        topic: str,
        key: str,
        sent: list[Produced],
        failed: list[str],
        waiting: threading.Semaphore,
    ) -> None:
        self._message = (number, topic, key)
        self._sent = sent
        self._failed = failed
        self._waiting = waiting

    def __call__(self, result: Any, message_id: Any) -> None:
        number, topic, key = self._message
        with contextlib.suppress(Exception):  # an exception here would end the process
            if result == pulsar.Result.Ok:
                part = message_id.partition()
                name = f"{topic}-partition-{part}" if part >= 0 else topic
                ids = (message_id.ledger_id(), message_id.entry_id())
                self._sent.append((number, name, (*ids, max(0, message_id.batch_index())), key))
            else:
                self._failed.append(f"message {number}: {result}")
        self._waiting.release()


def watch_letters(
    url: str, topic: str, found: Callable[[int], None], stop: threading.Event
) -> None:
    """Call `found` with the number of every dead letter until `stop` is set."""
    client = client_of(url)
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        while not stop.is_set():
            try:
                found(number_of(reader.read_next(100).data()))
            except pulsar.Timeout:
                continue
    finally:
        client.close()


def drain(
    url: str,
    workload: Workload,
    topics: Sequence[str],
    on_message: Callable[[int, str, int], None],
    quiet_s: float,
) -> None:
    """Read and ack the backlog of the subscription until no message arrives for `quiet_s`."""
    client = client_of(url)
    try:
        consumer = client.subscribe(
            topics[0] if len(topics) == 1 else list(topics),
            SUBSCRIPTION,
            consumer_type=getattr(pulsar.ConsumerType, workload.kind),
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=10_000,
            batch_index_ack_enabled=True,
            max_pending_chunked_message=1000,
        )
        end = time.monotonic() + quiet_s
        while time.monotonic() < end:
            try:
                message = consumer.receive(100)
            except pulsar.Timeout:
                continue
            on_message(number_of(message.data()), message.topic_name(), message.redelivery_count())
            consumer.acknowledge(message)
            end = time.monotonic() + quiet_s
        consumer.close()
    finally:
        client.close()
