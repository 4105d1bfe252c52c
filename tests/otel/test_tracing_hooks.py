"""`Tracing` makes spans by OpenTelemetry's messaging conventions from events of a client."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pulsar_encore import ConfigurationError, LeaseLostError, Message, MessageId
from pulsar_encore.observability.observations import (
    HandlerCall,
    HandlerEnd,
    LetterWritten,
    Sending,
)
from pulsar_encore.otel import Tracing
from pulsar_encore.otel.recent_attempts import RecentAttempts
from pulsar_encore.testing import message

ORDERS = "persistent://public/default/orders"


@pytest.fixture
def tracing(provider: TracerProvider) -> Tracing:
    return Tracing(provider)


def send(
    tracing: Tracing, properties: dict[str, str] | None = None, error: BaseException | None = None
) -> dict[str, str]:
    """Send a message as a producer does, and return its properties."""
    sending = Sending(ORDERS, dict(properties or {}), payload_size=3)
    tracing.sending(sending)
    sending.message_id = None if error else MessageId(2, 4612, 7, -1)
    tracing.sent(sending, error)
    return sending.properties


def handle(
    tracing: Tracing,
    *messages: Message,
    error: Exception | None = None,
    handler: Callable[[], object] = lambda: None,
    **end: Any,
) -> None:
    """Call a handler as a worker does."""

    def run() -> None:
        call = HandlerCall("billing", messages[0].topic_name(), "billing", messages)
        tracing.handler_started(call)
        handler()
        given = {
            "result": "success" if error is None else "failure",
            "settlement": "ack" if error is None else "wait",
            "duration": 0.1,
        }
        tracing.handler_ended(call, HandlerEnd(error=error, **given | end))

    contextvars.copy_context().run(run)


def links_of(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def test_a_send_is_a_span_whose_context_travels_with_the_message(
    tracing: Tracing, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    with provider.get_tracer("application").start_as_current_span("checkout") as checkout:
        properties = send(tracing, {"region": "eu"})

    span = exporter.get_finished_spans()[0]
    assert (span.name, span.kind) == ("send orders", SpanKind.PRODUCER)
    assert span.parent == checkout.get_span_context()
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes or {}) == {
        "messaging.system": "pulsar",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": ORDERS,
        "messaging.destination.partition.id": "2",
        "messaging.message.id": "4612:7:2",
        "messaging.message.body.size": 3,
    }
    assert properties["region"] == "eu"
    assert f"{span.context.span_id:016x}" in properties["traceparent"]


def test_a_failed_send_has_an_error(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    send(tracing, error=TimeoutError("no answer"))
    span = exporter.get_finished_spans()[0]
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "no answer"
    assert (span.attributes or {})["error.type"] == "TimeoutError"
    assert [event.name for event in span.events] == ["exception"]


def test_a_forwarded_message_keeps_the_context_of_its_publisher(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    properties = send(tracing)
    assert send(tracing, properties) == properties
    published, forwarded = exporter.get_finished_spans()
    assert forwarded.kind is SpanKind.CLIENT
    assert links_of(forwarded) == [published.context.span_id]


def test_an_attempt_is_a_child_of_its_publisher_and_linked_to_it(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    received = message(b"one", topic="orders-partition-2", properties=send(tracing), attempt=3)
    handle(tracing, received)
    published, attempt = exporter.get_finished_spans()
    assert (attempt.name, attempt.kind) == ("process orders", SpanKind.CONSUMER)
    assert attempt.parent is not None
    assert attempt.parent.span_id == published.context.span_id
    assert attempt.context.trace_id == published.context.trace_id
    assert links_of(attempt) == [published.context.span_id]
    number = received.message_id()
    assert dict(attempt.attributes or {}) == {
        "messaging.system": "pulsar",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": ORDERS,
        "messaging.destination.partition.id": "2",
        "messaging.destination.subscription.name": "billing",
        "messaging.message.id": f"{number.ledger_id()}:{number.entry_id()}:{number.partition()}",
        "messaging.message.body.size": 3,
        "pulsar_encore.worker": "billing",
        "pulsar_encore.attempt": 3,
        "pulsar_encore.result": "success",
        "pulsar_encore.settlement": "ack",
    }


def test_without_the_publisher_as_parent_an_attempt_begins_a_trace(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    tracing = Tracing(provider, publisher_as_parent=False)
    handle(tracing, message(properties=send(tracing)))
    published, attempt = exporter.get_finished_spans()
    assert attempt.parent is None
    assert attempt.context.trace_id != published.context.trace_id
    assert links_of(attempt) == [published.context.span_id]


def test_the_span_around_the_start_of_a_worker_is_no_parent(
    tracing: Tracing, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    with provider.get_tracer("application").start_as_current_span("startup"):
        handle(tracing, message())
    assert exporter.get_finished_spans()[0].parent is None


def test_an_attempt_at_a_list_is_linked_to_each_publisher(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    received = [message(properties=send(tracing)) for _ in range(3)] + [message()]
    handle(tracing, *received)
    *published, attempt = exporter.get_finished_spans()
    assert attempt.parent is None
    assert links_of(attempt) == [span.context.span_id for span in published]
    assert "messaging.message.id" in (attempt.links[0].attributes or {})
    assert (attempt.attributes or {})["messaging.batch.message_count"] == 4
    assert "messaging.message.id" not in (attempt.attributes or {})


def test_a_handler_runs_in_the_span_and_sees_the_baggage(tracing: Tracing) -> None:
    seen = []

    def handler() -> None:
        span = trace.get_current_span().get_span_context()
        seen.append((f"{span.trace_id:032x}", baggage.get_baggage("tenant")))

    token = context.attach(baggage.set_baggage("tenant", "blue"))
    properties = send(tracing)
    context.detach(token)
    handle(tracing, message(properties=properties), handler=handler)
    assert seen == [(properties["traceparent"].split("-")[1], "blue")]
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_failed_attempt_has_the_error_and_the_retry_delay(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    handle(tracing, message(), error=ConfigurationError("no price"), retry_delay=4.0)
    span = exporter.get_finished_spans()[0]
    attributes = span.attributes or {}
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no price")
    assert attributes["error.type"] == (
        f"{ConfigurationError.__module__}.{ConfigurationError.__qualname__}"
    )
    assert attributes["pulsar_encore.retry_delay"] == 4.0
    assert attributes["pulsar_encore.settlement"] == "wait"


@pytest.mark.parametrize("result", ["lost", "drained"])
def test_a_lost_or_drained_attempt_is_no_error(
    tracing: Tracing, exporter: InMemorySpanExporter, result: str
) -> None:
    handle(tracing, message(), result=result, settlement="none")
    span = exporter.get_finished_spans()[0]
    assert span.status.status_code is StatusCode.UNSET
    assert (span.attributes or {})["pulsar_encore.result"] == result
    assert span.events == ()


def test_an_error_that_has_no_text_still_ends_the_span(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    handle(tracing, message(), error=Mute())
    assert exporter.get_finished_spans()[0].status.status_code is StatusCode.ERROR


def test_a_letter_is_a_child_of_its_attempt_and_linked_to_the_publisher(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    properties = send(tracing)
    received = message(properties=properties)
    handle(tracing, received, error=ValueError(), settlement="dead_letter")
    topic = f"{ORDERS}-billing-DLQ"
    letter = LetterWritten(
        kind="dead",
        message=received,
        topic=topic,
        properties=properties,
        subscription="billing",
    )
    tracing.letter_written(letter)
    published, attempt, written = exporter.get_finished_spans()
    assert (written.name, written.kind) == ("send orders-billing-DLQ", SpanKind.CLIENT)
    assert written.parent == attempt.context
    assert links_of(written) == [published.context.span_id]
    assert (written.attributes or {})["pulsar_encore.letter"] == "dead"


def test_the_newest_attempts_are_remembered_for_letters() -> None:
    attempts = RecentAttempts(limit=2)
    ids = [MessageId(-1, 1, entry, -1) for entry in range(3)]
    for each in ids:
        attempts.add("billing", each, trace.INVALID_SPAN_CONTEXT)
    assert attempts.pop("billing", ids[0]) is None
    assert attempts.pop("billing", ids[2]) is trace.INVALID_SPAN_CONTEXT
    assert attempts.pop("audit", ids[1]) is None


GARBAGE = (
    {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
    {"traceparent": "💥" * 3, "baggage": "=;,=%%%\x00", "tracestate": "\ud7ff==,"},
    {"baggage": "x" * 100_000},
    {"traceparent": ""},
)


@pytest.mark.parametrize("properties", GARBAGE)
def test_garbage_in_the_properties_does_not_break_a_message(
    tracing: Tracing, exporter: InMemorySpanExporter, properties: dict[str, str]
) -> None:
    handle(tracing, message(properties=properties))
    assert exporter.get_finished_spans()[0].links == ()
    assert send(tracing, properties).items() >= properties.items()


class Broken(TraceContextTextMapPropagator):
    def extract(self, *args: Any, **kwargs: Any) -> Any:
        raise KeyError("extract")

    def inject(self, *args: Any, **kwargs: Any) -> None:
        raise KeyError("inject")


def test_a_propagator_that_raises_is_logged_once_and_breaks_no_message(
    provider: TracerProvider, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    tracing = Tracing(provider, Broken())
    with caplog.at_level(logging.WARNING, "pulsar_encore"):
        for _ in range(3):
            assert send(tracing) == {}
            handle(tracing, message(properties={"traceparent": "any"}))
    assert len(exporter.get_finished_spans()) == 6
    assert len(caplog.records) == 2


def test_without_sampling_the_context_still_travels(exporter: InMemorySpanExporter) -> None:
    tracing = Tracing(TracerProvider(sampler=ALWAYS_OFF))
    properties = send(tracing)
    assert int(properties["traceparent"][-2:], 16) & 1 == 0
    handle(tracing, message(properties=properties))
    assert exporter.get_finished_spans() == ()


def test_without_an_sdk_the_context_of_the_publisher_reaches_the_handler() -> None:
    tracing, seen = Tracing(trace.NoOpTracerProvider()), []
    properties = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    received = message(properties=properties)
    handle(tracing, received, handler=lambda: seen.append(trace.get_current_span()))
    assert seen[0].get_span_context().span_id == 0xB7AD6B7169203331


class Reading:
    """Stands for a consumer."""

    def subscription_name(self) -> str:
        return "billing"


CONSUMER: Any = Reading()


async def test_a_loop_makes_the_same_span(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    with tracing.process(message(properties=send(tracing)), CONSUMER) as span:
        await asyncio.sleep(1)
        assert trace.get_current_span() is span
    assert not trace.get_current_span().get_span_context().is_valid
    published, attempt = exporter.get_finished_spans()
    assert attempt.parent is not None
    assert attempt.parent.span_id == published.context.span_id
    assert (attempt.attributes or {})["pulsar_encore.result"] == "success"


def test_in_a_loop_the_current_span_is_the_parent(
    tracing: Tracing, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    received = message(properties=send(tracing))
    with provider.get_tracer("application").start_as_current_span("request") as request:
        with tracing.process(received, CONSUMER):
            pass
    published, attempt, _ = exporter.get_finished_spans()
    assert attempt.parent == request.get_span_context()
    assert links_of(attempt) == [published.context.span_id]


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (ValueError("bad"), "failure"),
        (LeaseLostError("another"), "lost"),
        (asyncio.CancelledError(), "lost"),
    ],
)
def test_an_error_in_a_loop_is_recorded_once_and_raised(
    tracing: Tracing, exporter: InMemorySpanExporter, error: BaseException, result: str
) -> None:
    with pytest.raises(type(error)), tracing.process(message(), CONSUMER):
        raise error
    span = exporter.get_finished_spans()[0]
    assert (span.attributes or {})["pulsar_encore.result"] == result
    assert len(span.events) == (result == "failure")


def test_a_loop_over_lists_makes_one_span(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    with tracing.process([message(), message()], CONSUMER):
        pass
    attributes = exporter.get_finished_spans()[0].attributes or {}
    assert attributes["messaging.batch.message_count"] == 2


@pytest.mark.parametrize("received", [[], b"one", None, [b"one"]])
def test_process_needs_messages(tracing: Tracing, received: Any) -> None:
    with (
        pytest.raises(ConfigurationError, match="a message, a lease or a list"),
        tracing.process(received, CONSUMER),
    ):
        pass


@pytest.mark.parametrize(
    "arguments", [{"tracer_provider": 1}, {"propagator": 1}, {"publisher_as_parent": 1}]
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(arguments))):
        Tracing(**arguments)


def test_a_missing_library_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import pulsar_encore\n"
        "try:\n    from pulsar_encore.otel import Tracing\n"
        "except pulsar_encore.ConfigurationError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "extra otel" in done.stdout, done.stderr


class _Failing(TracerProvider, SpanProcessor):
    """A provider or a span processor that raises."""

    def get_tracer(self, *args: Any, **options: Any) -> Any:
        raise_ = Mock()
        raise_.start_span.side_effect = RuntimeError("tracer")
        return raise_

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("processor")


@pytest.mark.parametrize("failing", ["tracer", "processor"])
def test_process_survives_a_tracer_that_raises(
    failing: str, provider: TracerProvider, caplog: pytest.LogCaptureFixture
) -> None:
    provider.add_span_processor(_Failing())
    tracing = Tracing(_Failing() if failing == "tracer" else provider)
    around = context.get_current()
    for _ in range(2):
        with tracing.process(message(), CONSUMER):
            pass
        with pytest.raises(ValueError, match="handler"), tracing.process(message(), CONSUMER):
            raise ValueError("handler")
    assert context.get_current() == around
    assert len(caplog.records) == 1
