"""Which letter topic a message goes to, and the producers of those topics.

Owns `LetterTopics`. Names are Java's unless given. A producer is made when its topic is first
needed; a dead-letter producer is named as Java names it, with a new random tail each time, so that
several consumers of one name can bury side by side.
"""

from __future__ import annotations

import asyncio
import string
from collections.abc import Awaitable, Callable
from random import SystemRandom
from typing import Any

from ..errors import EncoreError, TransportError
from ..message import Message
from ..options import ConsumerOptions, ConsumerType, InitialPosition, ProducerOptions
from ..options.letters import DeadLetterPolicy
from ..topics import dead_topic_of, dead_topic_of_one
from ..transport.base import ConsumerLink, ProducerLink
from .letter_producer import LetterProducer

_MOST_UNDER_WAY = 500  # in the engine; more in one burst contend with its own threads
_TAIL = string.ascii_letters + string.digits


class LetterTopics:
    """Names and producers.

    Args:
        options: The subscription.
        policy: Its dead-letter policy, or the default one of retry_enable.
        consumer_name: Goes into the names of dead-letter producers.
        create_producer, subscribe: The transport's.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        policy: DeadLetterPolicy,
        consumer_name: str,
        create_producer: Callable[[ProducerOptions], Awaitable[ProducerLink]],
        subscribe: Callable[[ConsumerOptions], Awaitable[ConsumerLink]],
    ) -> None:
        self.policy = policy
        self.subscription = options.subscription_name
        self._options = options
        self._consumer_name = consumer_name
        self._create_producer = create_producer
        self._subscribe = subscribe
        self._producers: dict[str, LetterProducer] = {}
        self._retry = options.retry_letter_topic
        self._dead = policy.dead_letter_topic
        if self._dead is None and options.retry_enable and options.topics:
            self._dead = dead_topic_of(options.topics, self.subscription)
        self._sources: dict[str, str] = {}

    def retry(self, message: Message) -> str:
        """The retry-letter topic; there is one for all topics of the consumer."""
        assert self._retry is not None  # only called with retry_enable
        return self._retry

    def dead(self, message: Message) -> str:
        topic = self._dead or dead_topic_of_one(message.topic_name(), self.subscription)
        self._sources.setdefault(topic, message.topic_name())
        return topic

    def producer(self, topic: str) -> LetterProducer:
        producer = self._producers.get(topic)
        if producer is None:
            dead = topic != self._retry
            producer = LetterProducer(lambda: self._create(topic, dead))
            self._producers[topic] = producer
        return producer

    async def _create(self, topic: str, dead: bool) -> ProducerLink:
        name = None
        if dead:
            await self._ensure_subscription(topic)
            tail = "".join(SystemRandom().choices(_TAIL, k=5))
            source = self._sources[topic]
            name = f"{source}-{self.subscription}-{self._consumer_name}-{tail}-DLQ"
        return await self._create_producer(
            ProducerOptions(
                topic=topic,
                producer_name=name,
                schema=self._options.schema,
                batching_enabled=False,
                chunking_enabled=True,
                # What is over the limit waits in the link, in order: it is never refused for that.
                max_pending_messages=_MOST_UNDER_WAY,
                block_if_queue_full=True,
            )
        )

    async def _ensure_subscription(self, topic: str) -> None:
        """Stock producers cannot carry an initial subscription: one consumer comes and goes."""
        name = self.policy.initial_subscription_name
        if name is None:
            return
        try:
            link = await self._subscribe(
                ConsumerOptions(
                    topics=(topic,),
                    pattern=None,
                    subscription_name=name,
                    consumer_type=ConsumerType.Shared,
                    initial_position=InitialPosition.Earliest,
                    schema=self._options.schema,
                    receiver_queue_size=1,
                )
            )
        except TransportError as error:
            if error.result == "ConsumerBusy":
                return  # somebody reads it with another type: it exists
            raise
        await link.close()

    async def close(self) -> None:
        closing: list[Any] = [producer.close() for producer in self._producers.values()]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, EncoreError):
                raise outcome
