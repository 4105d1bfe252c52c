"""The common part of consumers and readers over the C++ client."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from ...eventloop.close_once import CloseOnce
from ...options import Subscription
from ...values.message_id import MessageId
from ..interface import DeliveryListener, TopicEnds
from .cpp_calls import CppCalls
from .deliveries import TopicNames


class StockSubscription:
    """A native consumer or reader with its topics."""

    _cpp_lock: threading.Lock  # see `Pump.cpp_lock`

    def __init__(self, native: Any, subscription: Subscription) -> None:
        self._native = native
        self._subscription = subscription
        self._loop = asyncio.get_running_loop()
        self._calls = CppCalls()
        self._topics = TopicNames(subscription.topics)
        self._listener: DeliveryListener | None = None
        self._flow_stopped = False
        self._seeking = False
        self._seeks = asyncio.Lock()  # the C++ client refuses a second seek
        self._closed = False
        self._close_once = CloseOnce(self._close)

    @property
    def subscription_name(self) -> str:
        # At the broker the C++ client appends a suffix to the name of a reader.
        return self._subscription.subscription_name

    def is_connected(self) -> bool:
        if self._closed:
            return False
        with self._cpp_lock:
            return bool(self._native.is_connected())

    def topic_of(self, topic_number: int) -> tuple[str, int]:
        return self._topics.name(topic_number)

    def topic_numbers(self) -> range:
        return range(len(self._topics))

    def topic_number_of(self, topic: str, partition: int, ledger: int = -1) -> int | None:
        return self._topics.find(topic, partition)

    def request_messages(self, messages: int) -> None:
        """Never called: the receiver queue is not 0."""

    async def ends_of(self, topic_number: int) -> TopicEnds | None:
        return None

    async def acked_position(self) -> MessageId | None:
        return None

    async def close(self) -> None:
        await self._close_once()

    async def _close(self) -> None:
        raise NotImplementedError
