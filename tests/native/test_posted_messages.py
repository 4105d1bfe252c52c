"""Messages that are posted: `on_done` gets the outcome, without a future to await."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from producer_kit import TOPIC, Network, message, virtual

from pulsar_encore.errors import ClosedError
from pulsar_encore.exceptions import MessageTooBig, ProducerQueueIsFull
from pulsar_encore.transport.interface import OnPosted, TransportProducer
from pulsar_encore.values.message_id import MessageId
from pulsar_encore.values.outgoing_message import OutgoingMessage

UNBATCHED = {"batching_enabled": False}


class Outcomes:
    """The outcomes of posted messages, by number, in the order of the calls."""

    def __init__(self) -> None:
        self.all: list[tuple[int, str]] = []

    def of(self, number: int) -> OnPosted:
        return lambda error: self.all.append((number, type(error).__name__))


@pytest.mark.parametrize("options", [{}, UNBATCHED, {**UNBATCHED, "chunking_enabled": True}])
@virtual
async def test_posted_and_published_messages_are_stored_in_the_order_of_the_calls(
    options: dict[str, Any],
) -> None:
    network, outcomes = Network(), Outcomes()
    producer = await network.producer(**options)
    published = []
    for number in range(0, 20, 2):
        producer.post(message(number), outcomes.of(number))
        published.append(producer.publish(message(number + 1)))
    assert outcomes.all == []  # nothing is stored yet
    await asyncio.gather(*published)
    assert outcomes.all == [(number, "NoneType") for number in range(0, 20, 2)]
    assert network.payloads() == [b"%d" % number for number in range(20)]
    await producer.close()


@virtual
async def test_an_outcome_is_reported_in_the_step_that_handles_the_receipt() -> None:
    network, steps = Network(), []
    producer = await network.producer(**UNBATCHED)
    published = asyncio.ensure_future(producer.publish(message(0)))
    published.add_done_callback(lambda _: steps.append("published"))
    producer.post(message(1), lambda error: steps.append("posted"))
    await asyncio.sleep(1)
    assert steps == ["posted", "published"]  # the second receipt overtakes the done callback
    await producer.close()


@virtual
async def test_an_error_of_on_done_does_not_disturb_the_producer() -> None:
    network, outcomes = Network(), Outcomes()
    # Each message needs the queue slot of the one before.
    producer = await network.producer(**UNBATCHED, max_pending_messages=1, block_if_queue_full=True)
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: reported.append(context.get("exception"))
    )
    failure = KeyError("e.g. a full disk")

    def broken(error: Exception | None) -> None:
        raise failure

    producer.post(message(0), broken)
    producer.post(message(1), outcomes.of(1))
    await asyncio.sleep(1)
    producer.post(message(2), outcomes.of(2))
    await asyncio.sleep(1)
    assert outcomes.all == [(1, "NoneType"), (2, "NoneType")]
    assert reported == [failure]
    assert network.dialled == 1  # the connection was kept
    await producer.close()


@virtual
async def test_flush_waits_for_posted_messages_also_if_they_wait_for_the_queue() -> None:
    network, outcomes = Network(), Outcomes()
    producer = await network.producer(**UNBATCHED, max_pending_messages=2, block_if_queue_full=True)
    for number in range(5):
        producer.post(message(number), outcomes.of(number))
    await producer.flush()
    assert outcomes.all == [(number, "NoneType") for number in range(5)]
    await producer.close()


@virtual
async def test_each_posted_message_without_a_receipt_fails_once_when_the_producer_is_closed() -> (
    None
):
    network, outcomes = Network(), Outcomes()
    producer = await network.producer(**UNBATCHED, max_pending_messages=2, block_if_queue_full=True)
    for number in range(4):
        producer.post(message(number), outcomes.of(number))
    await producer.close()
    await asyncio.sleep(60)
    assert sorted(outcomes.all) == [(number, "ClosedError") for number in range(4)]
    with pytest.raises(ClosedError):
        producer.post(message(4), outcomes.of(4))
    assert len(outcomes.all) == 4


@virtual
async def test_a_message_that_cannot_be_sent_fails_within_the_call() -> None:
    network, outcomes = Network(), Outcomes()
    producer = await network.producer(**UNBATCHED, max_pending_messages=1)
    producer.post(OutgoingMessage(payload=bytes(6_000_000)), outcomes.of(0))
    assert outcomes.all == [(0, MessageTooBig.__name__)]
    producer.post(message(1), outcomes.of(1))  # its slot is free again
    producer.post(message(2), outcomes.of(2))
    assert outcomes.all[1:] == [(2, ProducerQueueIsFull.__name__)]
    await producer.flush()
    assert outcomes.all[2:] == [(1, "NoneType")]
    await producer.close()


@virtual
async def test_a_transport_without_a_way_of_its_own_posts_through_publish() -> None:
    class Producer(TransportProducer):
        topic = TOPIC
        producer_name = ""
        last_sequence_id = -1

        def publish(self, message: OutgoingMessage) -> asyncio.Future[MessageId]:
            return sending[int(message.payload or b"")]

    loop = asyncio.get_running_loop()
    sending: list[asyncio.Future[MessageId]] = [loop.create_future() for _ in range(3)]
    producer, outcomes = Producer(), Outcomes()
    for number in range(3):
        producer.post(message(number), outcomes.of(number))
    sending[2].cancel()
    sending[1].set_exception(MessageTooBig("no"))
    sending[0].set_result(MessageId(-1, 5, 6))
    await asyncio.sleep(0)
    assert outcomes.all == [(2, "ClosedError"), (1, "MessageTooBig"), (0, "NoneType")]
