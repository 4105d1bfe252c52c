"""The broker with raw frames: handshake, order of commands, invalid input and limits."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest
from google.protobuf.message import Message

from pulsar_encore.devbroker import Broker, BrokerSettings
from pulsar_encore.errors import ConfigurationError, TransportError
from pulsar_encore.wire import PROTOCOL_VERSION, frames, pb
from pulsar_encore.wire.checksum import topics_hash
from pulsar_encore.wire.entries import encode_body

TYPE = pb.BaseCommand.Type
TOPIC = "persistent://public/default/t"


class Wire:
    """A client that sends and reads raw frames."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._decoder = frames.FrameDecoder()
        self._ready: list[frames.Frame] = []

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._broker.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def handshake(self, **fields: Any) -> pb.BaseCommand:
        self.send(
            pb.CommandConnect(client_version="test", protocol_version=PROTOCOL_VERSION, **fields)
        )
        return await self.get("CONNECTED")

    def send(self, *sent: Message) -> None:
        self.raw(b"".join(frames.encode(command) for command in sent))

    def raw(self, data: bytes) -> None:
        self._writer.write(data)

    async def next(self) -> frames.Frame:
        while not self._ready:
            data = await asyncio.wait_for(self._reader.read(65_536), 3)
            if not data:
                raise EOFError
            self._ready = self._decoder.feed(data)
        return self._ready.pop(0)

    async def get(self, kind: str) -> pb.BaseCommand:
        frame = await self.next()
        assert TYPE.Name(frame.command.type) == kind, frame.command
        return frame.command

    async def closed(self) -> None:
        with pytest.raises((EOFError, ConnectionError)):
            while True:
                await self.next()

    async def quiet(self) -> None:
        """Assert that everything sent so far was handled without an answer."""
        self.send(pb.CommandPing())
        await self.get("PONG")


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(BrokerSettings(keep_alive_s=10)) as running:
        yield running


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    async with Wire(broker) as one:
        await one.handshake()
        yield one


def body(sequence: int = 0, **fields: Any) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1, **fields)
    return encode_body(metadata, b"payload")


async def make_producer(wire: Wire, producer_id: int = 1) -> None:
    wire.send(pb.CommandProducer(topic=TOPIC, producer_id=producer_id, request_id=1))
    await wire.get("PRODUCER_SUCCESS")


async def make_consumer(wire: Wire, consumer_id: int = 1, **fields: Any) -> None:
    options = {"subType": pb.CommandSubscribe.Shared, **fields}
    wire.send(subscribe(consumer_id, **options))
    await wire.get("SUCCESS")


def subscribe(consumer_id: int = 1, subscription: str = "s", **fields: Any) -> Message:
    options = {"subType": pb.CommandSubscribe.Exclusive, **fields}
    return pb.CommandSubscribe(
        topic=TOPIC, subscription=subscription, consumer_id=consumer_id, request_id=9, **options
    )


def send_frame(sequence: int = 0, producer_id: int = 1, **fields: Any) -> bytes:
    command = pb.CommandSend(producer_id=producer_id, sequence_id=sequence)
    return frames.encode_with_body(command, body(sequence, **fields))


async def test_handshake_answers_the_lower_version(broker: Broker) -> None:
    for asked, given in ((0, 0), (19, 19), (999, 21)):
        async with Wire(broker) as wire:
            wire.send(pb.CommandConnect(client_version="test", protocol_version=asked))
            connected = (await wire.get("CONNECTED")).connected
            assert connected.protocol_version == given
            assert connected.max_message_size == 5_242_880


async def test_ping_is_answered_before_connect(broker: Broker) -> None:
    async with Wire(broker) as wire:
        await wire.quiet()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">I", 5_253_117), id="frame too long"),
        pytest.param(struct.pack(">II", 3, 0), id="no room"),
        pytest.param(struct.pack(">II", 2**32 - 1, 0), id="negative"),
        pytest.param(struct.pack(">II", 10, 9) + b"x" * 6, id="command beyond the frame"),
        pytest.param(struct.pack(">II", 8, 4) + b"\xff" * 4, id="undecodable"),
        pytest.param(struct.pack(">II", 7, 3) + b"\x08\xe7\x07", id="unknown type"),
        pytest.param(struct.pack(">II", 6, 2) + b"\x08\x04", id="type without its body"),
        pytest.param(frames.encode(pb.CommandSuccess(request_id=1)), id="a broker's command"),
        pytest.param(
            frames.encode(pb.CommandConnect(client_version="x", protocol_version=PROTOCOL_VERSION)),
            id="second connect",
        ),
        pytest.param(
            frames.encode(pb.CommandFlow(consumer_id=1, messagePermits=0)),
            id="no permits",
        ),
        pytest.param(
            frames.encode(pb.CommandConsumerStats(consumer_id=7, request_id=1)),
            id="stats of nobody",
        ),
        pytest.param(send_frame(producer_id=77), id="unknown producer"),
        pytest.param(
            frames.encode(pb.CommandGetTopicsOfNamespace(namespace="one", request_id=1)),
            id="malformed namespace",
        ),
    ],
)
async def test_invalid_input_closes_without_an_answer(wire: Wire, data: bytes) -> None:
    wire.raw(data)
    with pytest.raises((EOFError, ConnectionError)):
        frame = await wire.next()
        raise AssertionError(f"answered {frame}")


