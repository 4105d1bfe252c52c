"""One session, back to back with the broker's core: handshake, requests and end."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_kit import CONNECTED, TOPIC, Rig, at_random, message_frame, run, settle

from pulsar_encore.devbroker.broker_settings import BrokerSettings
from pulsar_encore.errors import ProtocolError, TransportTimeout
from pulsar_encore.exceptions import (
    AuthenticationError,
    ConnectError,
    NotConnected,
    TopicNotFound,
)
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.connection.pool import ConnectionPool
from pulsar_encore.transport.native.connection.session import Session
from pulsar_encore.wire import NO_REQUEST, frames, pb
from pulsar_encore.wire.entries import encode_body


class Writer:
    """A socket without a reader."""

    def __init__(self) -> None:
        self.written = b""
        self.ended = ""

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Handler:
    """A consumer that records its calls."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, int, int, int, bytes]] = []
        self.ends = 0
        self.lost: list[Exception] = []
        self.closed: list[str | None] = []

    def on_entry(
        self,
        ledger: int,
        entry: int,
        redelivery_count: int,
        ack_set: int,
        epoch: int,
        data: bytes,
        at: int,
        end: int,
    ) -> None:
        self.entries.append((ledger, entry, redelivery_count, ack_set, epoch, data[at:end]))

    def on_run(
        self, template: Any, ledger: int, epoch: int, data: bytes, at: int, most: int, stop: int
    ) -> int:
        return at

    def on_entries_end(self) -> None:
        self.ends += 1

    def on_closed_by_broker(self, address: str | None) -> None:
        self.closed.append(address)

    def on_lost(self, error: Exception) -> None:
        self.lost.append(error)

    def on_end_of_topic(self) -> None: ...
    def on_active_change(self, active: bool) -> None: ...


def alone(handler: Handler | None = None) -> tuple[Session, Writer]:
    """Return an accepted session with the test as its broker."""
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
    if handler is not None:
        session.attach_consumer(1, handler)
    return session, writer


def body(text: bytes = b"x") -> bytes:
    return encode_body(
        pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1_700_000_000_000), text
    )


def test_a_connection_is_accepted_and_records_the_brokers_version() -> None:
    async def main() -> None:
        rig = Rig(BrokerSettings(max_message_size=100_000))
        pool = rig.lookup.pool
        session = await pool.any_broker()
        assert session.max_message_size == 100_000
        assert await pool.any_broker() is session
        assert len(rig.dialer.lines) == 1

    run(main())


def test_concurrent_callers_share_one_connection_and_can_be_cancelled() -> None:
    async def main() -> None:
        rig = Rig()
        pool = rig.lookup.pool
        asking = [asyncio.create_task(pool.any_broker()) for _ in range(10)]
        await asyncio.sleep(0)
        asking[0].cancel()
        sessions = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(sessions[0], asyncio.CancelledError)
        assert len({id(each) for each in sessions[1:]}) == 1
        assert len(rig.dialer.lines) == 1

    run(main())


def test_a_refused_login_is_an_authentication_error() -> None:
    async def main() -> None:
        rig = Rig(BrokerSettings(token="secret"))
        with pytest.raises(AuthenticationError):
            await rig.lookup.partitions(TOPIC)

    run(main())


def test_an_unreachable_broker_is_an_error_that_names_it() -> None:
    async def main() -> None:
        rig = Rig()
        rig.dialer.reachable = False
        with pytest.raises(ConnectError):
            await rig.lookup.partitions(TOPIC)

    run(main())


def test_a_refusal_fails_its_request_and_keeps_the_connection() -> None:
    async def main() -> None:
        rig = Rig()
        lookup = rig.lookup
        with pytest.raises(TopicNotFound, match="partitions of"):
            await lookup.partitions("persistent://nobody/there/t")
        assert await lookup.partitions(TOPIC) == 0
        assert len(rig.dialer.lines) == 1

    run(main())


def test_a_request_without_an_answer_times_out_and_a_late_answer_is_ignored() -> None:
    async def main() -> None:
        session, _ = alone()
        asked = session.request(
            lambda request_id: pb.CommandLookupTopic(
                topic=TOPIC, request_id=request_id, authoritative=False
            ),
            "look up",
            5.0,
        )
        with pytest.raises(TransportTimeout, match="look up: no answer from the broker within 5 s"):
            await asked
        session.receive(frames.encode(pb.CommandSuccess(request_id=1)))
        assert not session.closed
        assert session.idle

    run(main())


def test_the_end_of_a_connection_fails_requests_and_notifies_each_handler_once() -> None:
    async def main() -> None:
        handler = Handler()
        session, _ = alone(handler)
        asked = session.request(
            lambda request_id: pb.CommandLookupTopic(
                topic=TOPIC, request_id=request_id, authoritative=False
            ),
            "look up",
            5.0,
        )
        session.lost(ConnectionResetError("reset"))
        session.lost(None)
        with pytest.raises(NotConnected, match=r"look up: .*reset"):
            await asked
        assert len(handler.lost) == 1
        with pytest.raises(NotConnected):
            session.attach_consumer(2, Handler())

    run(main())


