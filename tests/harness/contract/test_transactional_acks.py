"""Acks in transactions (PIP-31), frame by frame, against the development broker and Pulsar 4.2."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pulsar_encore.wire import pb

from .transaction_frames import ABORT, COMMIT, TransactionClient

SUB = pb.CommandSubscribe
EVERY = [SUB.Shared, SUB.Key_Shared, SUB.Failover, SUB.Exclusive]
SHARING = [SUB.Shared, SUB.Key_Shared]
ORDERED = [SUB.Failover, SUB.Exclusive]
QUIET = 0  # expect no message


@pytest.fixture
async def one(transactional_url: str) -> AsyncIterator[TransactionClient]:
    async with TransactionClient(transactional_url) as client:
        yield client
        await client.end_all()


@pytest.fixture
async def two(transactional_url: str) -> AsyncIterator[TransactionClient]:
    async with TransactionClient(transactional_url) as client:
        yield client
        await client.end_all()


def fresh(*numbers: int) -> list[tuple[int, int, None]]:
    """Return entries with the redelivery count 0."""
    return [(number, 0, None) for number in numbers]


@pytest.mark.parametrize("kind", EVERY)
async def test_a_commit_acks_and_an_open_transaction_withholds(
    one: TransactionClient, two: TransactionClient, topic: str, kind: int
) -> None:
    await one.start(topic, kind, 3)
    assert await one.got(3) == fresh(0, 1, 2)
    txn = await one.begin()
    assert await one.ack(txn, 0, 1) == ""
    one.send(one.redeliver())
    assert [number for number, _, _ in await one.got(1)] == [2]
    await one.close_consumer()
    await two.join(one, kind)
    assert [number for number, _, _ in await two.got(1)] == [2]
    await two.end(txn, COMMIT)
    assert await two.got(QUIET) == []
    await two.close_consumer()
    await one.join(two, kind)
    assert [number for number, _, _ in await one.got(1)] == [2]


@pytest.mark.parametrize("kind", SHARING)
async def test_an_abort_on_shared_redelivers_the_acked_ones_with_a_higher_count(
    one: TransactionClient, topic: str, kind: int
) -> None:
    await one.start(topic, kind, 4)
    assert len(await one.got(4)) == 4
    for count in (1, 2):
        txn = await one.begin()
        assert await one.ack(txn, 2, 0) == ""
        await one.end(txn, ABORT)
        assert await one.got(2) == [(0, count, None), (2, count, None)]


@pytest.mark.parametrize("kind", ORDERED)
async def test_an_abort_on_exclusive_redelivers_everything_unacked(
    one: TransactionClient, topic: str, kind: int
) -> None:
    await one.start(topic, kind, 4)
    assert len(await one.got(4)) == 4
    txn = await one.begin()
    assert await one.ack(txn, 1, 2) == ""
    await one.end(txn, ABORT)
    assert await one.got(4) == fresh(0, 1, 2, 3)


async def test_a_nack_of_a_pending_message_has_no_effect(
    one: TransactionClient, topic: str
) -> None:
    await one.start(topic, SUB.Shared, 2)
    assert len(await one.got(2)) == 2
    txn = await one.begin()
    assert await one.ack(txn, 0) == ""
    one.send(one.redeliver([one.entries[0]]))
    assert await one.got(QUIET) == []
    await one.end(txn, ABORT)
    assert await one.got(1) == [(0, 1, None)]


async def test_one_half_of_an_id_makes_a_plain_ack(one: TransactionClient, topic: str) -> None:
    await one.start(topic, SUB.Shared, 2)
    assert len(await one.got(2)) == 2
    txn = await one.begin()
    half = one.ack_command((0,))
    half.txnid_least_bits = txn[1]
    assert await one.answer_to(half) == ""
    await one.end(txn, ABORT)
    assert await one.got(QUIET) == []


@pytest.mark.parametrize("kind", [SUB.Shared, SUB.Exclusive])
async def test_a_conflict_marks_no_message_and_names_the_position(
    one: TransactionClient, topic: str, kind: int
) -> None:
    await one.start(topic, kind, 3)
    assert len(await one.got(3)) == 3
    first, second = await one.begin(), await one.begin()
    assert await one.ack(first, 0) == ""
    assert await one.ack(None, 1) == ""
    ids = [f"{ledger}:{entry}" for ledger, entry in one.entries]
    for txn in (second, first):
        head = (
            "TransactionConflict "
            "org.apache.pulsar.transaction.common.exception.TransactionConflictException: "
            f"[{topic}][s] Transaction:({txn[0]},{txn[1]}) try to ack message:"
        )
        pending = f"{head}{ids[0]} (ackSet is null) in pending ack status."
        acked = f"{head}{ids[1]} (ackSet is null) already acked before."
        assert await one.ack(txn, 2, 0) == pending
        assert await one.ack(txn, 2, 1) == acked
    await one.end(second, COMMIT)
    await one.end(first, COMMIT)
    await one.close_consumer()
    await one.join(one, kind)
    assert [number for number, _, _ in await one.got(1)] == [2]


async def test_a_refused_ack_on_shared_releases_its_messages_and_a_nack_does_not_bring_them(
    one: TransactionClient, topic: str
) -> None:
    await one.start(topic, SUB.Shared, 3)
    assert len(await one.got(3)) == 3
    first, second = await one.begin(), await one.begin()
    assert await one.ack(first, 0) == ""
    assert "TransactionConflict" in await one.ack(second, 2, 0)
    one.send(one.redeliver([one.entries[2]]))
    assert await one.got(QUIET) == []
    one.send(one.redeliver())
    assert await one.got(1) == [(1, 1, None)]


async def test_a_plain_ack_of_a_pending_message_wins(one: TransactionClient, topic: str) -> None:
    await one.start(topic, SUB.Shared, 2)
    assert len(await one.got(2)) == 2
    txn = await one.begin()
    assert await one.ack(txn, 0, 1) == ""
    assert await one.ack(None, 0) == ""
    await one.end(txn, ABORT)
    assert await one.got(1) == [(1, 1, None)]


async def test_a_message_that_does_not_exist_is_accepted(
    one: TransactionClient, topic: str
) -> None:
    await one.start(topic, SUB.Shared, 1)
    assert len(await one.got(1)) == 1
    one.entries.append((one.entries[0][0], 1000))
    txn = await one.begin()
    assert await one.ack(txn, 1) == ""
    await one.end(txn, COMMIT)
    assert await one.got(QUIET) == []


async def test_another_consumer_acks_and_gets_the_message_of_an_abort(
    one: TransactionClient, two: TransactionClient, topic: str
) -> None:
    await one.start(topic, SUB.Shared, 2)
    assert len(await one.got(2)) == 2
    await two.join(one, SUB.Shared)
    txn = await two.begin()
    assert await two.ack(txn, 0) == ""
    await one.close_consumer()
    assert [number for number, _, _ in await two.got(1)] == [1]
    await two.end(txn, ABORT)
    assert await two.got(1) == [(0, 1, None)]


async def test_a_timeout_aborts(one: TransactionClient, topic: str) -> None:
    await one.start(topic, SUB.Shared, 1)
    assert len(await one.got(1)) == 1
    txn = await one.begin(ttl_ms=1500)
    assert await one.ack(txn, 0) == ""
    assert await one.got(1) == [(0, 1, None)]
    assert await one.register(txn) == "TransactionNotFound"


@pytest.mark.parametrize("kind", [SUB.Shared, SUB.Exclusive])
async def test_a_seek_does_not_deliver_pending_messages(
    one: TransactionClient, topic: str, kind: int
) -> None:
    await one.start(topic, kind, 3)
    assert len(await one.got(3)) == 3
    txn = await one.begin()
    assert await one.ack(txn, 0, 1) == ""
    await one.seek(0)
    await one.join(one, kind)
    assert await one.got(1) == fresh(2)
    await one.end(txn, ABORT)
    expected = [(0, 1, None), (1, 1, None)] if kind == SUB.Shared else fresh(0, 1, 2)
    assert await one.got(len(expected)) == expected


@pytest.mark.parametrize("kind", ORDERED)
async def test_messages_under_a_cumulative_ack_are_delivered_again_by_a_rewind(
    one: TransactionClient, topic: str, kind: int
) -> None:
    await one.start(topic, kind, 4)
    assert len(await one.got(4)) == 4
    txn = await one.begin()
    assert await one.ack(txn, 1, cumulative=True) == ""
    one.send(one.redeliver())
    assert await one.got(4) == fresh(0, 1, 2, 3)
    await one.end(txn, ABORT)
    assert await one.got(QUIET) == []
    txn = await one.begin()
    assert await one.ack(txn, 1, cumulative=True) == ""
    assert await one.ack(txn, 2, cumulative=True) == ""
    await one.end(txn, COMMIT)
    one.send(one.redeliver())
    assert await one.got(1) == fresh(3)


async def test_conflicts_of_cumulative_acks(one: TransactionClient, topic: str) -> None:
    await one.start(topic, SUB.Exclusive, 4)
    assert len(await one.got(4)) == 4
    first, second = await one.begin(), await one.begin()
    assert await one.ack(None, 0) == ""
    assert "within range of cursor's markDeletePosition" in await one.ack(first, 0, cumulative=True)
    assert await one.ack(first, 2, cumulative=True) == ""
    for txn, number in ((first, 2), (first, 1), (second, 3)):
        answer = await one.ack(txn, number, cumulative=True)
        assert answer.startswith("TransactionConflict")
        assert "within range of current currentPosition" in answer


async def test_a_cumulative_ack_of_some_indexes(one: TransactionClient, topic: str) -> None:
    await one.start(topic, SUB.Exclusive, 2, batch=3)
    assert len(await one.got(2)) == 2
    txn = await one.begin()
    assert await one.ack(txn, 1, mask=0b110, cumulative=True) == ""
    assert "TransactionConflict" in await one.ack(txn, 1, mask=0b110, cumulative=True)
    assert await one.ack(txn, 1, mask=0b100, cumulative=True) == ""
    await one.end(txn, COMMIT)
    one.send(one.redeliver())
    assert await one.got(1) == [(1, 0, 0b100)]


async def test_a_cumulative_ack_on_shared_is_ignored(one: TransactionClient, topic: str) -> None:
    await one.start(topic, SUB.Shared, 1)
    assert len(await one.got(1)) == 1
    txn = await one.begin()
    assert await one.ack(txn, 0, cumulative=True) == ""
    await one.end(txn, COMMIT)
    one.send(one.redeliver())
    assert await one.got(1) == [(0, 1, None)]


async def test_a_cumulative_ack_loses_the_individual_commit_of_another_transaction(
    one: TransactionClient, topic: str
) -> None:
    await one.start(topic, SUB.Exclusive, 4)
    assert len(await one.got(4)) == 4
    first, second, third = await one.begin(), await one.begin(), await one.begin()
    assert await one.ack(first, 0, cumulative=True) == ""
    assert await one.ack(second, 2) == ""
    await one.end(second, COMMIT)
    await one.end(first, ABORT)
    one.send(one.redeliver())
    assert await one.got(3) == fresh(0, 1, 3)
    assert await one.ack(third, 1) == ""
    await one.end(third, COMMIT)
    assert await one.got(QUIET) == []  # the sweep does not rewind
    one.send(one.redeliver())
    assert await one.got(3) == fresh(0, 2, 3)


@pytest.mark.parametrize("action", [COMMIT, ABORT])
@pytest.mark.parametrize("registered", [True, False])
async def test_a_late_ack_is_pending_until_the_next_individual_end(
    one: TransactionClient, topic: str, action: pb.TxnAction.ValueType, registered: bool
) -> None:
    await one.start(topic, SUB.Shared, 3)
    assert len(await one.got(3)) == 3
    late = await one.begin(registered=registered)
    if registered:
        await one.end(late, COMMIT)
    assert await one.ack(late, 0) == ""
    if not registered:
        await one.end(late, COMMIT)
    empty = await one.begin()
    await one.end(empty, COMMIT)
    assert await one.got(QUIET) == []
    sweeper = await one.begin()
    assert await one.ack(sweeper, 1) == ""
    await one.end(sweeper, action)
    expected = [(0, 1, None), (1, 1, None)] if action == ABORT else [(0, 1, None)]
    assert sorted(await one.got(len(expected))) == expected


@pytest.mark.parametrize("kind", [SUB.Shared, SUB.Exclusive])
async def test_an_abort_redelivers_a_batch_without_acked_and_pending_indexes(
    one: TransactionClient, topic: str, kind: int
) -> None:
    await one.start(topic, kind, 1, batch=4)
    assert len(await one.got(1)) == 1
    first, second = await one.begin(), await one.begin()
    assert await one.ack(first, 0, mask=0b1110) == ""
    assert await one.ack(second, 0, mask=0b1101) == ""
    assert await one.ack(None, 0, mask=0b1011) == ""
    await one.end(first, ABORT)
    count = 1 if kind == SUB.Shared else 0
    assert await one.got(1) == [(0, count, 0b1001)]
    await one.end(second, COMMIT)
    one.send(one.redeliver())
    assert [(number, mask) for number, _, mask in await one.got(1)] == [(0, 0b1001)]


async def test_a_partial_ack_in_a_transaction_and_its_commit_and_the_redelivery_count(
    one: TransactionClient, topic: str
) -> None:
    await one.start(topic, SUB.Shared, 1, batch=3)
    assert len(await one.got(1)) == 1
    one.send(one.redeliver([one.entries[0]]))
    assert await one.got(1) == [(0, 1, None)]
    txn = await one.begin()
    assert await one.ack(txn, 0, mask=0b110) == ""
    one.send(one.redeliver([one.entries[0]]))
    assert await one.got(1) == [(0, 2, 0b110)]
    await one.end(txn, COMMIT)
    one.send(one.redeliver([one.entries[0]]))
    assert await one.got(1) == [(0, 1, 0b110)]


async def test_an_index_of_an_entry_that_is_pending_as_a_whole_gets_no_answer(
    one: TransactionClient, topic: str
) -> None:
    await one.start(topic, SUB.Shared, 1, batch=3)
    assert len(await one.got(1)) == 1
    txn = await one.begin()
    assert await one.ack(txn, 0) == ""
    late = await one.begin()
    with pytest.raises(TimeoutError):
        await one.ack(late, 0, mask=0b110, timeout_s=1)


@pytest.mark.parametrize("kind", [SUB.Shared, SUB.Exclusive])
async def test_conflicts_of_batch_indexes(one: TransactionClient, topic: str, kind: int) -> None:
    await one.start(topic, kind, 3, batch=4)
    assert len(await one.got(3)) == 3
    first, second = await one.begin(), await one.begin()
    assert await one.ack(first, 0, mask=0b1110) == ""
    assert "in pending ack status" in await one.ack(first, 0, mask=0b1100)
    assert "in pending ack status" in await one.ack(second, 0, mask=0b1110)
    assert "in pending ack status" in await one.ack(second, 0)
    assert await one.ack(first, 0, mask=0b1001) == ""
    assert await one.ack(None, 1, mask=0b1110) == ""
    assert "already acked before" in await one.ack(second, 1, mask=0b1110)
    whole = await one.ack(second, 1)
    assert ("in pending ack status" in whole) if kind == SUB.Shared else whole == ""
    await one.end(first, COMMIT)
    assert "in pending ack status" in await one.ack(second, 0)
    assert "already acked before" in await one.ack(second, 0, mask=0b1011)


async def test_without_a_batch_size_an_abort_does_not_bring_the_index_back(
    one: TransactionClient, topic: str
) -> None:
    await one.start(topic, SUB.Shared, 1, batch=3)
    assert len(await one.got(1)) == 1
    txn = await one.begin()
    for _ in range(2):  # and no conflict is found
        command = one.ack_command((0,), 0b110)
        command.message_id[0].ClearField("batch_size")
        command.txnid_most_bits, command.txnid_least_bits = txn
        assert await one.answer_to(command) == ""
    await one.end(txn, ABORT)
    assert await one.got(1) == [(0, 1, 0b110)]


async def test_every_index_alone_acks_the_entry(one: TransactionClient, topic: str) -> None:
    await one.start(topic, SUB.Shared, 1, batch=2)
    assert len(await one.got(1)) == 1
    first, second = await one.begin(), await one.begin()
    assert await one.ack(first, 0, mask=0b10) == ""
    assert await one.ack(second, 0, mask=0b01) == ""
    one.send(one.redeliver())
    assert await one.got(QUIET) == []
    await one.end(first, COMMIT)
    await one.end(second, COMMIT)
    await one.close_consumer()
    await one.join(one, SUB.Shared)
    assert await one.got(QUIET) == []


async def test_no_conflict_is_found_when_every_index_is_acked_or_pending(
    one: TransactionClient, topic: str
) -> None:
    await one.start(topic, SUB.Shared, 1, batch=3)
    assert len(await one.got(1)) == 1
    first, second, third = await one.begin(), await one.begin(), await one.begin()
    assert await one.ack(first, 0, mask=0b110) == ""
    assert "TransactionConflict" in await one.ack(third, 0, mask=0b110)
    assert await one.ack(second, 0, mask=0b001) == ""
    assert await one.ack(third, 0, mask=0b110) == ""
    for txn in (first, second, third):
        await one.end(txn, COMMIT)
    assert await one.got(QUIET) == []


async def test_no_conflict_is_found_in_the_last_words_of_a_large_batch(
    one: TransactionClient, topic: str
) -> None:
    size, low = 66, (1 << 64) - 1
    await one.start(topic, SUB.Shared, 1, batch=size)
    assert len(await one.got(1)) == 1
    full = (1 << size) - 1
    first, second = await one.begin(), await one.begin()
    assert await one.ack(first, 0, mask=full & ~(1 << 64)) == ""
    assert "TransactionConflict" in await one.ack(second, 0, mask=low)
    assert await one.ack(first, 0, mask=full & ~(1 << 65)) == ""
    assert await one.ack(second, 0, mask=low) == ""
    await one.end(first, COMMIT)
    third = await one.begin()
    assert await one.ack(third, 0, mask=low) == ""
    assert "TransactionConflict" in await one.ack(third, 0)


async def test_an_ack_in_a_transaction_that_ended_or_never_began_is_accepted(
    one: TransactionClient, topic: str
) -> None:
    await one.start(topic, SUB.Shared, 1)
    assert len(await one.got(1)) == 1
    txn = await one.begin()
    await one.end(txn, ABORT)
    assert await one.ack(txn, 0) == ""
    one.send(one.redeliver())
    assert await one.got(QUIET) == []


@pytest.mark.parametrize("kind", [SUB.Shared, SUB.Exclusive])
async def test_a_non_persistent_subscription_takes_no_acks_in_transactions(
    one: TransactionClient, topic: str, kind: int
) -> None:
    await one.start(topic, kind, 1)
    txn = await one.begin(registered=False)
    await one.close_consumer()
    await one.subscribe(topic.replace("persistent", "non-persistent"), kind)
    refused = (
        "NotAllowedError "
        "org.apache.pulsar.broker.service.BrokerServiceException$NotAllowedException: "
        "Server don't support transaction ack!"
    )
    assert await one.ack(txn, 0) == refused
    ignored = kind == SUB.Shared
    assert await one.ack(txn, 0, cumulative=True) == ("" if ignored else refused)


async def test_messages_of_an_abort_come_before_its_answer(
    one: TransactionClient, topic: str
) -> None:
    await one.start(topic, SUB.Shared, 1)
    assert len(await one.got(1)) == 1
    txn = await one.begin()
    assert await one.ack(txn, 0) == ""
    await one.end(txn, ABORT)
    await asyncio.sleep(0)
    assert (await one.message(0.001)).redelivery_count == 1
