"""Messages that handlers publish: each is stored before the received message is acked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ConfigurationError
from ..options.checks import string_map, topic_name
from ..values.topic_names import full_name

if TYPE_CHECKING:
    from ..client import Client
    from ..producer import Producer


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

    Args:
        publish: The topic of results, with its schema.
    """

    def __init__(self, client: Client, publish: PublishTo | None) -> None:
        self._client = client
        self._schemas = {} if publish is None else {full_name(publish.topic): publish.schema}
        self._producers: dict[str, asyncio.Task[Producer]] = {}
        self._closing: list[Producer] = []
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
        topic, out = message
        producer = await self._producer(full_name(topic))
        await producer.send(out.value, dict(out.properties) or None, out.key)
        self.published += 1

    async def _producer(self, topic: str) -> Producer:
        creating = self._producers.get(topic)
        if creating is None:
            creating = asyncio.ensure_future(self._create(topic))
            self._producers[topic] = creating
        try:
            # Shielded, because other handlers wait for the same producer.
            return await asyncio.shield(creating)
        except BaseException:
            if creating.done() and self._producers.get(topic) is creating:
                if creating.cancelled() or creating.exception() is not None:
                    del self._producers[topic]  # the next message tries again
            raise

    async def _create(self, topic: str) -> Producer:
        return await self._client.create_producer(
            topic, schema=self._schemas.get(topic), block_if_queue_full=True
        )

    async def close(self) -> None:
        producers, self._producers = self._producers, {}
        for creating in producers.values():
            if not creating.done():
                creating.cancel()
        outcomes = await asyncio.gather(*producers.values(), return_exceptions=True)
        self._closing = [each for each in outcomes if not isinstance(each, BaseException)]
        await asyncio.gather(*(each.close() for each in self._closing), return_exceptions=True)

    def abandon(self) -> None:
        """Mark the producers as closed, because the broker does not answer to their close."""
        for each in self._closing:
            each.abandon()