def test_a_silent_broker_is_disconnected_and_one_that_answers_is_not() -> None:
    async def main() -> None:
        handler = Handler()
        session, writer = alone(handler)
        await asyncio.sleep(31)
        assert frames.encode(pb.CommandPing()) in writer.written
        await asyncio.sleep(60)
        assert session.closed
        assert writer.ended == "aborted"
        assert isinstance(handler.lost[0], TransportTimeout)
        rig = Rig(BrokerSettings(keep_alive_s=10), ClientSettings(keep_alive_s=5))
        live = await rig.lookup.pool.any_broker()
        await asyncio.sleep(100)
        assert not live.closed

    run(main())


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46" + b"\0" * 20,  # a TLS alert
        b"\0\0\0\x08\0\0\0\x09aaaa",
        b"\0\0\0\x04\0\0\0\0",
        b"\xff\xff\xff\xff\0\0\0\0",
        b"\0\0\0\x09\0\0\0\x05\xff\xff\xff\xff\xff",
    ],
)
def test_garbage_ends_the_connection_with_an_error(garbage: bytes) -> None:
    async def main() -> None:
        handler = Handler()
        session, _ = alone(handler)
        session.receive(garbage)
        session.receive(garbage)
        assert session.closed
        assert isinstance(handler.lost[0], ProtocolError)

    run(main())


@given(st.binary(max_size=300), st.randoms(use_true_random=False))
def test_any_input_is_understood_or_ends_the_connection_and_holds_little_memory(
    data: bytes, rng: Random
) -> None:
    async def main() -> None:
        session, _ = alone(Handler())
        at = 0
        while at < len(data):
            end = at + rng.randint(1, 40)
            session.receive(data[at:end])
            at = end
        session.lost(None)

    run(main())


def test_an_error_without_a_request_ends_the_connection() -> None:
    async def main() -> None:
        session, _ = alone()
        refusal = pb.CommandError(
            error=pb.TooManyRequests, message="too many connections", request_id=NO_REQUEST
        )
        session.receive(frames.encode(refusal))
        assert session.closed

    run(main())


@given(st.data())
def test_messages_do_not_depend_on_how_the_stream_is_cut(data: st.DataObject) -> None:
    """The fast path for equal commands gives the same result as the general path."""
    numbers = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from([0, 1, 127, 128, 129, 16_383, 16_384, 2_097_152, 3_000_000]),
                st.sampled_from([3, 4, 300]),
                st.sampled_from([0, 0, 0, 2]),
                st.sampled_from([(), (), (5,)]),
                st.sampled_from([None, None, 1]),
            ),
            max_size=40,
        )
    )
    rng = Random(data.draw(st.integers(0, 2**32)))
    stream, expected = b"", []
    for entry, ledger, count, ack_set, epoch in numbers:
        payload = body(b"%d" % entry)
        stream += message_frame(
            entry,
            payload,
            ledger=ledger,
            redelivery_count=count,
            ack_set=ack_set,
            consumer_epoch=epoch,
        )
        mask = ack_set[0] if ack_set else -1
        expected.append((ledger, entry, count, mask, epoch or 0, payload))

    async def main() -> list[Any]:
        handler = Handler()
        session, _ = alone(handler)
        at = 0
        while at < len(stream):
            end = at + rng.choice([1, 7, 60, 400, 10_000])
            session.receive(stream[at:end])
            at = end
        assert not session.closed
        session.lost(None)
        return handler.entries

    assert run(main()) == expected


def test_entries_are_handled_before_a_close_that_follows_and_none_after_it() -> None:
    async def main() -> None:
        handler = Handler()
        session, _ = alone(handler)
        close = frames.encode(pb.CommandCloseConsumer(consumer_id=1, request_id=NO_REQUEST))
        session.receive(message_frame(1, body()) + close + message_frame(2, body()))
        assert [each[1] for each in handler.entries] == [1]
        assert handler.ends == 1
        assert handler.closed == [None]

    run(main())


@pytest.mark.parametrize("seed", range(5))
def test_a_whole_conversation_can_be_cut_anywhere(seed: int) -> None:
    async def main() -> None:
        rig = Rig(cuts=at_random(Random(seed)))
        pool: ConnectionPool = rig.lookup.pool
        session = await pool.any_broker()
        assert await rig.lookup.partitions(TOPIC) == 0
        assert (await rig.lookup.owner(TOPIC)) is session
        await settle()
        assert not session.closed

    run(main())


def test_small_writes_are_joined_per_loop_pass_and_large_ones_keep_their_order() -> None:
    async def main() -> None:
        session, writer = alone()
        await settle()
        writer.written = b""
        session.write(b"a" * 10)
        session.write(b"b" * 10)
        assert writer.written == b"", "at the end of the turn"
        session.write(b"c" * 100_000)
        assert writer.written == b"a" * 10 + b"b" * 10 + b"c" * 100_000
        session.write(b"d")
        await settle()
        assert writer.written.endswith(b"cd")
        session.close()

    run(main())
