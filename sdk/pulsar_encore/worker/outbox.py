"""Messages that handlers publish: each is stored before the received message is acked."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import (
    ClosedError,
    ConfigurationError,
    EncoreError,
    PulsarException,
)
from ..eventloop.shielded_work import seen, shielded
from ..options import BatchingType
from ..options.checks import string_map, topic_name
from ..producer import begin_sends, prepared
from ..transaction_group import leaves_producer
from ..transport.interface import MESSAGE_RESULTS
from ..values.outgoing_message import OutgoingMessage
from ..values.topic_names import full_name

if TYPE_CHECKING:
    from ..client import Client
    from ..producer import Producer
    from ..transaction import Transaction


@dataclass(frozen=True, slots=True)
class PublishTo:
    """The topic and the schema of the results of a handler.

    Args:
        topic: Short or full name.
        schema: The schema that encodes the results, such as `Json(Invoice)`. None for results that
            are bytes.

    Raises:
        ConfigurationError: if `topic` is not a topic name.
    """

    topic: str
    schema: Any = None

    def __post_init__(self) -> None:
        topic_name(self.topic, "topic")


@dataclass(frozen=True, slots=True)
class Out:
    """One result of a handler, with a key or properties.

    Args:
        value: The object that the schema of `publish` encodes; bytes without a schema.
        key: Partition key, or None.
        properties: Application properties.

    Example:
        ```python
        async def invoice(order: Order) -> pulsar_encore.Out:
            return pulsar_encore.Out(Invoice(order.id), key=order.customer)
        ```
    """

    value: Any
    key: str | bytes | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


class Outgoing(NamedTuple):
    topic: str
    out: Out


class Prepared(NamedTuple):
    """An encoded message, with the full name of its topic."""

    topic: str
    message: OutgoingMessage

    @property
    def size(self) -> int:
        """Size of the payload in bytes."""
        return len(self.message.payload or b"")


def out_of(result: Any) -> Out:
    return result if isinstance(result, Out) else Out(result)


def checked_out(value: Any, key: str | bytes | None, properties: Mapping[str, str] | None) -> Out:
    """Return the arguments of `Message.publish` as an `Out`; raise if they are wrong."""
    if not isinstance(key, str | bytes | None):
        raise ConfigurationError(f"key must be a str, bytes or None, got {type(key).__name__}")
    return Out(
        value, key, string_map(None if properties is None else dict(properties), "properties")
    )


class Outbox:
    """The producers of one worker, created at their first message.

    A producer that has ended for good, such as on a topic that was terminated and created again, is
    replaced.

    Args:
        publish: The topic of results, with its schema.
    """

    def __init__(self, client: Client, publish: PublishTo | None) -> None:
        self._client = client
        self._schemas = {} if publish is None else {full_name(publish.topic): publish.schema}
        self._producers: dict[str, asyncio.Task[Producer]] = {}
        self._closing: set[Producer] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.published: int = 0

    async def store(self, messages: Sequence[Outgoing]) -> None:
        """Publish messages, and wait until the broker has stored all of them.

        Raises:
            EncoreError: if one was not stored. Others may be stored then.
        """
        if len(messages) == 1:
            await self._store(messages[0])
            return
        # In order, because a send is posted in the first step of its task.
        outcomes = await asyncio.gather(*map(self._store, messages), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _store(self, message: Outgoing) -> None:
        topic, out = full_name(message.topic), message.out
        creating = self._producer(topic)
        try:
            # Shielded, because other handlers wait for the same producer.
            producer = await shielded(creating)
            await producer.send(out.value, dict(out.properties) or None, out.key)
        except BaseException as error:
            self._replace_if_ended(topic, creating, error)
            raise
        self.published += 1

    async def prepare(self, messages: Sequence[Outgoing]) -> list[Prepared]:
        """Encode messages for `store_in`.

        Raises:
            EncoreError: if one does not fit its schema, is too large, or its producer cannot be
                made.
        """
        encoded = []
        for message in messages:
            topic, out = full_name(message.topic), message.out
            creating = self._producer(topic)
            try:
                producer = await shielded(creating)
                properties = dict(out.properties) or None
                encoded.append(Prepared(topic, prepared(producer, out.value, properties, out.key)))
            except BaseException as error:
                self._replace_if_ended(topic, creating, error)
                raise
        return encoded

    async def store_in(self, txn: Transaction, messages: Iterable[Prepared]) -> None:
        """Publish prepared messages in a transaction, and wait until all of them are stored.

        Raises:
            EncoreError: if one was not stored. No send is left in flight.
        """
        by_topic: dict[str, list[OutgoingMessage]] = {}
        for topic, message in messages:
            by_topic.setdefault(topic, []).append(message)
        outcomes = await asyncio.gather(
            *(self._store_topic_in(txn, topic, each) for topic, each in by_topic.items()),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _store_topic_in(
        self, txn: Transaction, topic: str, messages: Sequence[OutgoingMessage]
    ) -> None:
        creating = self._producer(topic)
        try:
            producer = await shielded(creating)
            sends = begin_sends(producer, messages, txn)
            with suppress(EncoreError):  # the error of a message, which is raised below
                await producer.flush()
            for outcome in await asyncio.gather(*sends, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        except BaseException as error:
            self._replace_if_ended(topic, creating, error, in_transaction=True)
            raise

    def _producer(self, topic: str) -> asyncio.Task[Producer]:
        """Return the producer of a topic, or the task that makes it."""
        if self._is_closed:  # a handler was left behind
            raise ClosedError("the worker has ended")
        creating = self._producers.get(topic)
        if creating is None:
            creating = asyncio.ensure_future(self._create(topic))
            self._producers[topic] = creating
        return creating

    def _replace_if_ended(
        self,
        topic: str,
        creating: asyncio.Task[Producer],
        error: BaseException,
        *,
        in_transaction: bool = False,
    ) -> None:
        """Let the next message create a producer, if there is none or this one may have ended."""
        if not creating.done() or self._producers.get(topic) is not creating or self._is_closed:
            return  # another message has replaced it, or the close has failed this one
        if creating.cancelled() or creating.exception() is not None:
            del self._producers[topic]
        elif (
            isinstance(error, PulsarException)
            and error.result not in MESSAGE_RESULTS
            and not (in_transaction and leaves_producer(error))
        ):
            earlier = creating.result()
            self._closing.add(earlier)  # the outbox may be closed before the replacement is made
            self._producers[topic] = asyncio.ensure_future(self._renew(topic, earlier))

    async def _create(self, topic: str) -> Producer:
        # By key, so that several workers with order "key" can read the results.
        return await self._client.create_producer(
            topic,
            schema=self._schemas.get(topic),
            block_if_queue_full=True,
            batching_type=BatchingType.KeyBased,
        )

    async def _renew(self, topic: str, earlier: Producer) -> Producer:
        """Return a new producer, or the earlier one if none can be created.

        If one partition has ended, no producer of the topic can be created, and the earlier one
        still serves the other partitions.
        """
        try:
            producer = await self._create(topic)
        except EncoreError:
            self._closing.discard(earlier)
            return earlier
        self._in_background(self._close_later(earlier))
        return producer

    async def _close_later(self, producer: Producer) -> None:
        """Close a producer after the messages of other handlers: one partition may have ended."""
        with suppress(EncoreError):
            await producer.flush()
        await self._close(producer)

    async def _close(self, producer: Producer) -> None:
        with suppress(EncoreError):
            await producer.close()
        self._closing.discard(producer)

    def _in_background(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(closing)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        creating = list(self._producers.values())
        self._end()
        await asyncio.gather(*creating, return_exceptions=True)
        made = self._end()
        await asyncio.gather(*map(self._close, made), *self._background, return_exceptions=True)

    def _end(self) -> set[Producer]:
        """Create no more producers, and return those that have to be closed."""
        self._is_closed = True
        for creating in self._producers.values():
            if not creating.done():
                seen(creating).cancel()
            elif not creating.cancelled() and creating.exception() is None:
                self._closing.add(creating.result())
        return self._closing

    def close_soon(self) -> None:
        """Close the producers in the background. The client does not wait for them."""
        for each in self._end():
            self._in_background(self._close(each))
            each.abandon()
