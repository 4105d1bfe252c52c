"""Requests of the driver to the brokers: topics, last messages, messages by time, ledgers.

For requests such as GetLastMessageId, `Cluster` keeps a non-durable subscription per topic. It gets
no permits.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from ...client import Client, transport_of
from ...errors import (
    ConfigurationError,
    ConsumerBusy,
    NotSupportedError,
    TopicNotFound,
    TransportError,
)
from ...options import ConsumerCryptoFailureAction, ConsumerType, Subscription
from ...transport.interface import TransportConsumer
from ...values.message_id import MessageId
from ...values.topic_names import base_name, partition_of
from ..admin import Admin
from ..batch_plan import LedgerSize
from ..offsets import EARLIEST, Position
from ..source_options import ReadOptions

log: Final = logging.getLogger("pulsar_encore.spark")

T = TypeVar("T")

_MAX_CONCURRENT_REQUESTS: Final = 50
_SMOOTHING: Final = 4
_READ_TIMEOUT_S: Final = 30.0


class Cluster:
    """The topics of one read, as the brokers report them. Used on the runtime's loop only."""

    def __init__(self, client: Client, options: ReadOptions) -> None:
        self._client = client
        self._transport = transport_of(client)
        self._options = options
        has_admin = options.connection.admin_url is not None
        self.admin: Final = Admin(options.connection) if has_admin else None
        self._probes: dict[str, TransportConsumer] = {}
        self._limit = asyncio.Semaphore(_MAX_CONCURRENT_REQUESTS)
        self._has_answered = False
        #: Messages per entry, by topic: a moving average over the last entries.
        self.per_entry: dict[str, float] = {}

    async def topics(self) -> dict[str, int]:
        """Return the full names of the topics to read, with the partition number or -1."""
        wanted = self._options.topics
        if wanted.pattern is not None:
            found = await self._transport.topics_matching(wanted.pattern)
            bases = list(dict.fromkeys(map(base_name, found)))
        else:
            bases = list(wanted.names)
        partitions = await self._request_each(bases, self._partitions_of)
        chosen = dict(wanted.partitions)
        topics: dict[str, int] = {}
        for base in bases:
            topics |= {
                topic: number
                for topic, number in partitions[base].items()
                if base not in chosen or number in chosen[base]
            }
            for number in chosen.get(base, ()):
                if number not in partitions[base].values():
                    has_any = -1 not in partitions[base].values()
                    raise ConfigurationError(
                        f"assign: {base} has no partition {number}; it has "
                        f"{len(partitions[base]) if has_any else 'none'}"
                    )
        return topics

    @property
    def _may_be_missing(self) -> bool:
        """True if a missing topic may be created later, and is no error."""
        return self._options.wait_for_topics or self._options.topics.pattern is not None

    async def _partitions_of(self, topic: str) -> dict[str, int]:
        if topic.startswith("non-persistent://"):
            raise ConfigurationError(
                f"{topic} is not stored: a non-persistent topic cannot be read again"
            )
        if base_name(topic) != topic:
            return {topic: partition_of(topic)}
        try:
            names = await self._transport.topic_partitions(topic, create=False)
        except TopicNotFound as error:
            if self._may_be_missing:
                return {}
            raise _missing(topic) from error
        return {name: partition_of(name) for name in names}

    async def last(self, topics: Iterable[str]) -> dict[str, Position]:
        """Return the position of the last message of each topic; `EARLIEST` for an empty topic.

        A missing topic is left out if it may be created later, and is an error otherwise.
        """
        found = await self._request_each(topics, self._last)
        return {topic: position for topic, position in found.items() if position is not None}

    async def _last(self, topic: str) -> Position | None:
        try:
            last = await self._request_last_id(topic)
        except TopicNotFound as error:
            await self.forget(topic)
            if self._may_be_missing:
                return None
            raise _missing(topic) from error
        except TransportError as error:
            if error.retryable:
                # A new consumer tries at once; the backoff of this one is longer than ours.
                await self.forget(topic)
            raise
        if last.entry_id() < 0:
            return EARLIEST
        size = max(1, last.batch_size or last.batch_index() + 1)
        known = self.per_entry.get(topic)
        self.per_entry[topic] = size if known is None else known + (size - known) / _SMOOTHING
        return Position(last.ledger_id(), last.entry_id())

    async def _request_last_id(self, topic: str) -> MessageId:
        try:
            return await (await self._probe(topic)).last_message_id()
        except NotSupportedError:
            # On the stock transport, read the last message instead.
            reader = await self._client.create_reader(
                topic,
                MessageId.latest,
                start_message_id_inclusive=True,
                receiver_queue_size=1,
                crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
            )
        try:
            if not await reader.has_message_available():
                return MessageId.earliest
            return (await reader.read_next(timeout=_READ_TIMEOUT_S)).message_id()
        finally:
            await reader.close()

    async def _probe(self, topic: str) -> TransportConsumer:
        probe = self._probes.get(topic)
        if probe is None:
            probe = await self._transport.subscribe(
                Subscription(
                    topics=(topic,),
                    subscription_name=self._subscription_name("probe"),
                    consumer_type=ConsumerType.Exclusive,
                    receiver_queue_size=1,
                    durable=False,
                    start_message_id=MessageId.latest,
                    force_topic_creation=False,
                )
            )
            self._probes[topic] = probe
        return probe

    def _subscription_name(self, purpose: str) -> str:
        return f"{self._options.reading.role_prefix}-{purpose}-{uuid.uuid4().hex[:10]}"

    async def first_at(self, topic: str, time_ms: int) -> Position | None:
        """Return the first entry published at `time_ms` or later by the producer's clock."""
        reader = await self._client.create_reader(
            topic,
            MessageId.earliest,
            receiver_queue_size=1,
            subscription_role_prefix=self._options.reading.role_prefix,
            # Encryption covers only the payload. Planning reads ids and times and needs no keys.
            crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
        )
        try:
            await reader.seek(time_ms)
            # The broker seeks to an entry near that time.
            while await reader.has_message_available():
                [message, *_] = await reader.read_entry(timeout=_READ_TIMEOUT_S)
                if message.publish_timestamp() >= time_ms:
                    here = message.message_id()
                    here = here.first_chunk or here
                    return Position(here.ledger_id(), here.entry_id())
            return None
        finally:
            await reader.close()

    async def ledgers(self, topics: Iterable[str]) -> dict[str, tuple[LedgerSize, ...]]:
        """Return the stored ledgers by topic; {} without a web service."""
        admin = self.admin
        if admin is None:
            return {}

        async def request(topic: str) -> tuple[LedgerSize, ...]:
            try:
                return (await admin.ledgers(topic)).ledgers
            except TopicNotFound:
                if self._may_be_missing:
                    return ()  # deleted since the topics were listed
                raise

        return await self._request_each(topics, request)

    async def _request_each(
        self, topics: Iterable[str], request: Callable[[str], Awaitable[T]]
    ) -> dict[str, T]:
        """Send a limited number of requests at a time; raise the first error at the end."""

        async def request_one(topic: str) -> T:
            async with self._limit:
                return await request(topic)

        names = list(topics)
        answers = await asyncio.gather(*map(request_one, names), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return {
            name: answer
            for name, answer in zip(names, answers, strict=True)
            if not isinstance(answer, BaseException)
        }

    async def with_retries(self, request: Callable[[], Awaitable[T]], doing: str) -> T:
        """Retry a request after retryable errors, as often as the `fetchOffset.*` options allow.

        Until a broker has answered once, all attempts together take no longer than the operation
        timeout: the URL may be wrong, and the user who started the query waits for the error.
        """
        options = self._options
        clock = asyncio.get_running_loop().time
        deadline = clock() + options.connection.operation_timeout_s
        for retries_left in range(options.retries, -1, -1):
            try:
                answer = await request()
            except TransportError as error:
                self._has_answered |= isinstance(error, ConsumerBusy)  # a broker's answer too
                is_too_late = (
                    not self._has_answered and clock() + options.retry_ms / 1000 >= deadline
                )
                if not retries_left or is_too_late or not error.retryable:
                    raise
                log.warning("%s: %s; retrying", doing, error)
            else:
                self._has_answered = True
                return answer
            await asyncio.sleep(options.retry_ms / 1000)
        raise AssertionError("the last attempt returns or raises")

    async def forget(self, topic: str) -> None:
        probe = self._probes.pop(topic, None)
        if probe is not None:
            await probe.close()

    async def close(self) -> None:
        for topic in list(self._probes):
            await self.forget(topic)
        if self.admin is not None:
            self.admin.close()


def _missing(topic: str) -> ConfigurationError:
    return ConfigurationError(
        f"there is no topic {topic}: check the option that names it, or set "
        "waitingForNonExistedTopic=true"
    )
