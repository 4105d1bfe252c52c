"""The spans of one message on its whole way: attempts, letters, a replay, and a result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import SpanKind, StatusCode

import pulsar_encore as encore
from pulsar_encore.deadletters import DeadLetters
from pulsar_encore.values.topic_names import full_name

_END_S: Final = 60


class Chain:
    """Runs the chain with a client, and checks its spans.

    Attributes:
        seen: The spans in which handlers ran, as seen by a task that each handler started.
    """

    def __init__(self, client: encore.Client, provider: TracerProvider, topic: str) -> None:
        self.seen: list[int] = []
        self._client = client
        self._provider = provider
        self._topic = topic
        self._results = f"{topic}-results"

    async def run(self) -> None:
        ended = asyncio.Event()
        attempts = 0

        async def bill(value: bytes, message: encore.Message) -> bytes:
            nonlocal attempts
            attempts += 1
            await asyncio.create_task(self._look())
            if attempts == 2:
                ended.set()
            if attempts <= 2:
                raise ValueError(f"attempt {attempts}")
            return b"billed"

        async def book(value: bytes, message: encore.Message) -> None:
            assert value == b"billed"
            await asyncio.create_task(self._look())
            ended.set()

        async with self._worker(self._topic, bill):
            producer = await self._client.create_producer(self._topic)
            tracer = self._provider.get_tracer("application")
            with tracer.start_as_current_span("checkout"):
                await producer.send(b"one", {"region": "eu"})
            await asyncio.wait_for(ended.wait(), _END_S)
        dead = DeadLetters(self._client, f"{self._topic}-billing-DLQ")
        report = await dead.replay(quiet=1)
        assert report.replayed == 1
        ended.clear()
        async with self._worker(self._results, book):
            async with self._worker(self._topic, bill):
                await asyncio.wait_for(ended.wait(), _END_S)

    async def _look(self) -> None:
        self.seen.append(trace.get_current_span().get_span_context().span_id)

    def _worker(
        self, topic: str, handler: Callable[..., Coroutine[Any, Any, Any]]
    ) -> encore.Worker[Any]:
        return encore.Worker(
            self._client,
            topic,
            "billing",
            handler,
            retry=encore.RetryPolicy(attempts=2, backoff=[2], letters_after=1),
            publish=encore.PublishTo(self._results) if topic == self._topic else None,
        )

    def check(self, spans: tuple[ReadableSpan, ...]) -> None:
        """Assert names, kinds, parents, links and attributes of the spans of a run."""
        topic = self._topic
        spans = tuple(sorted(spans, key=lambda span: span.start_time or 0))
        sends = [each for each in spans if each.name == f"send {topic}"]
        attempts = [each for each in spans if each.name.startswith("process ")]
        letters = [each for each in spans if "pulsar_encore.letter" in (each.attributes or {})]
        results = [each for each in spans if each.name == f"send {self._results}"]
        (checkout,) = (each for each in spans if each.name == "checkout")
        (published,) = sends  # the replay keeps the publisher's context, and makes no span
        assert len(spans) == 1 + 1 + 4 + 2 + 1
        assert {each.context.trace_id for each in spans} == {checkout.context.trace_id}
        assert published.kind is SpanKind.PRODUCER
        assert published.parent == checkout.context

        *billing, booking = attempts
        assert self.seen == [each.context.span_id for each in attempts]
        for attempt in billing:
            assert attempt.kind is SpanKind.CONSUMER
            assert _parent(attempt) == published.context.span_id
            assert _links(attempt) == [published.context.span_id]
        assert [each.status.status_code is StatusCode.ERROR for each in attempts] == [
            True,
            True,
            False,
            False,
        ]
        assert [each.name for each in attempts] == [
            f"process {topic}",
            f"process {topic}-billing-RETRY",
            f"process {topic}",
            f"process {self._results}",
        ]
        assert _all(attempts, "pulsar_encore.attempt") == [1, 2, 1, 1]
        assert _all(attempts, "pulsar_encore.settlement") == [
            "retry_letter",
            "dead_letter",
            "ack",
            "ack",
        ]
        assert _all(attempts, "error.type") == ["ValueError", "ValueError", None, None]
        assert _all(attempts, "messaging.destination.subscription.name") == ["billing"] * 4
        assert _all(attempts, "messaging.message.body.size") == [3, 3, 3, 6]
        assert _all(attempts, "messaging.destination_publish.name")[1] == full_name(topic)
        (sent_id,) = _all(sends, "messaging.message.id")
        # The C++ client does not say how large the batch of a sent message is, so the index stays.
        (received_id,) = _all(attempts[:1], "messaging.message.id")
        assert sent_id in (received_id, f"{received_id}:0")

        assert _all(letters, "pulsar_encore.letter") == ["retry", "dead"]
        for letter, attempt in zip(letters, billing, strict=False):
            assert letter.kind is SpanKind.CLIENT
            assert _parent(letter) == attempt.context.span_id
            assert _links(letter) == [published.context.span_id]

        (result,) = results
        assert _parent(result) == billing[-1].context.span_id
        assert _parent(booking) == result.context.span_id
        assert _links(booking) == [result.context.span_id]


def _parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def _links(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def _all(spans: list[ReadableSpan], name: str) -> list[Any]:
    return [(span.attributes or {}).get(name) for span in spans]