async def test_invalid_input_closes_only_its_connection(broker: Broker, wire: Wire) -> None:
    async with Wire(broker) as bad:
        bad.raw(b"GET / HTTP/1.1\r\n\r\n")
        await bad.closed()
    await wire.quiet()


async def test_any_command_before_connect_closes_the_connection(broker: Broker) -> None:
    async with Wire(broker) as wire:
        wire.send(pb.CommandLookupTopic(topic="t", request_id=1, authoritative=False))
        await wire.closed()


async def test_silent_and_unconnected_clients_are_closed() -> None:
    async with Broker(BrokerSettings(keep_alive_s=0.04)) as broker:
        async with Wire(broker) as wire:
            await wire.closed()
        async with Wire(broker) as wire:
            await wire.handshake()
            await wire.get("PING")
            await wire.closed()
        async with Wire(broker) as wire:
            await wire.handshake()
            for _ in range(4):
                await wire.get("PING")
                wire.send(pb.CommandPong())


async def test_commands_for_unknown_consumers_are_dropped(wire: Wire) -> None:
    ids = [pb.MessageIdData(ledgerId=1, entryId=0)]
    wire.send(
        pb.CommandFlow(consumer_id=5, messagePermits=10),
        pb.CommandAck(
            consumer_id=5, message_id=ids, request_id=3, ack_type=pb.CommandAck.Individual
        ),
        pb.CommandRedeliverUnacknowledgedMessages(consumer_id=5),
    )
    await wire.quiet()


async def test_a_flow_is_lost_only_if_it_came_before_the_success(wire: Wire) -> None:
    await make_producer(wire)
    wire.send(pb.CommandFlow(consumer_id=1, messagePermits=10), subscribe())
    await wire.get("SUCCESS")
    wire.raw(send_frame())
    await wire.get("SEND_RECEIPT")
    await wire.quiet()


async def test_subscribe_with_an_id_in_use_does_nothing(broker: Broker, wire: Wire) -> None:
    await make_consumer(wire)
    wire.send(subscribe(subscription="other"))
    await wire.get("SUCCESS")
    assert broker.subscription("t", "other") is None


async def test_closing_an_unknown_id_succeeds(wire: Wire) -> None:
    wire.send(
        pb.CommandCloseConsumer(consumer_id=8, request_id=1),
        pb.CommandCloseProducer(producer_id=8, request_id=2),
    )
    assert (await wire.get("SUCCESS")).success.request_id == 1
    assert (await wire.get("SUCCESS")).success.request_id == 2


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (subscribe(subscription=" "), pb.ProducerBusy),
        (
            subscribe(read_compacted=True, subType=pb.CommandSubscribe.Shared),
            pb.NotAllowedError,
        ),
        (
            pb.CommandSeek(consumer_id=4, request_id=1, message_publish_time=1),
            pb.MetadataError,
        ),
        (pb.CommandUnsubscribe(consumer_id=4, request_id=1), pb.MetadataError),
        (pb.CommandGetLastMessageId(consumer_id=4, request_id=1), pb.MetadataError),
        (
            pb.CommandProducer(topic="a/b", producer_id=1, request_id=1),
            pb.InvalidTopicName,
        ),
        (
            pb.CommandProducer(topic="files://a/b/t", producer_id=1, request_id=1),
            pb.InvalidTopicName,
        ),
        (
            pb.CommandProducer(topic="persistent://no/such/t", producer_id=1, request_id=1),
            pb.TopicNotFound,
        ),
    ],
)
async def test_invalid_requests_get_their_error_code(
    wire: Wire, command: Message, code: int
) -> None:
    wire.send(command)
    assert (await wire.get("ERROR")).error.error == code
    await wire.quiet()


