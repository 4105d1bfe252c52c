"""A producer and a broker in memory, in virtual time: order, options, faults and ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from producer_kit import TOPIC, Network, message, outcomes, virtual

from pulsar_encore.devbroker import BrokerSettings, Fault, FaultPlan
from pulsar_encore.errors import (
    ClosedError,
    ConfigurationError,
    NotSupportedError,
    TransportTimeout,
)
from pulsar_encore.exceptions import (
    AuthorizationError,
    ChecksumError,
    CryptoError,
    MessageTooBig,
    NotAllowedError,
    NotConnected,
    ProducerBusy,
    ProducerFenced,
    ProducerQueueIsFull,
    TopicTerminated,
)
from pulsar_encore.options import (
    BatchingType,
    CompressionType,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProducerOptions,
)
from pulsar_encore.schema import StringSchema
from pulsar_encore.testing import run
from pulsar_encore.transport.native.native_transport import NativeTransport
from pulsar_encore.transport.native.producer.native_producer import NativeProducer
from pulsar_encore.values.crypto_keys import CryptoKeyReader
from pulsar_encore.values.message_id import MessageId
from pulsar_encore.values.outgoing_message import OutgoingMessage
from pulsar_encore.wire import decode_body, decompress
from pulsar_encore.wire import pulsar_pb2 as pb
from pulsar_encore.wire.entry_encryption import DataKeys

UNBATCHED = {"batching_enabled": False}
CHUNKED = {"batching_enabled": False, "chunking_enabled": True}
EARLY = 1_000_000_000_000


def ok(results: list[MessageId | BaseException]) -> list[MessageId]:
    for each in results:
        if isinstance(each, BaseException):
            raise each
    return [each for each in results if isinstance(each, MessageId)]


def firsts(payloads: list[bytes]) -> list[bytes]:
    """Return the first of each group of duplicates."""
    return list(dict.fromkeys(payloads))


# Sending


@pytest.mark.parametrize("options", [{}, UNBATCHED, {"compression_type": CompressionType.LZ4}])
@virtual
async def test_messages_are_stored_in_the_order_of_the_calls(options: dict[str, Any]) -> None:
    network = Network()
    producer = await network.producer(max_pending_messages=5000, **options)
    ids = ok(await outcomes(producer.publish(message(each)) for each in range(2500)))
    assert ids == sorted(ids) and len(set(ids)) == 2500
    assert all(each.topic == TOPIC and each.partition() == -1 for each in ids)
    assert producer.last_sequence_id == 2499
    if "compression_type" not in options:
        assert network.payloads() == [b"%d" % each for each in range(2500)]
    sends = network.commands("SEND")
    assert len(sends) == (2500 if options is UNBATCHED else 3)
    await producer.close()
    assert not producer.is_connected()
    assert not network.service.catalogue.topic(TOPIC).producers.ready


@virtual
async def test_message_ids_contain_the_batch_index() -> None:
    network = Network()
    producer = await network.producer(batching_max_messages=4)
    ids = ok(await outcomes(producer.publish(message(each)) for each in range(9)))
    places = [(each.batch_index(), each.batch_size) for each in ids]
    assert places == [(0, 4), (1, 4), (2, 4), (3, 4), (0, 4), (1, 4), (2, 4), (3, 4), (-1, 0)]
    assert [each.highest_sequence_id for each in network.commands("SEND")][:2] == [3, 7]


@virtual
async def test_a_batch_waits_no_longer_than_its_delay_and_needs_one_timer() -> None:
    network = Network()
    loop = asyncio.get_running_loop()
    producer = await network.producer(batching_max_publish_delay_ms=50, batching_max_messages=10)
    began = loop.time()
    for each in range(25):  # two batches are full, and the timer of the first still runs
        last = producer.publish(message(each))
    await last
    assert 0.05 <= loop.time() - began < 0.06
    await asyncio.sleep(1)
    began = loop.time()
    await producer.publish(message(25))
    assert 0.05 <= loop.time() - began < 0.06


@virtual
async def test_all_fields_of_a_message_arrive() -> None:
    network = Network()
    producer = await network.producer(
        producer_name="namely", properties={"p": "1"}, schema=StringSchema()
    )
    fields: dict[str, Any] = {
        "properties": {"a": "b"},
        "partition_key": "pk",
        "ordering_key": "ok",
        "event_timestamp": 1234,
    }
    sent = [
        OutgoingMessage(payload=b"plain"),
        OutgoingMessage(payload=b"x", **fields),
        OutgoingMessage(payload=None, partition_key="pk"),
        OutgoingMessage(payload=b"d", deliver_at=EARLY, **fields),
        OutgoingMessage(payload=b"r", replication_clusters=["west", "east"]),
        OutgoingMessage(payload=b"l", disable_replication=True),
        OutgoingMessage(payload=b"after"),
    ]
    ok(await outcomes(producer.publish(each) for each in sent))
    stored = network.stored()
    assert [payload for _, _, payload in stored] == [each.payload or b"" for each in sent]
    entries = [metadata for metadata, _, _ in stored]
    assert {each.producer_name for each in entries} == {"namely"}
    assert {each.schema_version for each in entries} == {bytes(8)}
    sizes = [each.num_messages_in_batch for each in entries]
    assert sizes == [3, 3, 3, 1, 1, 1, 1], "what only an entry can say is alone"
    assert len({id(each) for each in entries}) == 5
    for _, metadata, _ in (stored[1], stored[3]):
        assert [(each.key, each.value) for each in metadata.properties] == [("a", "b")]
        assert (metadata.partition_key, metadata.ordering_key) == ("pk", b"ok")
        assert metadata.event_time == 1234
    assert stored[2][1].null_value and not stored[0][1].null_value
    assert entries[3].deliver_at_time == EARLY
    assert list(entries[4].replicate_to) == ["west", "east"]
    assert list(entries[5].replicate_to) == ["__local__"]
    (asked,) = network.commands("PRODUCER")
    assert asked.user_provided_producer_name and asked.schema.type == pb.Schema.String
    assert [(each.key, each.value) for each in asked.metadata] == [("p", "1")]


@virtual
async def test_key_batches_hold_one_key_each_and_respect_their_limits() -> None:
    network = Network()
    producer = await network.producer(batching_type=BatchingType.KeyBased)
    keys = "abcacbbaaacb"
    ok(
        await outcomes(
            producer.publish(message(at, partition_key=key)) for at, key in enumerate(keys)
        )
    )
    entries: dict[int, set[str]] = {}
    for entry, single, payload in network.stored():
        entries.setdefault(id(entry), set()).add(single.partition_key)
        assert keys[int(payload)] == single.partition_key
    assert [len(each) for each in entries.values()] == [1, 1, 1]
    sends = network.commands("SEND")
    bounds = [each.sequence_id for each in sends]
    assert bounds == sorted(bounds) and not any(each.highest_sequence_id for each in sends)


@virtual
async def test_a_message_over_the_limit_is_rejected_before_anything_is_sent() -> None:
    network = Network(settings=BrokerSettings(max_message_size=20_000))
    for options in (UNBATCHED, {}, {"batching_max_allowed_size_in_bytes": 10**6}):
        producer = await network.producer(**options)
        first = producer.publish(message(1))
        large = producer.publish(OutgoingMessage(payload=bytes(20_001)))
        with pytest.raises(MessageTooBig, match="chunking_enabled"):
            await large
        await producer.publish(OutgoingMessage(payload=bytes(20_000)))
        await first
        assert producer.is_connected()
    assert len(network.service.sessions) == 3
    assert Counter(map(len, network.payloads())) == {1: 3, 20_000: 3}


@virtual
async def test_a_batch_stays_below_the_brokers_limit() -> None:
    network = Network(settings=BrokerSettings(max_message_size=20_000))
    producer = await network.producer(batching_max_allowed_size_in_bytes=10**6)
    ok(await outcomes(producer.publish(OutgoingMessage(payload=bytes(700))) for _ in range(100)))
    assert len(network.stored()) == 100
    assert len(network.service.sessions) == 1


class Keys(CryptoKeyReader):
    """Keys of one recipient, in memory."""

    def __init__(self) -> None:
        super().__init__("public", "private")
        self.private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.asked: list[str] = []

    def public_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        self.asked.append(name)
        return self.private.public_key().public_bytes(
            Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        )

    def private_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        return self.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize("options", [{}, UNBATCHED, CHUNKED])
@virtual
async def test_no_payload_is_sent_in_clear_when_keys_are_configured(
    options: dict[str, Any],
) -> None:
    network = Network(settings=BrokerSettings(max_message_size=20_000))
    keys = Keys()
    producer = await network.producer(
        encryption_key=("a", "b"),
        crypto_key_reader=keys,
        compression_type=CompressionType.ZLib,
        **options,
    )
    large = b"".join(b"%d" % each for each in range(30_000)) if options is CHUNKED else b"secret"
    sent = [b"secret 1", b"secret 2" * 100, large]
    ok(await outcomes(producer.publish(OutgoingMessage(payload=each)) for each in sent))
    assert keys.asked == ["a", "b"]
    (asked,) = network.commands("PRODUCER")
    assert asked.encrypted
    known, opened, joined = DataKeys(), b"", b""
    for entry in network.service.catalogue.topic(TOPIC).log.entries:
        assert b"secret" not in entry.body
        metadata, payload, _ = decode_body(entry.body)
        assert [each.key for each in metadata.encryption_keys] == ["a", "b"]
        joined += known.decrypt(metadata, payload, keys.private_key)
        if metadata.chunk_id < metadata.num_chunks_from_msg - 1:
            continue
        whole = decompress(metadata.compression, joined, metadata.uncompressed_size, 10**7)
        opened, joined = opened + bytes(whole), b""
    assert all(each in opened for each in sent)


@virtual
async def test_a_producer_without_usable_encryption_keys_does_not_open() -> None:
    network = Network()
    with pytest.raises(CryptoError, match="public_key_path"):
        await network.producer(
            encryption_key="a", crypto_key_reader=CryptoKeyReader("none.pem", "none.pem")
        )
    with pytest.raises(NotSupportedError, match=r"only the C\+\+ client can read it"):
        await network.producer(
            encryption_key="a", crypto_key_reader=SimpleNamespace(cryptoKeyReader=None)
        )
    assert not network.commands("PRODUCER")


@virtual
async def test_an_initial_subscription_is_created_before_the_first_message() -> None:
    network = Network()
    producer = await network.producer(initial_subscription_name="first")
    await producer.publish(message(1))
    assert network.service.catalogue.topic(TOPIC).subscriptions["first"].backlog == 1


@pytest.mark.parametrize("options", [{}, UNBATCHED, {"batching_type": BatchingType.KeyBased}])
@pytest.mark.parametrize(
    "wrong",
    [{"partition_key": "\ud800"}, {"ordering_key": "\ud800"}, {"properties": {"a": "\ud800"}}],
)
@virtual
async def test_an_invalid_text_is_an_error_of_its_message_only(
    options: dict[str, Any], wrong: dict[str, Any]
) -> None:
    network = Network()
    producer = await network.producer(**options)
    waiting = [producer.publish(each) for each in (message(1), message(2, **wrong), message(3))]
    first, refused, last = await outcomes(waiting)
    assert isinstance(refused, ConfigurationError) and "cannot be sent" in str(refused)
    assert isinstance(first, MessageId) and isinstance(last, MessageId)
    assert network.payloads() == [b"1", b"3"]
    assert producer.parts[0].pending_slots == 0


# Sequence ids


@virtual
async def test_own_sequence_ids_continue_after_the_initial_one() -> None:
    network = Network()
    producer = await network.producer(initial_sequence_id=99)
    assert producer.last_sequence_id == 99
    ok(await outcomes(producer.publish(message(each)) for each in range(3)))
    (send,) = network.commands("SEND")
    assert (send.sequence_id, send.highest_sequence_id) == (100, 102)
    assert [single.sequence_id for _, single, _ in network.stored()] == [100, 101, 102]
    assert producer.last_sequence_id == 102


@virtual
async def test_a_message_that_may_be_a_duplicate_gets_an_entry_of_its_own() -> None:
    """A broker that deduplicates drops a whole batch by its first id, including new messages."""
    network = Network()
    producer = await network.producer()
    given = [5, 6, 6, 7, 3, 8]
    ok(await outcomes(producer.publish(message(each, sequence_id=each)) for each in given))
    sends = network.commands("SEND")
    bounds = [(each.sequence_id, each.highest_sequence_id) for each in sends]
    assert bounds == [(5, 6), (6, 0), (7, 0), (3, 0), (8, 0)]
    assert [single.sequence_id for _, single, _ in network.stored()] == given


@virtual
async def test_a_deduplicated_message_has_an_unknown_id() -> None:
    network = Network(Fault(kind="drop", command="SEND_RECEIPT"))
    producer = await network.producer(**UNBATCHED)
    waiting = producer.publish(message(1))
    await asyncio.sleep(0.1)
    receipt = pb.CommandSendReceipt(producer_id=1, sequence_id=0)
    receipt.message_id.ledgerId = receipt.message_id.entryId = 2**64 - 1
    receipt.highest_sequence_id = 2**64 - 1
    producer.parts[0].on_receipt(receipt)
    got = await waiting
    assert (got.ledger_id(), got.entry_id()) == (-1, -1)
    assert producer.last_sequence_id == 0


# Lost connections and other faults


FAULTS = [
    Fault(kind=kind, command=command, nth=nth)  # type: ignore[arg-type]
    for kind in ("close_before", "close_after", "drop")
    for command in ("SEND", "SEND_RECEIPT")
    for nth in (1, 2, 7)
] + [
    Fault(kind="outage", command="SEND", nth=3, outage_s=2.5),
    Fault(kind="duplicate", command="SEND", nth=2),
    Fault(kind="duplicate", command="SEND_RECEIPT", nth=2),
    Fault(kind="delay", command="SEND", nth=2, delay_ms=200),
    Fault(kind="delay", command="SEND_RECEIPT", nth=2, delay_ms=200),
    Fault(kind="refuse", command="SEND", nth=2, error="PersistenceError"),
    Fault(kind="refuse", command="SEND", nth=2, error="ChecksumError"),
    Fault(kind="refuse", command="PRODUCER", nth=2, error="ServiceNotReady"),
]


# With these faults the broker never stores a later message without the earlier ones, and never
# omits a receipt on a connection that stays.
BREAKING: list[tuple[Any, str]] = [
    ("close_before", "SEND_RECEIPT"),
    ("close_after", "SEND_RECEIPT"),
    ("close_after", "SEND"),
    ("duplicate", "SEND_RECEIPT"),
    ("duplicate", "SEND"),
    ("close_before", "PRODUCER"),
    ("close_after", "PRODUCER_SUCCESS"),
    ("close_before", "LOOKUP"),
]


@virtual
async def test_an_unexpected_receipt_does_not_affect_other_producers_on_the_connection() -> None:
    network = Network(Fault(kind="drop", command="SEND_RECEIPT"))
    producer = await network.producer(**UNBATCHED)
    other = await network.producer(**UNBATCHED)
    dialled = network.dialled
    ok(await outcomes([producer.publish(message(each)) for each in range(3)]))
    assert firsts(network.payloads()) == [b"0", b"1", b"2"]
    ok(await outcomes([other.publish(message(3))]))
    assert network.dialled == dialled
    assert len(network.service.recorder.find("PRODUCER", "in")) == 3, "two, and one of them anew"


@pytest.mark.parametrize("options", [{"batching_max_messages": 3}, UNBATCHED, CHUNKED])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind}-{fault.command}")
@virtual
async def test_no_fault_loses_or_reorders_messages(fault: Fault, options: dict[str, Any]) -> None:
    network = Network(fault)
    producer = await network.producer(**options)
    numbers = range(30)
    waiting = [producer.publish(message(each)) for each in numbers]
    if fault.command == "PRODUCER":
        await asyncio.sleep(0)
        network.drop()
    results = await outcomes(waiting)
    ids = ok(results)
    expected = [b"%d" % each for each in numbers]
    stored = firsts(network.payloads())
    if fault.command == "SEND" and fault.kind not in ("close_after", "duplicate"):
        assert sorted(stored) == sorted(expected), "later ones are stored before it is missed"
    else:
        assert stored == expected
    by_id = {}
    for entry in network.service.catalogue.topic(TOPIC).log.entries:
        by_id[entry.ledger, entry.entry] = entry
    assert all((each.ledger_id(), each.entry_id()) in by_id for each in ids)
    last = await producer.publish(message(30))
    assert isinstance(last, MessageId) and producer.last_sequence_id == 30


@virtual
async def test_frames_are_resent_unchanged_before_new_ones() -> None:
    network = Network(Fault(kind="close_before", command="SEND_RECEIPT", nth=1))
    producer = await network.producer(batching_max_messages=5)
    waiting = [producer.publish(message(each)) for each in range(10)]
    await asyncio.sleep(0.05)
    assert not producer.is_connected()
    waiting += [producer.publish(message(each)) for each in range(10, 12)]
    ok(await outcomes(waiting))
    bounds = [(each.sequence_id, each.highest_sequence_id) for each in network.commands("SEND")]
    assert bounds == [(0, 4), (5, 9), (0, 4), (5, 9), (10, 11)]
    bodies = [entry.body for entry in network.service.catalogue.topic(TOPIC).log.entries]
    assert bodies[:2] == bodies[2:4]
    first, second = network.commands("PRODUCER")
    assert (first.epoch, second.epoch) == (0, 1)
    assert not first.HasField("producer_name")
    assert second.producer_name == producer.producer_name
    assert not first.user_provided_producer_name and not second.user_provided_producer_name


@virtual
async def test_a_producer_finds_an_unloaded_topic_again() -> None:
    network = Network()
    producer = await network.producer(**UNBATCHED)
    waiting = []
    for each in range(50):
        waiting.append(producer.publish(message(each)))
        if each % 10 == 5:
            network.service.unload(network.service.catalogue.topic(TOPIC))
        await asyncio.sleep(0.03)
    ok(await outcomes(waiting))
    assert firsts(network.payloads()) == [b"%d" % each for each in range(50)]
    assert len(network.service.sessions) == 1, "the connection stays"


@virtual
async def test_a_refused_message_fails_alone() -> None:
    network = Network(Fault(kind="refuse", command="SEND", nth=2, error="NotAllowedError"))
    producer = await network.producer(batching_max_messages=2)
    results = await outcomes(producer.publish(message(each)) for each in range(6))
    assert [isinstance(each, NotAllowedError) for each in results] == [False] * 2 + [True] * 2 + [
        False
    ] * 2
    assert len({id(each) for each in results}) == 6
    assert network.payloads() == [b"0", b"1", b"4", b"5"]
    assert producer.is_connected()


@pytest.mark.parametrize("nth", [1, 2, 3])
@virtual
async def test_a_refused_chunk_fails_only_its_message(nth: int) -> None:
    network = Network(
        Fault(kind="refuse", command="SEND", nth=nth, error="NotAllowedError"),
        settings=BrokerSettings(max_message_size=20_000),
    )
    producer = await network.producer(**CHUNKED)
    large = OutgoingMessage(payload=bytes(25_000))
    failed, stored, small = await outcomes(
        [producer.publish(large), producer.publish(large), producer.publish(message(1))]
    )
    assert isinstance(failed, NotAllowedError)
    assert isinstance(stored, MessageId) and isinstance(small, MessageId)
    assert stored.first_chunk is not None and stored.first_chunk < stored
    assert producer.is_connected()
    await producer.flush()


@virtual
async def test_a_message_that_arrives_corrupted_twice_fails() -> None:
    network = Network(Fault(kind="refuse", command="SEND", times=2, error="ChecksumError"))
    producer = await network.producer(**UNBATCHED)
    with pytest.raises(ChecksumError):
        await producer.publish(message(1))
    await producer.publish(message(2))
    assert network.payloads() == [b"2"]


@virtual
async def test_a_missing_receipt_fails_all_pending_messages() -> None:
    network = Network(Fault(kind="delay", command="SEND_RECEIPT", times=3, delay_ms=3000))
    producer = await network.producer(send_timeout_millis=1000, batching_max_messages=2)
    loop = asyncio.get_running_loop()
    results = await outcomes(producer.publish(message(each)) for each in range(5))
    assert all(isinstance(each, TransportTimeout) for each in results)
    assert all("send_timeout_millis" in str(each) for each in results)
    assert loop.time() < 1.2
    later = await producer.publish(message(5))  # its receipt arrives before the late ones
    assert later.ledger_id() >= 0
    await asyncio.sleep(5)
    assert (await producer.publish(message(6))) > later
    assert network.dialled == 1


@virtual
async def test_a_message_that_waited_for_the_queue_does_not_time_out_with_earlier_ones() -> None:
    network = Network(Fault(kind="drop", command="SEND", times=2))
    producer = await network.producer(
        send_timeout_millis=1000,
        max_pending_messages=5,
        block_if_queue_full=True,
        batching_max_messages=2,
        batching_max_publish_delay_ms=2000,
    )
    results = await outcomes(producer.publish(message(each)) for each in range(8))
    assert [isinstance(each, TransportTimeout) for each in results] == [True] * 5 + [False] * 3
    assert network.payloads() == [b"5", b"6", b"7"]


@virtual
async def test_a_broker_that_twice_gives_no_answer_is_left() -> None:
    network = Network(Fault(kind="drop", command="SEND", times=2))
    producer = await network.producer(send_timeout_millis=1000, **UNBATCHED)
    for number in (1, 2):
        with pytest.raises(TransportTimeout):
            await producer.publish(message(number))
    await producer.publish(message(3))
    assert network.dialled == 2
    assert network.payloads() == [b"3"]


@virtual
async def test_messages_of_a_disconnected_producer_wait_until_their_timeout() -> None:
    network = Network()
    client = network.transport(max_backoff_s=1.0)
    producer = await network.producer(
        client=client, send_timeout_millis=2000, batching_max_messages=2
    )
    network.reachable = False
    network.drop()
    await asyncio.sleep(0.5)
    assert not producer.is_connected()
    results = await outcomes(producer.publish(message(each)) for each in range(3))
    assert all(isinstance(each, TransportTimeout) for each in results)
    network.reachable = True
    await producer.publish(message(3))
    assert network.payloads() == [b"3"]


# Ends


@virtual
async def test_a_terminated_topic_accepts_no_messages() -> None:
    network = Network(Fault(kind="drop", command="SEND"))
    producer = await network.producer(**UNBATCHED)
    pending = producer.publish(message(1))
    await asyncio.sleep(0.01)
    network.service.terminate(network.service.catalogue.topic(TOPIC))
    with pytest.raises(TopicTerminated):
        await pending
    with pytest.raises(TopicTerminated):
        await producer.publish(message(2))
    with pytest.raises(TopicTerminated):
        await network.producer()
    await producer.close()


@virtual
async def test_a_send_can_report_that_the_topic_is_terminated() -> None:
    network = Network(Fault(kind="refuse", command="SEND", error="TopicTerminatedError"))
    producer = await network.producer(**UNBATCHED)
    results = await outcomes(producer.publish(message(each)) for each in range(3))
    assert all(isinstance(each, TopicTerminated) for each in results)
    assert len(network.commands("PRODUCER")) == 1, "it is not tried again"


@virtual
async def test_a_revoked_permission_fails_sends_and_keeps_the_producer() -> None:
    refused = Fault(kind="refuse", command="PRODUCER", nth=2, error="AuthorizationError", times=12)
    network = Network(refused)
    producer = await network.producer(max_pending_messages=2, block_if_queue_full=True, **UNBATCHED)
    network.drop()
    await asyncio.sleep(0)
    results = await outcomes(producer.publish(message(each)) for each in range(2))
    assert all(isinstance(each, TransportTimeout) for each in results)
    assert not producer.is_connected()
    await asyncio.sleep(600)
    ok(await outcomes(producer.publish(message(each)) for each in range(5)))


@virtual
async def test_an_exclusive_producer_can_be_fenced() -> None:
    network = Network()
    first = await network.producer(access_mode=ProducerAccessMode.Exclusive)
    await first.publish(message(1))
    with pytest.raises(ProducerFenced):
        await network.producer(access_mode=ProducerAccessMode.Exclusive)
    with pytest.raises(ProducerBusy):
        await network.producer()
    second = await network.producer(access_mode=ProducerAccessMode.ExclusiveWithFencing)
    await second.publish(message(2))
    with pytest.raises(ProducerFenced):
        await first.publish(message(3))
    await second.publish(message(4))
    assert network.payloads() == [b"1", b"2", b"4"]


@virtual
async def test_waiting_for_exclusive_access_has_no_timeout() -> None:
    network = Network()
    first = await network.producer(access_mode=ProducerAccessMode.Exclusive)
    client = network.transport(operation_timeout_s=5.0)
    opening = asyncio.create_task(
        network.producer(client=client, access_mode=ProducerAccessMode.WaitForExclusive)
    )
    await asyncio.sleep(100)
    assert not opening.done()
    await first.close()
    second = await opening
    await second.publish(message(2))


@virtual
async def test_waiting_for_exclusive_access_can_be_cancelled() -> None:
    network = Network()
    first = await network.producer(access_mode=ProducerAccessMode.Exclusive)
    opening = asyncio.create_task(network.producer(access_mode=ProducerAccessMode.WaitForExclusive))
    await asyncio.sleep(1)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    await asyncio.sleep(1)
    assert not network.service.catalogue.topic(TOPIC).producers.waiting
    await first.publish(message(1))


@pytest.mark.parametrize("turns", range(14))
@virtual
async def test_opening_can_be_cancelled_at_any_step_and_leaves_no_producer(turns: int) -> None:
    network = Network()
    opening = asyncio.create_task(network.producer())
    for _ in range(turns):
        await asyncio.sleep(0)
    opening.cancel()
    (result,) = await asyncio.gather(opening, return_exceptions=True)
    await asyncio.sleep(0.1)
    ready = network.service.catalogue.topic(TOPIC).producers.ready
    assert bool(ready) == isinstance(result, NativeProducer)


@virtual
async def test_a_missing_answer_times_out_and_leaves_no_producer() -> None:
    network = Network(Fault(kind="drop", command="PRODUCER_SUCCESS", times=100))
    loop = asyncio.get_running_loop()
    with pytest.raises(TransportTimeout):
        await network.producer(client=network.transport(operation_timeout_s=4.0))
    assert loop.time() == pytest.approx(4.0, abs=0.2)
    await asyncio.sleep(0.1)
    assert not network.service.catalogue.topic(TOPIC).producers.ready


@virtual
async def test_close_fails_pending_sends_and_tells_the_broker() -> None:
    network = Network(Fault(kind="drop", command="SEND", times=9))
    producer = await network.producer(
        max_pending_messages=4, block_if_queue_full=True, batching_max_messages=2
    )
    waiting = [producer.publish(message(each)) for each in range(9)]
    await asyncio.gather(producer.close(), producer.close())
    results = await outcomes(waiting)
    assert all(isinstance(each, ClosedError) for each in results)
    assert not network.service.catalogue.topic(TOPIC).producers.ready
    assert len(network.commands("CLOSE_PRODUCER")) == 1
    with pytest.raises(ClosedError):
        producer.publish(message(9))
    with pytest.raises(ClosedError):
        await producer.flush()
    await producer.close()


@virtual
async def test_close_is_quick_while_disconnected() -> None:
    network = Network()
    producer = await network.producer()
    network.reachable = False
    network.drop()
    waiting = producer.publish(message(1))
    await asyncio.sleep(0.3)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await producer.close()
    assert loop.time() == began
    with pytest.raises(ClosedError):
        await waiting


# The queue


@virtual
async def test_the_error_for_a_full_queue_says_how_to_solve_it() -> None:
    network = Network()
    producer = await network.producer(max_pending_messages=5)
    results = await outcomes(producer.publish(message(each)) for each in range(20))
    full = [each for each in results if isinstance(each, ProducerQueueIsFull)]
    assert len(full) == 15 and "block_if_queue_full" in str(full[0])
    assert len(ok(results[:5])) == 5
    ok(await outcomes(producer.publish(message(each)) for each in range(5)))


@virtual
async def test_a_send_can_wait_for_a_full_queue_and_a_cancelled_wait_sends_no_message() -> None:
    network = Network(Fault(kind="delay", command="SEND", delay_ms=40))
    producer = await network.producer(
        max_pending_messages=5, block_if_queue_full=True, batching_max_publish_delay_ms=1
    )
    waiting = [asyncio.ensure_future(producer.publish(message(each))) for each in range(23)]
    waiting[20].cancel()
    waiting[2].cancel()  # already part of a batch, so it may be stored
    await producer.flush()
    results = await outcomes(waiting)
    assert [at for at, each in enumerate(results) if isinstance(each, BaseException)] == [2, 20]
    assert network.payloads() == [b"%d" % each for each in range(23) if each != 20]
    assert producer.parts[0].pending_slots == 0


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
@virtual
async def test_chunks_also_wait_for_a_full_queue(limit: int) -> None:
    network = Network(settings=BrokerSettings(max_message_size=20_000))
    producer = await network.producer(
        max_pending_messages=limit, block_if_queue_full=True, **CHUNKED
    )
    contents = [bytes([each]) * (25_000 if each % 2 else 10) for each in range(6)]
    ids = ok(await outcomes(producer.publish(OutgoingMessage(payload=each)) for each in contents))
    assert ids == sorted(ids)
    assert b"".join(network.payloads()) == b"".join(contents)
    assert [each.first_chunk is not None for each in ids] == [False, True] * 3
    refusing = await network.producer(max_pending_messages=3, **CHUNKED)
    for _ in range(3):
        sends = [refusing.publish(OutgoingMessage(payload=bytes(25_000))) for _ in range(3)]
        stored, *rest = await outcomes(sends)
        assert isinstance(stored, MessageId)
        assert all(isinstance(each, ProducerQueueIsFull) for each in rest)
    ok(await outcomes(refusing.publish(message(each)) for each in range(3)))


@virtual
async def test_a_full_socket_only_pauses_writing() -> None:
    network = Network()
    producer = await network.producer(**UNBATCHED)
    session = network.lines[0].client
    session.pause_writing()
    waiting = [producer.publish(message(each)) for each in range(20)]
    await asyncio.sleep(1)
    assert not network.commands("SEND")
    session.resume_writing()
    ok(await outcomes(waiting))
    assert network.payloads() == [b"%d" % each for each in range(20)]


@virtual
async def test_many_waiting_messages_are_written_in_several_steps() -> None:
    network = Network()
    producer = await network.producer(**UNBATCHED)
    session = network.lines[0].client
    session.pause_writing()
    waiting = [producer.publish(OutgoingMessage(payload=bytes(400_000))) for each in range(20)]
    session.resume_writing()
    await asyncio.sleep(0)
    session.pause_writing()
    await asyncio.sleep(1)
    assert 0 < len(network.commands("SEND")) < 10
    session.resume_writing()
    ok(await outcomes(waiting))


@virtual
async def test_an_idle_producer_has_no_timer() -> None:
    network = Network()
    producer = await network.producer()
    await producer.publish(message(1))
    await asyncio.sleep(40)
    loop: Any = asyncio.get_running_loop()
    timers = [each for each in loop._scheduled if not each.cancelled()]
    of_connections = ("Session._keep_alive", "Pool._close_idle")
    assert all(any(name in repr(each) for name in of_connections) for each in timers), timers


# Flushing


@virtual
async def test_a_flush_sends_at_once_and_waits_for_all_receipts() -> None:
    network = Network()
    producer = await network.producer(batching_max_publish_delay_ms=10_000)
    await producer.flush()
    waiting = [asyncio.ensure_future(producer.publish(message(each))) for each in range(3)]
    loop = asyncio.get_running_loop()
    began = loop.time()
    await producer.flush()
    assert loop.time() - began < 1
    assert all(each.done() for each in waiting)


@virtual
async def test_a_flush_raises_the_send_errors_and_can_be_cancelled() -> None:
    network = Network(Fault(kind="refuse", command="SEND", nth=3, error="NotAllowedError"))
    producer = await network.producer(**UNBATCHED)
    waiting = [producer.publish(message(each)) for each in range(4)]
    cancelled = asyncio.create_task(producer.flush())
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(NotAllowedError):
        await producer.flush()
    results = await outcomes(waiting)
    assert [isinstance(each, MessageId) for each in results] == [True, True, False, True]
    await producer.flush()


@virtual
async def test_random_histories_lose_no_message_and_keep_the_order() -> None:
    """Connections are lost, topics are unloaded and answers stop between any two messages."""
    for seed in range(60):
        rng = Random(seed)
        network = Network(
            *(
                Fault(kind=kind, command=command, nth=rng.randrange(1, 30))
                for kind, command in rng.sample(BREAKING, 3)
            )
        )
        options: dict[str, Any] = rng.choice(
            [{"batching_max_messages": rng.randrange(2, 9)}, UNBATCHED, CHUNKED]
        )
        producer = await network.producer(
            max_pending_messages=rng.choice([0, 3, 1000]), block_if_queue_full=True, **options
        )
        waiting = []
        for number in range(80):
            waiting.append(producer.publish(message(number)))
            step = rng.randrange(20)
            if step == 0:
                network.drop()
            elif step == 1:
                network.service.unload(network.service.catalogue.topic(TOPIC))
            elif step == 2:
                await producer.flush()
            elif step < 9:
                await asyncio.sleep(rng.choice([0, 0, 0.001, 0.1, 0.5]))
        ids = ok(await outcomes(waiting))
        assert firsts(network.payloads()) == [b"%d" % each for each in range(80)], f"seed {seed}"
        entries = network.service.catalogue.topic(TOPIC).log.entries
        stored = {(entry.ledger, entry.entry) for entry in entries}
        assert {(each.ledger_id(), each.entry_id()) for each in ids} <= stored, f"seed {seed}"
        assert producer.parts[0].pending_slots == 0
        await producer.close()


# Partitions


@virtual
async def test_messages_without_a_key_are_spread_over_all_partitions() -> None:
    network = Network()
    network.service.catalogue.create_partitioned(TOPIC, 3)
    producer = await network.producer(**UNBATCHED)
    ids = ok(await outcomes(producer.publish(message(each)) for each in range(30)))
    partitions = [each.partition() for each in ids]
    assert Counter(partitions) == {0: 10, 1: 10, 2: 10}
    assert all(each.topic == f"{TOPIC}-partition-{each.partition()}" for each in ids)
    assert producer.topic == TOPIC
    names = {each.producer_name for each in network.commands("PRODUCER")[1:]}
    assert names == {producer.producer_name}, "one name for all parts"
    await producer.close()
    for each in range(3):
        assert not network.service.catalogue.topic(f"{TOPIC}-partition-{each}").producers.ready


@virtual
async def test_a_key_always_goes_to_one_partition() -> None:
    network = Network()
    network.service.catalogue.create_partitioned(TOPIC, 4)
    seen: dict[Any, set[int]] = {}
    for options in ({}, UNBATCHED, {"message_routing_mode": PartitionsRoutingMode(0)}):
        producer = await network.producer(**options)
        for key in ("a", "b", "c", "d", b"\xff", "e", "f"):
            for _ in range(3):
                got = await producer.publish(message(1, partition_key=key))
                seen.setdefault(key, set()).add(got.partition())
        await producer.close()
    assert all(len(each) == 1 for each in seen.values())
    assert len(set().union(*seen.values())) > 1


@virtual
async def test_messages_without_a_key_can_use_a_single_partition() -> None:
    network = Network()
    network.service.catalogue.create_partitioned(TOPIC, 4)
    producer = await network.producer(message_routing_mode=PartitionsRoutingMode.UseSinglePartition)
    ids = ok(await outcomes(producer.publish(message(each)) for each in range(20)))
    assert len({each.partition() for each in ids}) == 1


@virtual
async def test_a_router_chooses_the_partition_and_invalid_choices_are_errors() -> None:
    network = Network()
    network.service.catalogue.create_partitioned(TOPIC, 3)
    choose = {b"a": 2, b"b": 9}

    def route(outgoing: Any, partitions: int) -> int:
        assert partitions == 3
        assert (outgoing.properties(), outgoing.partition_key()) == ({"p": "q"}, "k")
        assert repr(outgoing)
        return choose[outgoing.data()]

    producer = await network.producer(
        message_routing_mode=PartitionsRoutingMode.CustomPartition, message_router=route
    )

    def of(payload: bytes) -> OutgoingMessage:
        return OutgoingMessage(payload=payload, properties={"p": "q"}, partition_key="k")

    assert (await producer.publish(of(b"a"))).partition() == 2
    for payload in (b"b", b"c"):
        with pytest.raises(ConfigurationError, match="message_router"):
            await producer.publish(of(payload))
    assert (await producer.publish(of(b"a"))).partition() == 2


@virtual
async def test_a_producer_uses_new_partitions() -> None:
    network = Network()
    network.service.catalogue.create_partitioned(TOPIC, 1)
    producer = await network.producer(client=network.transport(discovery_s=5.0), **UNBATCHED)
    assert (await producer.publish(message(1))).partition() == 0
    network.service.catalogue.create_partitioned(TOPIC, 3)
    network.service.faults = FaultPlan(
        [Fault(kind="refuse", command="PARTITIONED_METADATA", error="NotAllowedError")]
    )
    await asyncio.sleep(6)
    assert len(producer.parts) == 1, "that failed, and is tried again"
    await asyncio.sleep(6)
    ids = ok(await outcomes(producer.publish(message(each)) for each in range(9)))
    assert {each.partition() for each in ids} == {0, 1, 2}
    await producer.close()


@virtual
async def test_lazy_partitions_attach_with_their_first_message() -> None:
    network = Network()
    network.service.catalogue.create_partitioned(TOPIC, 8)
    producer = await network.producer(
        lazy_start_partitioned_producers=True, batching_enabled=False, max_pending_messages=100
    )
    assert len(network.commands("PRODUCER")) == 1
    assert producer.is_connected()
    ids = ok(await outcomes(producer.publish(message(each)) for each in range(4)))
    assert len(network.commands("PRODUCER")) in (4, 5)
    flushed = producer.publish(message(4))
    await producer.flush()
    assert (await flushed).ledger_id() >= 0 and len(set(ids)) == 4
    await producer.close()


@virtual
async def test_a_lazy_partition_that_cannot_attach_fails_its_messages_and_is_retried() -> None:
    network = Network()
    network.service.catalogue.create_partitioned(TOPIC, 2)
    producer = await network.producer(lazy_start_partitioned_producers=True, **UNBATCHED)
    network.service.faults = FaultPlan(
        [Fault(kind="refuse", command="PRODUCER", error="AuthorizationError", times=10_000)]
    )
    results = await outcomes(producer.publish(message(each)) for each in range(4))
    failed = [each for each in results if isinstance(each, BaseException)]
    assert len(failed) == 2 and all(isinstance(each, AuthorizationError) for each in failed)
    network.service.faults = None
    ok(await outcomes(producer.publish(message(each)) for each in range(4)))


@virtual
async def test_a_partition_that_cannot_attach_fails_the_open_and_leaves_no_producer() -> None:
    network = Network(Fault(kind="refuse", command="PRODUCER", nth=3, error="AuthorizationError"))
    network.service.catalogue.create_partitioned(TOPIC, 5)
    with pytest.raises(AuthorizationError):
        await network.producer()
    await asyncio.sleep(0.1)
    for each in range(5):
        assert not network.service.catalogue.topic(f"{TOPIC}-partition-{each}").producers.ready


@virtual
async def test_the_queue_limit_covers_all_partitions() -> None:
    network = Network()
    network.service.catalogue.create_partitioned(TOPIC, 3)
    producer = await network.producer(
        max_pending_messages=4,
        max_pending_messages_across_partitions=3,
        block_if_queue_full=True,
        batching_enabled=False,
    )
    waiting = [producer.publish(message(each)) for each in range(30)]
    assert sum(part.pending_slots for part in producer.parts) == 3
    ok(await outcomes(waiting))


# Event loops


class BrokerOfTheLoop:
    """A `Dialer` for a client that several event loops use, one after the other."""

    def __init__(self) -> None:
        self.networks: dict[asyncio.AbstractEventLoop, Network] = {}

    def here(self, *faults: Fault) -> Network:
        network = self.networks[asyncio.get_running_loop()] = Network(*faults)
        return network

    async def dial(self, *asked: Any) -> Any:
        return await self.networks[asyncio.get_running_loop()].dial(*asked)


@pytest.mark.parametrize("name", [None, "given"])
def test_a_producer_continues_on_the_next_loop(name: str | None) -> None:
    dialer = BrokerOfTheLoop()
    client = NativeTransport("pulsar://memory:1", dialer=dialer)
    options = ProducerOptions(
        topic=TOPIC, producer_name=name, max_pending_messages=2, block_if_queue_full=True
    )

    async def begin() -> NativeProducer:
        dialer.here(Fault(kind="drop", command="SEND", nth=2, times=9))
        producer = await client.create_producer(options)
        await producer.publish(message(0))
        for each in range(1, 6):  # some are in flight, some wait
            producer.publish(message(each))
        await asyncio.sleep(0.1)
        assert isinstance(producer, NativeProducer)
        return producer

    async def go_on(producer: NativeProducer) -> None:
        refusal = Fault(kind="refuse", command="PRODUCER", error="ProducerBusy", times=2)
        network = dialer.here(*([refusal] if name else []))
        network.service.catalogue.create(TOPIC)
        waiting = [producer.publish(message(each)) for each in range(10, 15)]
        await producer.flush()
        ok(await outcomes(waiting))
        assert network.payloads() == [b"%d" % each for each in range(10, 15)]
        ids = [single.sequence_id for _, single, _ in network.stored()]
        assert ids == [3, 4, 5, 6, 7], "no number is used for two messages"
        assert producer.last_sequence_id == 7 and producer.is_connected()

    async def leave() -> NativeProducer:
        dialer.here()
        made = await client.create_producer(options)
        assert isinstance(made, NativeProducer)
        return made

    async def close(*producers: NativeProducer) -> None:
        dialer.here()
        await producers[0].close()
        await client.close()
        with pytest.raises(ClosedError):
            producers[1].publish(message(1))

    producer = run(begin())
    run(go_on(producer))
    run(close(producer, run(leave())))


@virtual
async def test_closing_the_client_ends_producers_that_are_being_opened() -> None:
    network = Network(Fault(kind="delay", command="PRODUCER_SUCCESS", delay_ms=200))
    client = network.transport()
    opening = asyncio.create_task(network.producer(client=client))
    await asyncio.sleep(0.1)
    await client.close()
    with pytest.raises((ClosedError, NotConnected)):
        await opening
    await asyncio.sleep(1)
    assert not network.service.catalogue.topic(TOPIC).producers.ready
