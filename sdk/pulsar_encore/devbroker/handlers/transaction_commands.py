"""Commands to the transaction coordinator (PIP-31)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...wire import pulsar_pb2 as pb
from ...wire.frames import Frame
from ..attached import Peer
from ..broker_service import BrokerService
from ..rules.refusal import Refusal
from ..rules.transactions import TransactionId


def on_connect(service: BrokerService, session: Peer, frame: Frame) -> None:
    request = frame.command.tcClientConnectRequest
    _check_enabled(service)
    if request.tc_id:
        raise Refusal("ServiceNotReady", f"no transaction coordinator {request.tc_id} here")
    answer = pb.CommandTcClientConnectResponse(request_id=request.request_id)
    _act(service, answer, service.end_overdue_transactions)
    session.send(answer)


def on_new(service: BrokerService, session: Peer, frame: Frame) -> None:
    request = frame.command.newTxn
    _check_enabled(service)
    answer = pb.CommandNewTxnResponse(request_id=request.request_id)

    def begin() -> None:
        most, least = service.begin_transaction(request.txn_ttl_seconds)  # in ms despite its name
        answer.txnid_most_bits, answer.txnid_least_bits = most, least

    _act(service, answer, begin)
    session.send(answer)


def on_add_partition(service: BrokerService, session: Peer, frame: Frame) -> None:
    request = frame.command.addPartitionToTxn

    def add() -> None:
        service.coordinator.find(_id(request)).topics.update(request.partitions)

    session.send(_answered(service, request, pb.CommandAddPartitionToTxnResponse, add))


def on_add_subscription(service: BrokerService, session: Peer, frame: Frame) -> None:
    request = frame.command.addSubscriptionToTxn

    def add() -> None:
        pairs = [(each.topic, each.subscription) for each in request.subscription]
        service.coordinator.find(_id(request)).subscriptions.update(pairs)

    session.send(_answered(service, request, pb.CommandAddSubscriptionToTxnResponse, add))


def on_end(service: BrokerService, session: Peer, frame: Frame) -> None:
    request = frame.command.endTxn

    def end() -> None:
        commit = request.txn_action == pb.TxnAction.COMMIT
        service.end_transaction(_id(request), commit=commit)

    # As on Pulsar, the messages that an abort redelivers come before the answer.
    answer = _answered(service, request, pb.CommandEndTxnResponse, end)
    service.clock.call_soon(lambda: session.send(answer))


def _answered(
    service: BrokerService, request: Any, response: Callable[..., Any], act: Callable[[], None]
) -> Any:
    """Act, and return the response of the request's own type, also for a refusal."""
    _check_enabled(service)
    most, least = _id(request)
    answer = response(request_id=request.request_id, txnid_most_bits=most, txnid_least_bits=least)
    _act(service, answer, act)
    return answer


def _act(service: BrokerService, answer: Any, act: Callable[[], None]) -> None:
    """Act, or put the refusal into the answer."""
    try:
        service.coordinator.check_loaded()
        act()
    except Refusal as refusal:
        answer.error = pb.ServerError.Value(refusal.code)
        answer.message = refusal.message


def _id(request: Any) -> TransactionId:
    return request.txnid_most_bits, request.txnid_least_bits


def _check_enabled(service: BrokerService) -> None:
    if not service.settings.transactions:
        raise Refusal(
            "NotAllowedError", "transactions are not enabled (BrokerSettings.transactions)"
        )


HANDLERS: dict[str, Callable[[BrokerService, Peer, Frame], None]] = {
    "TC_CLIENT_CONNECT_REQUEST": on_connect,
    "NEW_TXN": on_new,
    "ADD_PARTITION_TO_TXN": on_add_partition,
    "ADD_SUBSCRIPTION_TO_TXN": on_add_subscription,
    "END_TXN": on_end,
}