async def test_checksum_is_verified_and_the_connection_stays(wire: Wire) -> None:
    await make_producer(wire)
    data = send_frame()
    wire.raw(data[:-1] + b"X")
    assert (await wire.get("SEND_ERROR")).send_error.error == pb.ChecksumError
    wire.raw(send_frame(4))
    assert (await wire.get("SEND_RECEIPT")).send_receipt.sequence_id == 4


@pytest.mark.parametrize("count", [-1, 2**31 - 1])
async def test_an_impossible_batch_is_refused(wire: Wire, count: int) -> None:
    await make_producer(wire)
    wire.raw(send_frame(num_messages_in_batch=count))
    assert (await wire.get("SEND_ERROR")).send_error.error == pb.NotAllowedError


async def test_a_payload_passes_unchanged(wire: Wire) -> None:
    await make_producer(wire)
    await make_consumer(wire)
    wire.send(pb.CommandFlow(consumer_id=1, messagePermits=10))
    plain = encode_body(
        pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), b"x", checksum=False
    )
    for sent in (body(0, num_messages_in_batch=1), plain):
        wire.raw(frames.encode_with_body(pb.CommandSend(producer_id=1, sequence_id=0), sent))
        got = [await wire.next(), await wire.next()]
        assert {TYPE.Name(frame.command.type) for frame in got} == {"SEND_RECEIPT", "MESSAGE"}
        assert [frame.body for frame in got if frame.body] == [sent]


async def test_message_commands_have_the_expected_fields(wire: Wire) -> None:
    await make_producer(wire)
    await make_consumer(wire)
    wire.raw(send_frame(num_messages_in_batch=3))
    wire.send(pb.CommandFlow(consumer_id=1, messagePermits=100))
    await wire.get("SEND_RECEIPT")
    message = (await wire.get("MESSAGE")).message
    place = message.message_id
    assert (message.consumer_id, place.partition, place.entryId) == (1, -1, 0)
    assert not message.HasField("redelivery_count")
    assert not message.HasField("consumer_epoch")
    assert list(message.ack_set) == []
    some = pb.MessageIdData(ledgerId=place.ledgerId, entryId=0, ack_set=[0b110])
    wire.send(
        pb.CommandAck(consumer_id=1, message_id=[some], ack_type=pb.CommandAck.Individual),
        pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1),
    )
    message = (await wire.get("MESSAGE")).message
    assert (message.redelivery_count, list(message.ack_set)) == (1, [0b110])


async def test_only_exclusive_consumers_get_the_epoch_back(wire: Wire) -> None:
    await make_producer(wire)
    await make_consumer(
        wire, 1, subscription="x", subType=pb.CommandSubscribe.Exclusive, consumer_epoch=4
    )
    await make_consumer(wire, 2, consumer_epoch=4)
    wire.send(
        pb.CommandFlow(consumer_id=1, messagePermits=9),
        pb.CommandFlow(consumer_id=2, messagePermits=9),
    )
    wire.raw(send_frame())
    await wire.get("SEND_RECEIPT")
    epochs = {}
    for _ in range(2):
        message = (await wire.get("MESSAGE")).message
        epochs[message.consumer_id] = (
            message.consumer_epoch if message.HasField("consumer_epoch") else None
        )
    assert epochs == {1: 4, 2: None}


async def test_an_ack_is_answered_only_on_request(wire: Wire) -> None:
    await make_consumer(wire)
    wire.send(
        pb.CommandAck(consumer_id=1, message_id=[], ack_type=pb.CommandAck.Individual),
        pb.CommandAck(
            consumer_id=1, message_id=[], request_id=6, ack_type=pb.CommandAck.Individual
        ),
    )
    assert (await wire.get("ACK_RESPONSE")).ackResponse.request_id == 6


async def test_stats_show_permits_below_zero(wire: Wire) -> None:
    await make_producer(wire)
    await make_consumer(wire)
    wire.raw(send_frame(num_messages_in_batch=10))
    await wire.get("SEND_RECEIPT")
    wire.send(pb.CommandFlow(consumer_id=1, messagePermits=1))
    await wire.get("MESSAGE")
    wire.send(pb.CommandConsumerStats(consumer_id=1, request_id=3))
    stats = (await wire.get("CONSUMER_STATS_RESPONSE")).consumerStatsResponse
    assert stats.availablePermits == 2**64 - 9
    assert (stats.unackedMessages, stats.msgBacklog, stats.type) == (10, 1, "Shared")


