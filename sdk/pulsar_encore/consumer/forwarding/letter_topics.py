"""The names of the letter topics (Java's unless others are configured), and their producers.

A dead-letter producer is named as in Java's client, with a random suffix, so that consumers with
the same name can dead-letter at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import string
from collections.abc import Callable
from random import SystemRandom
from typing import Any

from ...errors import EncoreError
from ...letters.letter_form import LetterForm
from ...message import Message
from ...options import ConsumerOptions
from ...options.dead_letter_policy import DeadLetterPolicy
from ...transport.interface import Transport, TransportProducer
from ...values.letter_topic_names import dead_topic_of, dead_topic_of_one
from ...values.topic_names import full_name
from ..event_publisher import ProducerEventPublisher
from .copy_options import Destination, ensure_subscription, producer_options
from .letter_producer import LetterProducer

_MAX_IN_FLIGHT = 500  # in the transport; larger bursts contend with its threads
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
        self._dead = policy.dead_letter_topic
        if self._dead is None and options.retry_enable and options.topics:
            self._dead = dead_topic_of(options.topics, self.subscription)
        self._origins: dict[str, str] = {}  # a topic of the originals, by dead letter topic
        self._closed = False

    def retry(self) -> str:
        assert self._retry is not None  # only called with `retry_enable`
        return self._retry

    def dead(self, message: Message) -> str:
        topic = self._dead or dead_topic_of_one(message.topic_name(), self.subscription)
        self._origins.setdefault(topic, message.topic_name())
        return topic

    @property
    def refuse_bytes(self) -> bool:
        """True if the transport would copy a key of bytes as text."""
        return not self._transport.capabilities.binary_keys and not self.policy.text_keys

    def reads_letters(self, topic: str) -> bool:
        return self._options.reads_letters(topic)

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
