"""Pending requests of one connection, and their answers.

An answer to no pending request is ignored.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ....errors import NotConnected, PulsarException, TransportTimeout, exception_of_result
from ....wire import pulsar_pb2 as pb
from ...error_advice import ADVICE, LIMIT_ADVICE

_Type = pb.BaseCommand

# Brokers have no error code for a limit, only these texts: `maxConsumersPerTopic`,
# `maxProducersPerTopic`, `maxConsumersPerSubscription`, `brokerMaxConnections`,
# `brokerMaxConnectionsPerIp`.
_LIMIT: Final = re.compile(
    r"reached max (same address )?(consumers|producers) limit"
    r"|reached the maximum number of connections"
    r"|exceeds? (the )?maximum number of (topics|subscriptions)",
    re.IGNORECASE,
)
_BROKER_TEXT: Final = " (broker: "

#: Types of answers, and the fields with their bodies.
ANSWERS: Final[dict[int, str]] = {
    _Type.SUCCESS: "success",
    _Type.ERROR: "error",
    _Type.PRODUCER_SUCCESS: "producer_success",
    _Type.PARTITIONED_METADATA_RESPONSE: "partitionMetadataResponse",
    _Type.LOOKUP_RESPONSE: "lookupTopicResponse",
    _Type.CONSUMER_STATS_RESPONSE: "consumerStatsResponse",
    _Type.GET_LAST_MESSAGE_ID_RESPONSE: "getLastMessageIdResponse",
    _Type.GET_TOPICS_OF_NAMESPACE_RESPONSE: "getTopicsOfNamespaceResponse",
    _Type.GET_SCHEMA_RESPONSE: "getSchemaResponse",
    _Type.GET_OR_CREATE_SCHEMA_RESPONSE: "getOrCreateSchemaResponse",
    _Type.ACK_RESPONSE: "ackResponse",
    _Type.WATCH_TOPIC_LIST_SUCCESS: "watchTopicListSuccess",
    _Type.NEW_TXN_RESPONSE: "newTxnResponse",
    _Type.ADD_PARTITION_TO_TXN_RESPONSE: "addPartitionToTxnResponse",
    _Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE: "addSubscriptionToTxnResponse",
    _Type.END_TXN_RESPONSE: "endTxnResponse",
    _Type.TC_CLIENT_CONNECT_RESPONSE: "tcClientConnectResponse",
}
# Answers that are refusals if they have the field `error`.
_WITH_OPTIONAL_ERROR: Final = (
    _Type.ACK_RESPONSE,
    _Type.NEW_TXN_RESPONSE,
    _Type.ADD_PARTITION_TO_TXN_RESPONSE,
    _Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
    _Type.END_TXN_RESPONSE,
    _Type.TC_CLIENT_CONNECT_RESPONSE,
)
# Answers with `error_code` instead of `error`.
_WITH_ERROR_CODE: Final = (
    _Type.GET_SCHEMA_RESPONSE,
    _Type.GET_OR_CREATE_SCHEMA_RESPONSE,
    _Type.CONSUMER_STATS_RESPONSE,
)


@dataclass(slots=True)
class _Request:
    future: asyncio.Future[Any]
    timer: asyncio.TimerHandle | None
    purpose: str

    def end(self) -> asyncio.Future[Any]:
        if self.timer is not None:
            self.timer.cancel()
        return self.future


class Requests:
    def __init__(self, loop: asyncio.AbstractEventLoop, ids: Iterator[int]) -> None:
        self._loop = loop
        self._ids = ids
        self._pending: dict[int, _Request] = {}
        self.begun: int = 0

    def __len__(self) -> int:
        return len(self._pending)

    def new_id(self) -> int:
        return next(self._ids)

    def begin(self, request_id: int, purpose: str, timeout_s: float | None) -> asyncio.Future[Any]:
        """Return a future for the body of an answer.

        Args:
            purpose: For the text of errors, such as "subscribe to persistent://...".
            timeout_s: None waits for as long as the connection lives.
        """
        self.begun += 1
        future: asyncio.Future[Any] = self._loop.create_future()
        timer = None
        if timeout_s is not None:
            timer = self._loop.call_later(timeout_s, self._expire, request_id, timeout_s)
        self._pending[request_id] = _Request(future, timer, purpose)
        future.add_done_callback(lambda _: self._forget(request_id))
        return future

    def _forget(self, request_id: int) -> None:
        request = self._pending.pop(request_id, None)
        if request is not None:
            request.end()

    def _expire(self, request_id: int, timeout_s: float) -> None:
        request = self._pending.pop(request_id, None)
        if request is not None and not request.future.done():
            text = f"{request.purpose}: no answer from the broker within {timeout_s:g} s"
            request.future.set_exception(TransportTimeout(text))

    def complete(self, kind: int, body: Any) -> None:
        request_id = body.request_id
        request = self._pending.get(request_id)
        if request is None:
            return
        if kind == _Type.PRODUCER_SUCCESS and not body.producer_ready:
            # The producer waits for exclusive access, without a limit. Another answer follows.
            if request.timer is not None:
                request.timer.cancel()
            return
        del self._pending[request_id]
        future = request.end()
        if future.done():
            return
        error = _error_in(kind, body, request.purpose)
        if error is None:
            future.set_result(body)
        else:
            future.set_exception(error)

    def fail(self, cause: str) -> None:
        """Fail every request with an error of its own, because the connection has ended."""
        pending, self._pending = self._pending, {}
        for request in pending.values():
            future = request.end()
            if not future.done():
                future.set_exception(NotConnected(f"{request.purpose}: {cause}"))
                future.exception()  # marks it as retrieved


def _error_in(kind: int, body: Any, purpose: str) -> PulsarException | None:
    if kind in _WITH_ERROR_CODE:
        if not body.HasField("error_code"):
            return None
        return refusal(body.error_code, body.error_message, purpose)
    if kind == _Type.LOOKUP_RESPONSE:
        failed = body.response == pb.CommandLookupTopicResponse.Failed
    elif kind == _Type.PARTITIONED_METADATA_RESPONSE:
        failed = body.response == pb.CommandPartitionedTopicMetadataResponse.Failed
    else:
        failed = kind == _Type.ERROR or (kind in _WITH_OPTIONAL_ERROR and body.HasField("error"))
    return refusal(body.error, body.message, purpose) if failed else None


def refusal(error: int, message: str, purpose: str) -> PulsarException:
    """Return the error for a broker's `ServerError`, with advice."""
    value = pb.ServerError.DESCRIPTOR.values_by_number.get(error)
    made = exception_of_result("UnknownError" if value is None else str(value.name), purpose)
    limit = _LIMIT.search(message) is not None
    advice = LIMIT_ADVICE if limit else ADVICE.get(made.result)
    text = f"{purpose}: {made.result}" + (f": {advice}" if advice else "")
    retryable = True if limit else None
    text += f"{_BROKER_TEXT}{message})" if message else ""
    return exception_of_result(made.result, text, retryable=retryable)


def is_limit(error: PulsarException) -> bool:
    """Return True if a broker refused because of a limit, which passes when other clients leave."""
    return _LIMIT.search(str(error).partition(_BROKER_TEXT)[2]) is not None
