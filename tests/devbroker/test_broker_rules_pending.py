"""Rules of pending acks that need a small window, an unload, or closed ledgers."""

from __future__ import annotations

import pytest
from broker_rules_kit import EXCLUSIVE, KEY_SHARED, SHARED, Bench
from session_kit import TOPIC, HandClock, MemoryClient

from pulsar_encore.devbroker import BrokerSettings
from pulsar_encore.devbroker.broker_service import BrokerService
from pulsar_encore.devbroker.rules.attached_consumers import SubscriptionType
from pulsar_encore.devbroker.rules.pending_acks import AckedId
from pulsar_encore.devbroker.rules.refusal import Refusal
from pulsar_encore.wire import pb

A, B = (0, 1), (0, 2)
NONE_ENDED = -1


def pend(bench: Bench, txn: tuple[int, int], *seqs: int, mask: int | None = None) -> None:
    """Ack entries in a transaction by their numbers."""
    ids = [AckedId(*bench.id(seq), mask, bench.topic.at(seq).messages) for seq in seqs]
    bench.sub.ack_in_transaction(txn, ids)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_the_window_is_free_at_once_and_an_abort_waits_for_room(kind: SubscriptionType) -> None:
    bench = Bench(kind, max_unacked_per_consumer=4)
    bench.publish(10)
    bench.join("c", permits=100)
    assert [seq for _, seq, _, _ in bench.deliver()] == [0, 1, 2, 3]
    pend(bench, A, 0, 1, 2, 3)
    assert [seq for _, seq, _, _ in bench.deliver()] == [4, 5, 6, 7]
    bench.sub.end_transaction(A, commit=False, low_water=NONE_ENDED)
    assert bench.deliver() == []
    for seq in (4, 5, 6, 7):
        bench.ack(seq)
    assert [(seq, count) for _, seq, count, _ in bench.deliver()] == [(n, 1) for n in range(4)]


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_pending_indexes_free_the_window_and_are_counted_once(kind: SubscriptionType) -> None:
    bench = Bench(kind)
    bench.publish(1, batch=4)
    consumer = bench.join("c", permits=100)
    assert len(bench.deliver()) == 1
    pend(bench, A, 0, mask=0b1110)
    assert consumer.unacked == 3
    bench.sub.end_transaction(A, commit=True, low_water=NONE_ENDED)
    assert consumer.unacked == 3
    pend(bench, B, 0, mask=0b0001)
    assert (consumer.unacked, consumer.held) == (0, {})
    bench.sub.end_transaction(B, commit=False, low_water=NONE_ENDED)
    assert bench.deliver() == [("c", 0, 1, 0b1110)]
    assert consumer.unacked == 3


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_a_message_that_waits_for_redelivery_is_not_queued_twice(kind: SubscriptionType) -> None:
    bench = Bench(kind)
    bench.publish(1)
    consumer = bench.join("c", permits=1)
    assert len(bench.deliver()) == 1
    bench.nack(consumer, 0)
    pend(bench, A, 0)
    bench.sub.end_transaction(A, commit=False, low_water=NONE_ENDED)
    bench.sub.flow(consumer, 10)
    assert bench.deliver() == [("c", 0, 2, None)]


@pytest.mark.parametrize("kind", [SHARED, EXCLUSIVE])
def test_pending_acks_survive_an_unload(kind: SubscriptionType) -> None:
    bench = Bench(kind)
    bench.publish(2)
    bench.publish(1, batch=3)
    bench.join("c", permits=10)
    assert len(bench.deliver()) == 3
    pend(bench, A, 0)
    pend(bench, A, 2, mask=0b110)
    bench.sub.unload()
    bench.join("c", permits=10)
    assert bench.deliver() == [("c", 1, 0, None), ("c", 2, 0, 0b110)]
    bench.sub.end_transaction(A, commit=True, low_water=NONE_ENDED)
    assert bench.sub.backlog == 2
    bench.ack(2, 0b001)
    assert bench.sub.backlog == 1


def test_an_unload_loses_committed_acks_of_indexes_like_plain_ones() -> None:
    bench = Bench(SHARED)
    bench.publish(1, batch=3)
    bench.join("c", permits=10)
    assert len(bench.deliver()) == 1
    pend(bench, A, 0, mask=0b110)
    bench.sub.end_transaction(A, commit=True, low_water=NONE_ENDED)
    bench.sub.unload()
    bench.join("c", permits=10)
    assert bench.deliver() == [("c", 0, 0, None)]


