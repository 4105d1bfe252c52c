"""The names of the letter topics (Java's unless others are configured), and their producers.

A dead-letter producer is named as in Java's client, with a random suffix, so that consumers with
the same name can dead-letter at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import string
from collections.abc import Callable, Iterable
from random import SystemRandom
from typing import Any

from ...errors import ConfigurationError, EncoreError, UnreadableError
from ...letters.letter_form import LetterForm
from ...letters.property_names import REAL_TOPIC
from ...message import Message
from ...options import ConsumerOptions
from ...options.checks import topic_name
from ...options.dead_letter_policy import DeadLetterPolicy
from ...transport.interface import Transport, TransportProducer
from ...values.letter_topic_names import dead_topic_of, dead_topic_of_one, shared_dead_topic_of
from ...values.topic_names import base_name, full_name
from ..event_publisher import ProducerEventPublisher
from .copy_options import Destination, ensure_subscription, producer_options
from .letter_producer import LetterProducer

_MAX_IN_FLIGHT = 500  # in the transport; larger bursts contend with its threads
_MAX_SUBSCRIBING = 16
_TAIL = string.ascii_letters + string.digits


class LetterTopics:
    def __init__(
        self,
        options: ConsumerOptions,
        policy: DeadLetterPolicy,
        consumer_name: str,
        transport: Transport,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self.logger_of: Callable[[str], logging.Logger] = logger_of
        self.policy = policy
        self.subscription: str = options.subscription_name
        self.new_publisher: Callable[[], ProducerEventPublisher] | None = None
        self._options = options
        self._consumer_name = consumer_name
        self._transport = transport
        self._schemas: dict[tuple[str, int], Any] = {}
        self._producers: dict[tuple[str, LetterForm], LetterProducer] = {}
        self._retry = options.retry_letter_topic
        named = policy.dead_letter_topic
        self._dead: str | None = named if isinstance(named, str) else None
        self._dead_of = named if callable(named) else None
        self._named: dict[str, str] = {}  # results of that function, by topic
        if named is None and options.retry_enable and options.topics:
            self._dead = dead_topic_of(options.topics, self.subscription)
        self._origins: dict[str, str] = {}  # a topic of the originals, by dead letter topic
        self._closed = False

    def retry(self) -> str:
        assert self._retry is not None  # only called with `retry_enable`
        return self._retry

    def dead(self, message: Message) -> str:
        """Return the name of the dead letter topic of a message. Never fails."""
        read_from = message.topic_name()
        origin = read_from if self._dead_of is None else self._origin(message)
        topic = self._named.get(origin)
        if topic is None:
            try:
                topic = self._dead_topic(origin)
            except Exception:  # of the application's function
                topic = self._named[origin] = shared_dead_topic_of(origin, self.subscription)
                self.logger_of(__name__).exception(
                    "the function dead_letter_topic of the DeadLetterPolicy failed for %s: its "
                    "dead letters go to %s",
                    origin,
                    topic,
                )
        self._origins.setdefault(topic, read_from)
        return topic

    def _origin(self, message: Message) -> str:
        """Return the topic, without partition, that a message was published to."""
        topic = message.topic_name()
        if self.reads_letters(topic):
            try:
                topic = full_name(message.properties().get(REAL_TOPIC) or topic)
            except UnreadableError:  # a letter of another client, with raw bytes
                pass
        return base_name(topic)

    def _dead_topic(self, topic: str) -> str:
        """Return the name of the dead letter topic of a topic or partition."""
        if self._dead_of is None:
            return self._dead or dead_topic_of_one(topic, self.subscription)
        topic = base_name(topic)
        if topic not in self._named:
            name = full_name(topic_name(self._dead_of(topic), f"dead_letter_topic({topic!r})"))
            if name == topic or self._options.reads_letters(name):
                raise ConfigurationError(
                    f"dead_letter_topic({topic!r}) returned {name!r}, which the consumer reads: "
                    "that is a loop. Return another name"
                )
            if self.policy.transactional and not name.startswith("persistent://"):
                raise ConfigurationError(
                    f"dead_letter_topic({topic!r}) returned {name!r}, which is not persistent, so "
                    "it has no transactions. Return another name"
                )
            self._named[topic] = name
        return self._named[topic]

    async def create_subscriptions(self, topics: Iterable[str]) -> list[str]:
        """Create the first subscription of the dead letter topics of these topics or partitions.

        Returns:
            Names of the dead letter topics.
        """
        name = self.policy.initial_subscription_name
        if name is None:
            raise ConfigurationError(
                "the DeadLetterPolicy names no initial_subscription_name: name one, such as "
                '"inspect", so that the dead letters are kept until they are read'
            )
        letters = sorted({self._dead_topic(each) for each in topics})
        slots = asyncio.Semaphore(_MAX_SUBSCRIBING)

        async def ensure(topic: str) -> None:
            async with slots:
                await ensure_subscription(self._transport, topic, name)

        await asyncio.gather(*map(ensure, letters))
        return letters

    @property
    def refuse_bytes(self) -> bool:
        """True if the transport would copy a key of bytes as text."""
        return not self._transport.capabilities.binary_keys and not self.policy.text_keys

    def reads_letters(self, topic: str) -> bool:
        retry = self._retry  # `options` would make its name for each letter
        return retry is not None and retry in (topic, base_name(topic))

    def producer(self, topic: str, form: LetterForm) -> LetterProducer:
        producer = self._producers.get((topic, form))
        if producer is None:
            assert self.new_publisher is not None  # set by `consumer_factory.assemble`
            event_publisher = self.new_publisher()
            producer = LetterProducer(
                full_name(topic),
                lambda: self._create(topic, form, event_publisher),
                event_publisher,
                self.logger_of,
            )
            self._producers[topic, form] = producer
            if self._closed:
                producer.end()
        return producer

    async def _create(
        self, topic: str, form: LetterForm, event_publisher: ProducerEventPublisher
    ) -> TransportProducer:
        name = first_subscription = None
        if topic != self._retry:
            if self.policy.initial_subscription_name is not None:
                await ensure_subscription(
                    self._transport, topic, self.policy.initial_subscription_name
                )
            # PRODUCER names the subscription too, as in Java's client: the broker creates it again
            # if the dead letter topic is deleted and created again.
            if self._transport.capabilities.initial_subscriptions:
                first_subscription = self.policy.initial_subscription_name
            tail = "".join(SystemRandom().choices(_TAIL, k=5))
            name = f"{self._origins[topic]}-{self.subscription}-{self._consumer_name}-{tail}-DLQ"
        return await self._transport.create_producer(
            await producer_options(
                Destination(topic, form, first_subscription),
                self._schema,
                self._options.crypto_key_reader,
                byte_keys=self._transport.capabilities.binary_keys,
                producer_name=name,
                # Letters over the limit wait in the transport, in order.
                max_pending_messages=_MAX_IN_FLIGHT,
                block_if_queue_full=True,
            ),
            event_publisher,
        )

    async def _schema(self, topic: str, version: int) -> Any:
        schema = self._schemas.get((topic, version))
        if schema is None:
            schema = self._schemas[topic, version] = await self._transport.schema_of(topic, version)
        return schema

    async def close(self) -> None:
        self._closed = True
        closing: list[Any] = [producer.close() for producer in self._producers.values()]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, EncoreError):
                raise outcome
