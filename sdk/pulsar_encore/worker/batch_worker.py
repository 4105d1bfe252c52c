"""The public `BatchWorker`: a `Worker` whose handler gets a list of messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..message import Message
from ..options import InitialPosition, RocksState
from ..values.type_variables import T
from .batch_failure import BatchFailure
from .batch_options import (
    DEFAULT_LISTS,
    DEFAULT_MAX_MESSAGES,
    DEFAULT_MAX_WAIT_S,
    BatchOptions,
)
from .batch_session import BatchSession
from .breaker import Breaker
from .handler_call import HandlerCall
from .outbox import PublishTo
from .retry_policy import RetryPolicy
from .scheduler import Order
from .subscribe_options import SubscribeOptions, explains_misplaced_options
from .worker import Worker
from .worker_options import DEFAULT_MAX_BYTES
from .worker_session import Session

if TYPE_CHECKING:
    from ..client import Client
    from ..codecs.codec import Codec


class _ListHandlerCall(HandlerCall):
    """Calls the handler of a `BatchWorker`, also for a list of one message."""

    async def call(
        self, value: Any, message: Message, emit: Callable[[Any], None] | None = None
    ) -> Any:
        try:
            return await self.call_list([value], [message], emit)
        except BatchFailure as failure:
            error = failure.checked_errors(1).get(0)
        if error is not None:
            raise error
        return None


class BatchWorker(Worker[T]):
    """A worker whose handler gets a list of messages, for example to write them in one statement.

    A list starts when it has `max_messages`, or when its first message has waited `max_wait`. If
    the handler returns, all messages are acked. `BatchFailure` names the messages that failed; they
    are settled one by one as by a `Worker`, and the others are acked.

    After any other error, and after a timeout, each of the messages may be the cause. The list is
    then halved for the next attempt, after the first delay of the backoff, down to lists of one
    message. `Retry` and `Reject` for a list of several messages are such errors, too. No message
    loses an attempt or is dead-lettered for a failure that it shared with others: only a message
    that fails alone, or by `BatchFailure`, is counted. A message can therefore be passed to the
    handler more than once even if it never fails, so the handler must be idempotent.

    With `order="partition"`, a list has consecutive messages of one partition, and one list of a
    partition runs at a time. The messages before a failed message are acked. The messages behind it
    wait until it is settled, and are passed again, also if the handler processed them.

    For the breaker, a failed call is one failure. While the breaker is open, or after
    `reject_limit`, lists have one message. A payload that cannot be decoded is dead-lettered and
    never passed to the handler.

    Results: `msg.publish`, a returned value and the values of an async generator are stored before
    the messages are acked. The results of a message that failed are dropped. A returned value is
    one result, so a handler usually returns None. `current_message` returns None in the handler,
    and `msg.extend` moves the timeout of the whole list.

    Args:
        client: As for `Worker`, like all parameters that are not in this list.
        handler: An `async def`, an async generator function or a plain function with one or two
            required parameters: the list of values, and the list of `Message` objects.
        max_messages: Most messages in a list.
        max_wait: Longest wait of a message for the others of its list, while a slot is free. In
            seconds or as a timedelta; 0 to pass what is there.
        concurrency: Most lists at once.
        max_bytes: Most payload bytes of messages in this process. A list is cut there.
        order: "none" (Shared) or "partition" (Failover). Without an order, a list can have messages
            of several topics, and a dict of `topics` gives each priority lists of its own.
        timeout: Longest run of the handler for one list.
        prefetch: Most messages that wait here for a list; None for `max_messages` x `concurrency`.

    Raises:
        ConfigurationError: if a parameter is wrong, or if two of them contradict each other.

    Example:
        ```python
        async def store(orders: list[Order]) -> None:
            await database.executemany(INSERT, [order.row() for order in orders])


        async with pulsar_encore.Client("pulsar://localhost:6650") as client:
            worker = pulsar_encore.BatchWorker(
                client, "orders", "archive", store, schema=pulsar_encore.Json(Order)
            )
            await pulsar_encore.run(worker)
        ```
    """

    _session_type: ClassVar[type[Session]] = BatchSession
    _handler_type: ClassVar[type[HandlerCall]] = _ListHandlerCall

    @explains_misplaced_options
    def __init__(
        self,
        client: Client,
        topics: str | Sequence[str] | re.Pattern[str] | Mapping[str, int],
        subscription: str,
        handler: Callable[[list[T]], Any] | Callable[[list[T], list[Message[T]]], Any],
        *,
        schema: Codec[T] | None = None,
        max_messages: int = DEFAULT_MAX_MESSAGES,
        max_wait: float | timedelta = DEFAULT_MAX_WAIT_S,
        concurrency: int = DEFAULT_LISTS,
        max_bytes: int = DEFAULT_MAX_BYTES,
        order: Order | Literal["none", "partition"] = Order.NONE,
        timeout: float | timedelta | None = None,
        drain: float | timedelta = 20.0,
        prefetch: int | None = None,
        retry: RetryPolicy | None = None,
        breaker: Breaker | None = None,
        reject_limit: int | None = 20,
        initial_position: InitialPosition = InitialPosition.Latest,
        state: RocksState | None = None,
        publish: str | PublishTo | None = None,
        name: str | None = None,
        on_failure: Literal["raise", "terminate"] = "raise",
        start_retry: bool = True,
        options: SubscribeOptions | None = None,
    ) -> None:
        checked = BatchOptions(
            topics=topics,
            subscription=subscription,
            schema=schema,
            max_messages=max_messages,
            max_wait=max_wait,
            concurrency=concurrency,
            max_bytes=max_bytes,
            order=order,
            timeout=timeout,
            drain=drain,
            prefetch=prefetch,
            retry=RetryPolicy() if retry is None else retry,
            breaker=breaker,
            reject_limit=reject_limit,
            initial_position=initial_position,
            state=state,
            publish=PublishTo(publish) if isinstance(publish, str) else publish,
            name=name,
            on_failure=on_failure,
            start_retry=start_retry,
            options=options,
        )
        self._set_up(client, checked, handler)