def test_an_ack_of_a_dropped_entry_conflicts() -> None:
    bench = Bench(SHARED, per_ledger=2)
    bench.publish(4)
    bench.join("c", permits=10)
    dropped = bench.id(0)
    for seq in range(2):
        bench.ack(seq)
    bench.topic.trim(bench.sub.cursor.mark)
    with pytest.raises(Refusal, match="already acked before"):
        bench.sub.ack_in_transaction(A, [AckedId(*dropped)])
    with pytest.raises(Refusal, match="markDeletePosition"):
        bench.sub.ack_cumulative_in_transaction(A, AckedId(*dropped))


def test_only_the_oldest_late_transaction_is_swept() -> None:
    bench = Bench(SHARED)
    bench.publish(4)
    bench.join("c", permits=10)
    assert len(bench.deliver()) == 4
    for least in range(3):
        pend(bench, (0, least), least)
    bench.publish(1)
    pend(bench, (0, 4), 4)
    bench.sub.end_transaction((0, 4), commit=True, low_water=NONE_ENDED)
    assert [seq for _, seq, _, _ in bench.deliver()] == []
    bench.sub.end_transaction((0, 2), commit=True, low_water=1)
    assert bench.deliver() == [("c", 0, 1, None)]
    pend(bench, (0, 3), 3)
    bench.sub.end_transaction((0, 3), commit=True, low_water=2)
    assert bench.deliver() == [("c", 1, 1, None)]


def client_of(**settings: object) -> tuple[HandClock, MemoryClient, BrokerService]:
    clock = HandClock()
    fields: dict[str, object] = {"keep_alive_s": float("inf"), **settings}
    service = BrokerService(BrokerSettings(**fields), clock, lambda seconds: None)  # type: ignore[arg-type]
    return clock, MemoryClient(service), service


def ack(client: MemoryClient, number: int) -> pb.CommandAck:
    found = [f.command.message.message_id for f in client.got if f.body is not None]
    message_id = found[number]
    return pb.CommandAck(
        consumer_id=1,
        ack_type=pb.CommandAck.Individual,
        message_id=[message_id],
        txnid_most_bits=0,
        txnid_least_bits=0,
        request_id=7,
    )


def test_a_broker_without_transactions_refuses_the_ack_and_the_registration() -> None:
    clock, client, _ = client_of(transactions=False)
    client.subscribe()
    client.produce()
    client.publish(b"a")
    clock.advance()
    client.send(
        ack(client, 0),
        pb.CommandAddSubscriptionToTxn(request_id=8, txnid_most_bits=0, txnid_least_bits=0),
    )
    clock.advance()
    answer, refused = client.got[-2].command, client.got[-1].command
    assert answer.ackResponse.error == refused.error.error == pb.NotAllowedError
    assert "Server don't support transaction ack!" in answer.ackResponse.message
    assert (answer.ackResponse.request_id, refused.error.request_id) == (7, 8)


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_of_a_transaction_reaches_its_subscriptions_before_the_answer(
    commit: bool,
) -> None:
    clock, client, service = client_of()
    client.subscribe()
    client.produce()
    client.publish(b"a")
    client.send(
        pb.CommandNewTxn(request_id=3, txn_ttl_seconds=60_000),
        pb.CommandAddSubscriptionToTxn(
            request_id=4,
            txnid_most_bits=0,
            txnid_least_bits=0,
            subscription=[pb.Subscription(topic=TOPIC, subscription="s")],
        ),
    )
    clock.advance()
    service.terminate(service.catalogue.topic(TOPIC))
    client.send(ack(client, 0))
    clock.advance()
    seen = len(client.got)
    action = pb.TxnAction.COMMIT if commit else pb.TxnAction.ABORT
    client.send(
        pb.CommandEndTxn(request_id=5, txnid_most_bits=0, txnid_least_bits=0, txn_action=action)
    )
    clock.advance()
    before = "REACHED_END_OF_TOPIC" if commit else "MESSAGE"
    assert client.names()[seen:] == [before, "END_TXN_RESPONSE"]
