"""The clients that can play a workload, with one interface.

A `Member` is one consumer for the player: a consumer of this package over either transport, or of
the stock client, whose blocking calls run on threads. Each member has a client of its own, so that
it can crash alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Protocol

import pulsar

import pulsar_encore as encore

from ..contract.cluster import ENGINES
from .workload import Workload

#: This package over the stock transport and over the native transport, and the stock client.
ClientName = Literal["encore", "native", "stock"]
#: The name of this package's client over each transport.
OURS: Final[dict[str, ClientName]] = {"stock": "encore", "native": "native"}

SUBSCRIPTION: Final = "histories"
STOCK_WAIT_MS: Final = 100

# Histories cause many reconnects, and the C++ client logs a line for each. The first logger of a
# process applies to all its clients.
QUIET = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """One delivery of a message."""

    number: int
    topic: str
    count: int
    native: Any


class CannotError(Exception):
    """The client does not support the call."""


class Member(Protocol):
    """One consumer of the subscription."""

    async def receive(self, timeout: float) -> list[ReceivedMessage]:
        """Return the next message, or none within `timeout`; several with `batch_receive`."""

    async def ack(self, messages: Sequence[ReceivedMessage]) -> None: ...

    async def ack_cumulative(self, received: ReceivedMessage) -> None: ...

    async def nack(
        self, received: ReceivedMessage, delay: float | None, *, by_id: bool
    ) -> None: ...

    async def reconsume(self, received: ReceivedMessage, delay: float) -> None: ...

    async def redeliver_all(self) -> None: ...

    async def seek(self, after: ReceivedMessage | None) -> None: ...

    def statistics(self) -> dict[str, int]: ...

    def connected(self) -> bool: ...

    async def close(self) -> None: ...

    def crash(self) -> None: ...


def dead_topic(base: str) -> str:
    return f"{base}-dead"


def retry_topic(base: str) -> str:
    return f"{base}-again"


def number_of(payload: bytes) -> int:
    """Return the message number at the beginning of a payload."""
    return int(payload.partition(b";")[0])


def can(client: ClientName, workload: Workload) -> bool:
    """True if a client supports everything in a workload."""
    if client != "stock":
        return True
    # The stock client does not keep a delay for one message, and its shortest ack timeout is 10 s.
    settling = workload.settling
    return not (
        workload.retry
        or settling.reconsume
        or workload.ack_timeout
        or any(action.do == "seek" and workload.partitions for action in workload.actions)
    )


async def open_member(
    client: ClientName,
    url: str,
    workload: Workload,
    base: str,
    topics: Sequence[str],
    name: str,
) -> Member:
    """Subscribe. The names of the letter topics derive from `base`."""
    if client == "stock":
        return await StockMember.open(url, workload, base, topics, name)
    return await EncoreMember.open(_encore_client(client, url), workload, base, topics, name)


def _encore_client(client: ClientName, url: str) -> encore.Client:
    [engine] = [each for each in ENGINES if OURS[each.name] == client]
    return engine.client(url, operation_timeout_seconds=20)


class EncoreMember:
    """A consumer of this package."""

    def __init__(self, client: encore.Client, consumer: encore.Consumer, batch: int) -> None:
        self._client = client
        self._consumer = consumer
        self._batch = batch

    @classmethod
    async def open(
        cls,
        client: encore.Client,
        workload: Workload,
        base: str,
        topics: Sequence[str],
        name: str,
    ) -> EncoreMember:
        options: dict[str, Any] = {}
        if workload.backoff is not None:
            low, high = workload.backoff
            options["negative_ack_redelivery_backoff"] = encore.Backoff(
                min_delay=low, max_delay=high
            )
        if workload.max_redeliver:
            options["dead_letter_policy"] = encore.DeadLetterPolicy(
                workload.max_redeliver, dead_topic(base), retry_topic(base)
            )
        elif workload.retry:
            raise ValueError("a workload with retry needs max_redeliver")
        if workload.batch_receive:
            options["batch_receive_policy"] = encore.BatchReceivePolicy(
                max_num_message=workload.batch_receive, max_num_bytes=-1, timeout_ms=250
            )
        if workload.ack_timeout:
            options["unacked_messages_timeout_ms"] = round(workload.ack_timeout * 1000)
        try:
            consumer = await client.subscribe(
                topics[0] if len(topics) == 1 else list(topics),
                SUBSCRIPTION,
                consumer_type=encore.ConsumerType[workload.kind],
                consumer_name=name,
                initial_position=encore.InitialPosition.Earliest,
                receiver_queue_size=workload.queue,
                negative_ack_redelivery_delay_ms=round(workload.nack_delay * 1000),
                batch_index_ack_enabled=True,
                retry_enable=workload.retry,
                max_pending_chunked_message=100,
                **options,
            )
        except BaseException:
            client.shutdown()
            raise
        return cls(client, consumer, workload.batch_receive)

    async def receive(self, timeout: float) -> list[ReceivedMessage]:
        if self._batch:
            return [_received_message(message) for message in await self._consumer.batch_receive()]
        try:
            return [_received_message(await self._consumer.receive(timeout=timeout))]
        except encore.ReceiveTimeout:
            return []

    async def ack(self, messages: Sequence[ReceivedMessage]) -> None:
        if len(messages) == 1:
            await self._consumer.acknowledge(messages[0].native)
        else:
            await self._consumer.acknowledge([received.native for received in messages])

    async def ack_cumulative(self, received: ReceivedMessage) -> None:
        await self._consumer.acknowledge_cumulative(received.native)

    async def nack(self, received: ReceivedMessage, delay: float | None, *, by_id: bool) -> None:
        target = received.native.message_id() if by_id else received.native
        await self._consumer.negative_acknowledge(target, delay)

    async def reconsume(self, received: ReceivedMessage, delay: float) -> None:
        await self._consumer.reconsume_later(received.native, delay)

    async def redeliver_all(self) -> None:
        self._consumer.redeliver_unacknowledged_messages()

    async def seek(self, after: ReceivedMessage | None) -> None:
        await self._consumer.seek(
            encore.MessageId.earliest if after is None else after.native.message_id()
        )

    def statistics(self) -> dict[str, int]:
        found = asdict(self._consumer.statistics())
        names = ("queued", "in_flight", "nacked", "unsent_acks", "unacked")
        return {name: int(found[name]) for name in names}

    def connected(self) -> bool:
        return self._consumer.is_connected()

    async def close(self) -> None:
        await self._consumer.close()
        await self._client.close()

    def crash(self) -> None:
        self._client.shutdown()


def _received_message(message: encore.Message) -> ReceivedMessage:
    return ReceivedMessage(
        number_of(message.data()), message.topic_name(), message.redelivery_count(), message
    )


class StockMember:
    """A consumer of the stock client."""

    def __init__(self, client: pulsar.Client, consumer: pulsar.Consumer, batch: int) -> None:
        self._client = client
        self._consumer = consumer
        self._batch = batch
        self._thread = ThreadPoolExecutor(1, "stock-member")
        self._receiver = ThreadPoolExecutor(1, "stock-receiver")

    @classmethod
    async def open(
        cls, url: str, workload: Workload, base: str, topics: Sequence[str], name: str
    ) -> StockMember:
        return await asyncio.to_thread(cls._open, url, workload, base, topics, name)

    @classmethod
    def _open(
        cls, url: str, workload: Workload, base: str, topics: Sequence[str], name: str
    ) -> StockMember:
        client = pulsar.Client(url, logger=QUIET, operation_timeout_seconds=20)
        options: dict[str, Any] = {}
        if workload.max_redeliver:
            options["dead_letter_policy"] = pulsar.ConsumerDeadLetterPolicy(
                workload.max_redeliver, dead_topic(base)
            )
        if workload.batch_receive:
            options["batch_receive_policy"] = pulsar.ConsumerBatchReceivePolicy(
                workload.batch_receive, -1, 250
            )
        consumer = client.subscribe(
            topics[0] if len(topics) == 1 else list(topics),
            SUBSCRIPTION,
            consumer_type=getattr(pulsar.ConsumerType, workload.kind),
            consumer_name=name,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=workload.queue,
            negative_ack_redelivery_delay_ms=round(workload.nack_delay * 1000),
            batch_index_ack_enabled=True,
            max_pending_chunked_message=100,
            **options,
        )
        return cls(client, consumer, workload.batch_receive)

    async def _run(self, call: Any, *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, call, *arguments)

    async def receive(self, timeout: float) -> list[ReceivedMessage]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._receiver, self._receive)

    def _receive(self) -> list[ReceivedMessage]:
        if self._batch:
            return [_received_by_stock(message) for message in self._consumer.batch_receive()]
        try:
            return [_received_by_stock(self._consumer.receive(STOCK_WAIT_MS))]
        except pulsar.Timeout:
            return []

    async def ack(self, messages: Sequence[ReceivedMessage]) -> None:
        for received in messages:
            await self._run(self._consumer.acknowledge, received.native)

    async def ack_cumulative(self, received: ReceivedMessage) -> None:
        await self._run(self._consumer.acknowledge_cumulative, received.native)

    async def nack(self, received: ReceivedMessage, delay: float | None, *, by_id: bool) -> None:
        target = received.native.message_id() if by_id else received.native
        await self._run(self._consumer.negative_acknowledge, target)

    async def reconsume(self, received: ReceivedMessage, delay: float) -> None:
        raise CannotError("the stock client has no reconsume_later")

    async def redeliver_all(self) -> None:
        await self._run(self._consumer.redeliver_unacknowledged_messages)

    async def seek(self, after: ReceivedMessage | None) -> None:
        target = pulsar.MessageId.earliest if after is None else after.native.message_id()
        await self._run(self._consumer.seek, target)

    def statistics(self) -> dict[str, int]:
        return {}

    def connected(self) -> bool:
        return bool(self._consumer.is_connected())

    async def close(self) -> None:
        with contextlib.suppress(pulsar.PulsarException):
            await self._run(self._consumer.close)
            await self._run(self._client.close)
        self._thread.shutdown(wait=False)
        self._receiver.shutdown(wait=False)

    def crash(self) -> None:
        with contextlib.suppress(pulsar.PulsarException):
            self._client.shutdown()
        self._thread.shutdown(wait=False)
        self._receiver.shutdown(wait=False)


def _received_by_stock(message: pulsar.Message) -> ReceivedMessage:
    return ReceivedMessage(
        number_of(message.data()), message.topic_name(), message.redelivery_count(), message
    )
