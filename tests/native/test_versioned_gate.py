"""The schema gate drops waiting messages topic by topic, and only if they are redelivered."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from native_kit import Collector

import pulsar_encore as encore
from pulsar_encore.codecs.codec import SchemaInfo
from pulsar_encore.errors import SchemaVersionError
from pulsar_encore.exceptions import TopicNotFound
from pulsar_encore.schema import AvroSchema
from pulsar_encore.transport.interface import Delivery, RetryNotice
from pulsar_encore.transport.native.consumer.message_views import PlainMessage
from pulsar_encore.transport.versioned.schema_gate import SchemaGate
from pulsar_encore.transport.versioned.versioned_messages import SchemaVersions
from pulsar_encore.transport.versioned.writer_schemas import WriterSchemas
from pulsar_encore.wire import pb

ANY_ID = encore.MessageId(-1, 3, 4)
SCHEMA = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "int"}]}
WRITTEN = SchemaInfo(
    "Avro", b'{"type": "record", "name": "N", "fields": [{"name": "n", "type": "int"}]}'
)


class Rig:
    """A gate with schema versions that arrive when the test releases them.

    Attributes:
        credits: (topic, messages) for which permits were returned.
    """

    def __init__(self, *, durable: bool = True, answer: SchemaInfo | Exception = WRITTEN) -> None:
        self.listener: Any = Collector()
        self.credits: list[tuple[int, int]] = []
        self.answered = asyncio.Event()
        self._answer = answer
        transport_consumer: Any = SimpleNamespace(
            topic_of=lambda topic_number: (f"t-partition-{topic_number}", topic_number),
            consumed=lambda topic_number, messages: self.credits.append((topic_number, messages)),
        )
        versions = SchemaVersions(AvroSchema(None, SCHEMA), WriterSchemas(self._fetch))
        self.gate = SchemaGate(transport_consumer, versions, self.listener, durable=durable)

    async def _fetch(self, topic: str, version: int) -> SchemaInfo:
        await self.answered.wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def arrive(self, *topic_numbers: int, version: int = 0) -> None:
        """Deliver a message of each topic, with the topic as its value."""
        metadata = pb.MessageMetadata(schema_version=version.to_bytes(8, "big"))
        for topic_number in topic_numbers:
            topic = f"t-partition-{topic_number}"
            message = PlainMessage(topic, b"", metadata, bytes([2 * topic_number]))
            self.gate.on_deliveries(
                [Delivery(topic_number, 1, topic_number, 0, 0, (0,), (message,))]
            )

    def arrive_null(self, topic_number: int) -> None:
        """Deliver a message without a value, written with a version that is not known."""
        metadata = pb.MessageMetadata(schema_version=b"\0" * 7 + b"\x05", null_value=True)
        topic = f"t-partition-{topic_number}"
        message = PlainMessage(topic, b"", metadata, b"")
        self.gate.on_deliveries([Delivery(topic_number, 1, topic_number, 0, 0, (0,), (message,))])

    async def values(self) -> list[int]:
        """Return the values that passed the gate after the versions arrived."""
        self.answered.set()
        for _ in range(10):
            await asyncio.sleep(0)
        return [m.value()["n"] for each in self.listener.deliveries for m in each.messages]


async def test_messages_pass_in_order_once_the_version_is_known() -> None:
    rig = Rig()
    rig.arrive(0, 1, 2)
    await asyncio.sleep(0)
    assert rig.gate.holds and not rig.listener.deliveries
    assert await rig.values() == [0, 1, 2]
    assert not rig.credits
    rig.arrive(3)
    assert [each.topic_number for each in rig.listener.deliveries] == [0, 1, 2, 3]


async def test_messages_without_a_value_do_not_wait_for_a_version() -> None:
    rig = Rig()
    rig.arrive_null(0)
    assert not rig.gate.holds
    [delivery] = rig.listener.deliveries
    message = encore.Message.of_reader(delivery.messages[0], AvroSchema(None, SCHEMA), ANY_ID)
    assert message.value() is None
    rig.arrive(1)
    rig.arrive_null(2)  # it keeps the order behind a message that waits
    assert [each.topic_number for each in rig.listener.deliveries] == [0]
    rig.answered.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert [each.topic_number for each in rig.listener.deliveries] == [0, 1, 2]


async def test_a_lost_connection_drops_only_the_waiting_messages_of_its_topics() -> None:
    rig = Rig()
    rig.arrive(0, 1, 2, 1)
    rig.gate.on_disconnected((1,))
    assert rig.credits == [(1, 1), (1, 1)]
    assert rig.listener.names == ["disconnected"]
    assert await rig.values() == [0, 2]


async def test_waiting_messages_of_a_reader_stay_because_they_are_not_redelivered() -> None:
    rig = Rig(durable=False)
    rig.arrive(0, 1)
    rig.gate.on_disconnected()
    assert await rig.values() == [0, 1]
    assert not rig.credits


async def test_a_seek_also_drops_the_waiting_messages_of_a_reader() -> None:
    rig = Rig(durable=False)
    rig.arrive(0, 1)
    rig.gate.on_seek((0,))
    assert await rig.values() == [1]


@pytest.mark.parametrize(
    ("answer", "why"),
    [(SchemaInfo("Json", b"{}"), "of type Json, not AVRO"), (OSError("away"), "away")],
)
async def test_a_message_with_an_unknown_version_is_delivered_and_its_value_raises(
    answer: Any, why: str
) -> None:
    rig = Rig(answer=answer)
    rig.arrive(7)
    with pytest.raises(SchemaVersionError, match=why):
        await rig.values()
    assert rig.listener.payloads == [b"\x0e"]
    assert not rig.gate.holds


async def test_a_closed_gate_delivers_nothing() -> None:
    rig = Rig()
    rig.arrive(0)
    rig.gate.close()
    assert await rig.values() == []


async def test_versions_of_a_recreated_topic_are_fetched_again() -> None:
    rig = Rig()
    rig.arrive(1)
    assert await rig.values() == [1]
    other = {"name": "m", "type": "int", "default": 0}
    rig._answer = SchemaInfo(
        "Avro", json.dumps({**SCHEMA, "fields": [other, {"name": "n", "type": "int"}]}).encode()
    )
    gone = RetryNotice("t-partition-1", TopicNotFound("deleted"), 1, 0.1)
    rig.gate.on_retrying(1, gone)
    assert rig.listener.calls == [("retrying", 1, gone)]
    metadata = pb.MessageMetadata(schema_version=bytes(8))
    message = PlainMessage("t-partition-1", b"", metadata, bytes([2, 14]))
    rig.gate.on_deliveries([Delivery(1, 2, 0, 0, 0, (0,), (message,))])
    assert (await rig.values())[-1] == 7