async def test_topic_lists_of_a_namespace_use_a_hash(broker: Broker, wire: Wire) -> None:
    def ask(known: str | None = None) -> Message:
        return pb.CommandGetTopicsOfNamespace(
            namespace="public/default", request_id=1, topics_hash=known
        )

    wire.send(ask())
    answer = (await wire.get("GET_TOPICS_OF_NAMESPACE_RESPONSE")).getTopicsOfNamespaceResponse
    assert (list(answer.topics), answer.topics_hash) == ([], "00000000")
    broker.create_topic("a")
    broker.create_partitioned_topic("b", 1)
    wire.send(ask("00000000"))
    answer = (await wire.get("GET_TOPICS_OF_NAMESPACE_RESPONSE")).getTopicsOfNamespaceResponse
    names = [f"persistent://public/default/{name}" for name in ("a", "b-partition-0")]
    assert (list(answer.topics), answer.changed) == (names, True)
    assert answer.topics_hash == topics_hash(reversed(names))
    wire.send(ask(answer.topics_hash))
    answer = (await wire.get("GET_TOPICS_OF_NAMESPACE_RESPONSE")).getTopicsOfNamespaceResponse
    assert (list(answer.topics), answer.changed) == ([], False)


async def test_a_lookup_can_be_required_first() -> None:
    async with Broker(BrokerSettings(require_lookup=True)) as broker, Wire(broker) as wire:
        await wire.handshake()
        wire.send(subscribe())
        assert (await wire.get("ERROR")).error.error == pb.ServiceNotReady
        wire.send(pb.CommandLookupTopic(topic="t", request_id=2, authoritative=False))
        found = (await wire.get("LOOKUP_RESPONSE")).lookupTopicResponse
        assert found.brokerServiceUrl == broker.url
        await make_consumer(wire)


async def test_a_live_exclusive_consumer_keeps_its_subscription(broker: Broker, wire: Wire) -> None:
    await make_consumer(wire, subType=pb.CommandSubscribe.Exclusive)
    async with Wire(broker) as other:
        await other.handshake()
        other.send(subscribe())
        await wire.get("PING")
        wire.send(pb.CommandPong())
        assert (await other.get("ERROR")).error.error == pb.ConsumerBusy


async def test_a_silent_exclusive_consumer_is_disconnected() -> None:
    settings = BrokerSettings(liveness_timeout_s=0.04)
    async with Broker(settings) as broker, Wire(broker) as wire, Wire(broker) as other:
        await wire.handshake()
        await other.handshake()
        await make_consumer(wire, subType=pb.CommandSubscribe.Exclusive)
        other.send(subscribe())
        await other.get("SUCCESS")
        await wire.closed()


async def test_waiting_producer_is_ready_with_the_same_request_id(wire: Wire) -> None:
    def producer(producer_id: int, request_id: int, mode: Any) -> Message:
        return pb.CommandProducer(
            topic=TOPIC,
            producer_id=producer_id,
            request_id=request_id,
            producer_access_mode=mode,
        )

    wire.send(producer(1, 11, pb.Exclusive), producer(2, 12, pb.WaitForExclusive))
    assert (await wire.get("PRODUCER_SUCCESS")).producer_success.producer_ready
    assert not (await wire.get("PRODUCER_SUCCESS")).producer_success.producer_ready
    wire.send(pb.CommandCloseProducer(producer_id=1, request_id=13))
    ready = (await wire.get("PRODUCER_SUCCESS")).producer_success
    assert (ready.request_id, ready.producer_ready, ready.topic_epoch) == (12, True, 1)
    await wire.get("SUCCESS")
    wire.send(producer(3, 14, pb.ExclusiveWithFencing))
    assert (await wire.get("PRODUCER_SUCCESS")).producer_success.topic_epoch == 2
    wire.raw(send_frame(producer_id=2))
    await wire.closed()


async def test_the_start_up_line_and_the_error_for_a_port_in_use(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Broker() as broker:
        assert "not for production" in caplog.text and broker.url in caplog.text
        with pytest.raises(TransportError, match="choose another port"):
            await Broker(BrokerSettings(port=broker.port)).start()


@pytest.mark.parametrize(
    "fields",
    [
        {"port": -1},
        {"port": 70_000},
        {"keep_alive_s": 0},
        {"delayed_tick_ms": 0},
        {"look_ahead": 0},
        {"rewind_overtaken": 1.5},
    ],
)
def test_settings_errors_name_the_invalid_field(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(fields))):
        BrokerSettings(**fields)
