"""The native consumer with corrupted entries, deleted topics, incomplete messages and lost acks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from native_kit import CONNECTED, TOPIC, Collector, Rig, run, settle

from pulsar_encore.devbroker.rules.faults import Fault, FaultPlan
from pulsar_encore.devbroker.rules.topic_log import LogEntry
from pulsar_encore.options import ConsumerType
from pulsar_encore.transport.interface import AckPlan
from pulsar_encore.transport.native.connection.session import Session
from pulsar_encore.values.message_id import MessageId
from pulsar_encore.wire import frames, pb
from pulsar_encore.wire.entries import encode_batch, encode_body

OTHER = f"{TOPIC}-other"
PUBLISHED = 1_700_000_000_000


def backlog(rig: Rig, topic: str = TOPIC) -> int:
    return int(rig.service.catalogue.topic(topic).subscriptions["s"].backlog)


def store_broken_batch(rig: Rig) -> None:
    """Store a batch of 5 with a wrong checksum."""
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=7, publish_time=PUBLISHED, num_messages_in_batch=5
    )
    body = bytearray(
        encode_body(metadata, encode_batch((pb.SingleMessageMetadata(), b"x") for _ in range(5)))
    )
    body[-1] ^= 1
    state = rig.service.catalogue.topic(TOPIC, create=True)
    state.log.append(LogEntry(bytes(body), batch=5, publish_ms=PUBLISHED))


def store_chunks(rig: Rig, *pieces: bytes, uuid: str = "p-1") -> None:
    for index, piece in enumerate(pieces):
        rig.store(
            piece,
            uuid=uuid,
            chunk_id=index,
            num_chunks_from_msg=3,
            total_chunk_msg_size=3,
        )


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.Exclusive])
def test_a_broken_batch_is_requested_once_more_then_acked_and_costs_no_permits(
    kind: ConsumerType,
) -> None:
    async def main() -> None:
        rig = Rig()
        transport_consumer, listener = await rig.subscribe(
            receiver_queue_size=3, consumer_type=kind
        )
        store_broken_batch(rig)
        rig.store(b"a", b"b", b"c", b"d", b"e", b"f")
        for _ in range(20):
            await settle(0.3)
            transport_consumer.consumed(0, 1)
        assert sorted(set(listener.payloads)) == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert listener.names.count("disconnected") == 2
        assert backlog(rig) == 6

    run(main())


def test_a_deleted_topic_is_waited_for_and_the_other_topics_continue() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"a")
        rig.store(b"b", topic=OTHER)
        transport_consumer, listener = await rig.subscribe(
            topics=(TOPIC, OTHER), force_topic_creation=False
        )
        rig.service.delete(OTHER)
        await settle(5)
        assert not transport_consumer.is_connected()
        assert set(listener.names) == {"disconnected", "retrying"}
        rig.store(b"c")
        await settle()
        assert sorted(listener.payloads) == [b"a", b"b", b"c"]
        rig.service.delete(TOPIC)
        await settle(100)
        rig.store(b"d")
        rig.store(b"e", topic=OTHER)
        await settle(60)
        assert transport_consumer.is_connected()
        assert sorted(listener.payloads) == [b"a", b"b", b"c", b"d", b"e"]
        assert "failed" not in listener.names

    run(main())


def test_a_lost_ack_of_a_chunked_message_is_sent_again_for_all_its_chunks() -> None:
    async def main() -> None:
        rig = Rig()
        transport_consumer, listener = await rig.subscribe()
        store_chunks(rig, b"a", b"b", b"c")
        await settle()
        assert listener.payloads == [b"abc"]
        plan = AckPlan(0, None, [(each.ledger, each.entry) for each in listener.deliveries], [])
        rig.service.faults = FaultPlan([Fault(kind="close_before", command="ACK")])
        transport_consumer.ack(plan)
        await settle(1)
        assert backlog(rig) == 3
        transport_consumer.ack(plan)
        await settle()
        assert backlog(rig) == 0

    run(main())


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.Exclusive])
def test_an_incomplete_chunked_message_is_redelivered_once_before_it_is_acked(
    kind: ConsumerType,
) -> None:
    async def main() -> None:
        rig = Rig()
        _, listener = await rig.subscribe(consumer_type=kind)
        store_chunks(rig, b"a", b"b")
        await settle(100)
        assert backlog(rig) == 2
        await settle(60)
        assert backlog(rig) == 0
        assert listener.payloads == []

    run(main())


class Writer:
    """A transport that discards the bytes of a session."""

    ended = False

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        self.ended = True

    abort = close


@pytest.mark.parametrize(
    ("answer", "alive"),
    [
        (b"\0", False),  # a frame that never completes because its size is corrupted
        (frames.encode(pb.CommandPing()), False),  # the broker never receives our commands
        (frames.encode(pb.CommandPong()), True),
    ],
)
def test_only_answers_keep_a_connection_alive_and_not_bytes(answer: bytes, alive: bool) -> None:
    async def main() -> None:
        writer = Writer()
        session = Session(
            writer,
            loop=asyncio.get_running_loop(),
            request_ids=iter(range(1, 1000)),
            keep_alive_s=30.0,
            peer="test:6650",
            renew=lambda session: None,
            on_end=lambda session: None,
        )
        session.receive(CONNECTED)
        if answer == b"\0":
            session.receive((1 << 20).to_bytes(4))
        for _ in range(20):
            await asyncio.sleep(10)
            session.receive(answer)
        assert session.closed is not alive
        session.close()

    run(main())


def unread_reports(listener: Collector) -> list[tuple[int, str]]:
    """Return (entry, reason) of each entry that was not delivered."""
    return [
        (entry, why.name)
        for name, *details in listener.calls
        if name == "skipped"
        for _, entry, why, _ in details[1]
    ]


async def read_from(rig: Rig, start: MessageId, **fields: Any) -> tuple[Any, Collector]:
    return await rig.subscribe(
        consumer_type=ConsumerType.Exclusive, durable=False, start_message_id=start, **fields
    )


def test_a_reader_that_skips_a_broken_entry_loses_no_other_message() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"a", b"b")
        store_broken_batch(rig)
        rig.store(b"c")
        transport_consumer, listener = await read_from(rig, MessageId.earliest)
        await settle(20)
        assert listener.payloads == [b"a", b"b", b"c"]
        assert unread_reports(listener) == [(2, "BROKEN")]
        await transport_consumer.close()

    run(main())


def test_entries_that_are_no_messages_are_reported_to_a_reader() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"a")
        rig.store(b"", marker_type=10)
        store_chunks(rig, b"x", b"y", b"z")
        rig.store(b"b")
        transport_consumer, listener = await read_from(rig, MessageId.earliest)
        assert listener.payloads == [b"a", b"xyz", b"b"]
        assert unread_reports(listener) == [(1, "MARKER"), (2, "CHUNK"), (3, "CHUNK")]
        await transport_consumer.close()
        # A reader that begins between two chunks gets no message from the remaining chunks.
        first = listener.deliveries[0]
        transport_consumer, listener = await read_from(
            rig, MessageId(-1, first.ledger, first.entry + 2)
        )
        assert listener.payloads == [b"b"]
        assert unread_reports(listener)[:2] == [(3, "INCOMPLETE"), (4, "INCOMPLETE")]
        await transport_consumer.close()

    run(main())


def test_entries_that_are_no_messages_are_not_reported_to_a_consumer_that_acks() -> None:
    async def main() -> None:
        rig = Rig()
        transport_consumer, listener = await rig.subscribe()
        rig.store(b"", marker_type=10)
        store_chunks(rig, b"x", b"y", b"z")
        await settle()
        assert listener.payloads == [b"xyz"]
        assert unread_reports(listener) == []
        await transport_consumer.close()

    run(main())


@pytest.mark.parametrize("losses", [1, 2])
def test_a_reader_that_loses_its_connection_between_chunks_gets_their_message(losses: int) -> None:
    """Other messages may lie between the chunks, and the reader would continue after them."""

    async def main() -> None:
        rig = Rig()
        pieces = {"num_chunks_from_msg": 3, "total_chunk_msg_size": 3, "uuid": "p-1"}
        rig.store(b"a")
        rig.store(b"x", chunk_id=0, **pieces)
        rig.store(b"b")
        rig.store(b"y", chunk_id=1, **pieces)
        rig.store(b"c")
        transport_consumer, listener = await read_from(rig, MessageId.earliest)
        assert listener.payloads == [b"a", b"b", b"c"]
        for _ in range(losses):
            rig.dialer.drop()
            await settle(5)
        rig.store(b"z", chunk_id=2, **pieces)
        rig.store(b"d")
        await settle(5)
        assert listener.payloads == [b"a", b"b", b"c", b"xyz", b"d"]
        await transport_consumer.close()

    run(main())
