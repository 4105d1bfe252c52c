"""`Tracing`: the spans of messages that are sent and processed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from ..consumer.leases.lease import Lease
from ..errors import ConfigurationError, EncoreError, LeaseLostError
from ..letters.id_text import id_text
from ..message import Message, size_of
from ..observability.error_types import error_type
from ..observability.observer import Observer
from ..version import VERSION
from . import attribute_names as names
from .message_attributes import message_attributes, span_name, start_attributes
from .recent_attempts import RecentAttempts
from .trace_context import NO_CONTEXT, TraceContextProperties, publisher_of

if TYPE_CHECKING:
    from ..consumer.consumer import Consumer
    from ..observability.observations import HandlerCall, HandlerEnd, LetterWritten, Sending

_log: Final = logging.getLogger("pulsar_encore.otel")

# No letter follows these; the other settlements may write one later.
_WITHOUT_LETTER: Final = frozenset({"ack", "discard", "wait", "none"})


class _Process(NamedTuple):
    span: Span
    context: Context


class Tracing(Observer):
    """Makes OpenTelemetry spans for the messages of a client: `Client(observers=[Tracing()])`.

    A producer makes the span `send orders` and puts its trace context into the properties of the
    message. A worker makes the span `process orders` for each attempt, and its handler runs in that
    span. The span is linked to the publisher's span. Letters and replayed messages keep the
    publisher's trace context.

    Args:
        tracer_provider: Makes the spans; None for the global provider.
        propagator: Reads and writes the trace context; None for the global propagator, which is W3C
            Trace Context with baggage unless the program sets another one.
        publisher_as_parent: If True, the publisher's span is also the parent of an attempt at one
            message, so one trace shows the whole way of a message. If False, each attempt begins a
            trace of its own that is linked to the publisher's.

    Raises:
        ConfigurationError: if an argument has the wrong type, or `opentelemetry-api` is missing.

    Example:
        ```python
        client = encore.Client(url, observers=[otel.Tracing()])
        ```
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        propagator: TextMapPropagator | None = None,
        *,
        publisher_as_parent: bool = True,
    ) -> None:
        if tracer_provider is not None and not hasattr(tracer_provider, "get_tracer"):
            raise ConfigurationError(
                "tracer_provider must be an opentelemetry.trace.TracerProvider, got "
                f"{type(tracer_provider).__name__}"
            )
        if propagator is not None and not (
            hasattr(propagator, "extract") and hasattr(propagator, "inject")
        ):
            raise ConfigurationError(
                f"propagator must be a TextMapPropagator, got {type(propagator).__name__}"
            )
        if not isinstance(publisher_as_parent, bool):
            raise ConfigurationError(
                f"publisher_as_parent must be True or False, got {publisher_as_parent!r}"
            )
        self._tracer = trace.get_tracer("pulsar_encore", VERSION, tracer_provider)
        self._properties = TraceContextProperties(propagator)
        self._publisher_as_parent = publisher_as_parent
        self._attempts = RecentAttempts()
        self._logged: set[str] = set()

    # Producers

    def sending(self, sending: Sending) -> None:
        current = contexts.get_current()
        creation = publisher_of(self._properties.read(sending.properties))
        is_forwarded = creation.is_valid
        span = self._tracer.start_span(
            span_name("send", sending.topic),
            current,
            # By the conventions, a span is a PRODUCER only if consumers link to it.
            SpanKind.CLIENT if is_forwarded else SpanKind.PRODUCER,
            start_attributes("send", sending.topic),
            [Link(creation)] if is_forwarded else None,
        )
        sending.state[self] = span
        if not is_forwarded:
            self._properties.write(sending.properties, trace.set_span_in_context(span, current))

    def sent(self, sending: Sending, error: BaseException | None) -> None:
        span: Span | None = sending.state.pop(self, None)
        if span is None:
            return
        try:
            if span.is_recording():
                span.set_attribute(names.BODY_SIZE, sending.payload_size)
                message_id = sending.message_id
                if message_id is not None:
                    span.set_attribute(names.MESSAGE_ID, id_text(message_id))
                    if message_id.partition() >= 0:
                        span.set_attribute(names.PARTITION, str(message_id.partition()))
                if error is not None:
                    _record(span, error)
        finally:
            span.end()

    # Workers

    def handler_started(self, call: HandlerCall) -> None:
        # The current context is that of the program that started the worker. It is no parent.
        process = self._start(call.messages, call.topic, call.subscription, NO_CONTEXT)
        call.state[self] = process.span
        process.span.set_attribute(names.WORKER, call.worker)
        # Without `detach`: the call has a context of its own, which ends with it.
        contexts.attach(process.context)

    def handler_ended(self, call: HandlerCall, end: HandlerEnd) -> None:
        span: Span | None = call.state.pop(self, None)
        if span is None:
            return
        try:
            if span.is_recording():
                span.set_attribute(names.RESULT, end.result)
                span.set_attribute(names.SETTLEMENT, end.settlement)
                if end.retry_delay is not None:
                    span.set_attribute(names.RETRY_DELAY, end.retry_delay)
                if end.result == "failure":
                    _record(span, end.error)
                # `settlement` holds for most messages of a list: letters may follow for the others.
                if end.settlement in _WITHOUT_LETTER and (
                    len(call.messages) == 1 or end.result == "success"
                ):
                    self._forget(call.messages, call.subscription)
        finally:
            span.end()

    def letter_written(self, letter: LetterWritten) -> None:
        attempt = self._attempts.pop(letter.subscription, letter.message.message_id())
        publisher = publisher_of(self._properties.read(letter.properties))
        parent = publisher if attempt is None else attempt
        span = self._tracer.start_span(
            span_name("send", letter.topic),
            trace.set_span_in_context(trace.NonRecordingSpan(parent), NO_CONTEXT),
            # Not a PRODUCER: the letter keeps the publisher's trace context.
            SpanKind.CLIENT,
            {**start_attributes("send", letter.topic), names.LETTER: letter.kind},
            [Link(publisher)] if publisher.is_valid else None,
        )
        if span.is_recording():
            span.set_attribute(names.BODY_SIZE, size_of(letter.message))
        span.end()

    # Consumers

    @contextmanager
    def process(
        self,
        received: Message[Any] | Lease[Any] | Sequence[Message[Any]],
        consumer: Consumer[Any],
    ) -> Iterator[Span]:
        """Run a block in the span of an attempt, as a worker runs its handler.

        If a span is already current, such as that of an HTTP request, it is the parent, and the
        publisher's span is only linked.

        Args:
            received: A message, a lease, or the messages of a list.
            consumer: The consumer that received them.

        Yields:
            The span, for more attributes.

        Example:
            ```python
            async for message in consumer:
                with tracing.process(message, consumer):
                    await bill(message.value())
                    await message.ack()
            ```
        """
        messages = _messages_of(received)
        subscription = consumer.subscription_name()
        topic = messages[0].topic_name()
        around = contexts.get_current()
        try:
            span, context = self._start(messages, topic, subscription, around)
            if isinstance(received, Lease):
                span.set_attribute(names.ATTEMPT, received.attempt)
        except Exception:
            self._log_once("start")
            span, context = trace.INVALID_SPAN, around
        token = contexts.attach(context)
        try:
            yield span
        except BaseException as error:
            # Another consumer has the message; or the program is ending. Neither is an error.
            is_failure = isinstance(error, Exception) and not isinstance(error, LeaseLostError)
            if is_failure:
                _record(span, error)
            span.set_attribute(names.RESULT, "failure" if is_failure else "lost")
            raise
        else:
            span.set_attribute(names.RESULT, "success")
        finally:
            contexts.detach(token)
            try:
                span.end()
            except Exception:
                self._log_once("end")

    def _log_once(self, action: str) -> None:
        """Log the current exception of a tracer or a span processor.

        The error of a tracer must not look like a failure of the block, whose message may be acked.
        """
        if action not in self._logged:
            self._logged.add(action)
            _log.exception(
                "the tracer failed to %s a span; messages continue without it, and this is logged "
                "once",
                action,
            )

    def _start(
        self, messages: Sequence[Message], topic: str, subscription: str, base: Context
    ) -> _Process:
        """Start the span of an attempt, and return it with the context in which the handler runs.

        `base` is the context around the attempt.
        """
        attributes = start_attributes("process", topic, subscription)
        links: list[Link] = []
        properties: dict[str, str] = {}
        if len(messages) == 1:
            properties = _properties_of(messages[0])
            context = self._properties.read(properties, base)
            publisher = publisher_of(context, base)
            if publisher.is_valid:
                links.append(Link(publisher))
            around = trace.get_current_span(base)
            if around.get_span_context().is_valid or not self._publisher_as_parent:
                context = trace.set_span_in_context(around, context)
        else:
            context = base
            attributes[names.MESSAGE_COUNT] = len(messages)
            for message in messages:
                publisher = publisher_of(self._properties.read(_properties_of(message)))
                if publisher.is_valid:
                    id_attribute = {names.MESSAGE_ID: id_text(message.message_id())}
                    links.append(Link(publisher, id_attribute))
        name = span_name("process", topic)
        span = self._tracer.start_span(name, context, SpanKind.CONSUMER, attributes, links)
        if span.is_recording():
            for message in messages:
                self._attempts.add(subscription, message.message_id(), span.get_span_context())
            if len(messages) == 1:
                span.set_attributes(message_attributes(messages[0], properties, subscription))
        return _Process(span, trace.set_span_in_context(span, context))

    def _forget(self, messages: Sequence[Message], subscription: str) -> None:
        for message in messages:
            self._attempts.pop(subscription, message.message_id())


def _messages_of(received: object) -> Sequence[Message]:
    if isinstance(received, Lease):
        return (received.message,)
    if isinstance(received, Message):
        return (received,)
    if isinstance(received, Sequence) and received and isinstance(received[0], Message):
        return cast("Sequence[Message]", received)
    raise ConfigurationError(
        f"process needs a message, a lease or a list of messages, got {type(received).__name__}"
    )


def _properties_of(message: Message) -> dict[str, str]:
    try:
        return message.properties()
    except EncoreError:
        return {}  # the stock transport cannot read properties that are no text


def _record(span: Span, error: BaseException | None) -> None:
    """Mark a span as failed. A cancellation is not an error."""
    if error is None:
        span.set_status(Status(StatusCode.ERROR))
    elif isinstance(error, Exception):
        span.set_attribute(names.ERROR_TYPE, error_type(error))
        try:
            text = str(error)
            span.record_exception(error)
        except Exception:
            text = ""  # the error of an application may fail to make its text
        span.set_status(Status(StatusCode.ERROR, text or None))
