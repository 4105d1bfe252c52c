"""A client that speaks frames only, for behaviour that no other client shows: permits, reads,
errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Sequence
from typing import Any, Self

from google.protobuf.message import Message

from pulsar_encore.wire import encode_batch, encode_body, frames, pb

from .contract_kit import SUBSCRIPTION

WAIT_S = 20.0  # for expected frames, on a busy machine, too
QUIET_S = 0.5  # for unexpected frames
_CONSUMER = 1
_PRODUCER = 1
_NAMES = {number: name for name, number in pb.BaseCommand.Type.items()}


class FrameClient:
    """One connection with at most one producer and one consumer. An async context manager.

    Args:
        url: `pulsar://host:port`.
    """

    def __init__(self, url: str) -> None:
        self._host, _, port = url.removeprefix("pulsar://").partition(":")
        self._port = int(port)
        self._decoder = frames.FrameDecoder()
        self._frames: list[frames.Frame] = []
        self._messages: list[pb.CommandMessage] = []
        self._requests = itertools.count(1)

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        self.send(pb.CommandConnect(client_version="bare", protocol_version=21))
        await self.answer("CONNECTED")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def send(self, *commands: Message) -> None:
        """Write commands in one piece."""
        self._writer.write(b"".join(frames.encode(command) for command in commands))

    async def answer(self, kind: str, timeout: float = WAIT_S) -> pb.BaseCommand:
        """Return the next command of a kind, or ERROR. Messages that arrive before it are kept."""
        while True:
            command = (await self._next(timeout)).command
            name = _NAMES[command.type]
            if name == "MESSAGE":
                self._messages.append(command.message)
            elif name in (kind, "ERROR"):
                return command

    async def _next(self, timeout: float) -> frames.Frame:
        while True:
            while not self._frames:
                data = await asyncio.wait_for(self._reader.read(1 << 18), timeout)
                if not data:
                    raise ConnectionError("closed by the broker")
                self._frames = self._decoder.feed(data)
            frame = self._frames.pop(0)
            if _NAMES[frame.command.type] != "PING":
                return frame
            self.send(pb.CommandPong())

    async def lookup(self, topic: str) -> None:
        """Send the commands that precede PRODUCER and SUBSCRIBE."""
        self.send(pb.CommandPartitionedTopicMetadata(topic=topic, request_id=next(self._requests)))
        await self.answer("PARTITIONED_METADATA_RESPONSE")
        self.send(
            pb.CommandLookupTopic(topic=topic, request_id=next(self._requests), authoritative=False)
        )
        await self.answer("LOOKUP_RESPONSE")

    async def request(self, command: Message, kind: str) -> pb.BaseCommand:
        """Send a command and return its answer, or ERROR."""
        self.send(command)
        return await self.answer(kind)

    async def produce(self, topic: str) -> pb.BaseCommand:
        """Create the producer. Return PRODUCER_SUCCESS or ERROR."""
        await self.lookup(topic)
        request = next(self._requests)
        self.send(pb.CommandProducer(topic=topic, producer_id=_PRODUCER, request_id=request))
        return await self.answer("PRODUCER_SUCCESS")

    async def publish(self, topic: str, count: int, *, batch: int = 0) -> list[tuple[int, int]]:
        """Publish entries, unbatched or of `batch` messages. Return their (ledger, entry)."""
        name = (await self.produce(topic)).producer_success.producer_name
        payload = b"x"
        if batch:
            single = pb.SingleMessageMetadata(payload_size=1)
            payload = encode_batch([(single, b"x")] * batch)
        for number in range(count):
            metadata = pb.MessageMetadata(
                producer_name=name, sequence_id=number, publish_time=int(time.time() * 1000)
            )
            if batch:
                metadata.num_messages_in_batch = batch
            command = pb.CommandSend(
                producer_id=_PRODUCER, sequence_id=number, num_messages=batch or 1
            )
            self._writer.write(frames.encode_with_body(command, encode_body(metadata, payload)))
        answers = [await self.answer("SEND_RECEIPT") for _ in range(count)]
        ids = [answer.send_receipt.message_id for answer in answers]
        return [(each.ledgerId, each.entryId) for each in ids]

    async def store_entry(self, metadata: pb.MessageMetadata, payload: bytes) -> tuple[int, int]:
        """Publish one given entry with the producer. Return its (ledger, entry)."""
        number = metadata.sequence_id
        count = metadata.num_messages_in_batch
        command = pb.CommandSend(producer_id=_PRODUCER, sequence_id=number, num_messages=count)
        self._writer.write(frames.encode_with_body(command, encode_body(metadata, payload)))
        entry_id = (await self.answer("SEND_RECEIPT")).send_receipt.message_id
        return entry_id.ledgerId, entry_id.entryId

    async def subscribe(self, topic: str, kind: int, **fields: Any) -> pb.BaseCommand:
        """Create the consumer at the beginning of the topic. Return SUCCESS or ERROR."""
        await self.lookup(topic)
        self.send(
            pb.CommandSubscribe(
                topic=topic,
                subscription=SUBSCRIPTION,
                consumer_id=_CONSUMER,
                request_id=next(self._requests),
                subType=pb.CommandSubscribe.SubType.ValueType(kind),
                initialPosition=pb.CommandSubscribe.Earliest,
                **fields,
            )
        )
        return await self.answer("SUCCESS")

    def flow(self, permits: int) -> Message:
        """Build a FLOW command."""
        return pb.CommandFlow(consumer_id=_CONSUMER, messagePermits=permits)

    def redeliver(self, ids: Sequence[tuple[int, int]] = (), epoch: int | None = None) -> Message:
        """Build a REDELIVER command."""
        message_ids = [pb.MessageIdData(ledgerId=ledger, entryId=entry) for ledger, entry in ids]
        return pb.CommandRedeliverUnacknowledgedMessages(
            consumer_id=_CONSUMER, message_ids=message_ids, consumer_epoch=epoch
        )

    def ack_part(self, entry_id: tuple[int, int], mask: int) -> Message:
        """Build an ACK of the indexes of a batch whose bit in `mask` is 0."""
        ledger, entry = entry_id
        return pb.CommandAck(
            consumer_id=_CONSUMER,
            message_id=[pb.MessageIdData(ledgerId=ledger, entryId=entry, ack_set=[mask])],
            ack_type=pb.CommandAck.Individual,
        )

    async def close_consumer(self) -> None:
        """Close the consumer."""
        self.send(pb.CommandCloseConsumer(consumer_id=_CONSUMER, request_id=next(self._requests)))
        await self.answer("SUCCESS")
        self._messages.clear()

    async def entry(self) -> frames.Frame:
        """Return the next message with its body. Do not mix with `message`."""
        while True:
            frame = await self._next(WAIT_S)
            if frame.body is not None:
                return frame

    async def message(self, timeout: float = WAIT_S) -> pb.CommandMessage:
        """Return the next message.

        Raises:
            TimeoutError: if none arrived.
        """
        while not self._messages:
            command = (await self._next(timeout)).command
            if _NAMES[command.type] == "MESSAGE":
                self._messages.append(command.message)
        return self._messages.pop(0)

    async def messages(self, expected: int) -> list[pb.CommandMessage]:
        """Return the expected number of messages, and any unexpected ones after them."""
        received = [await self.message() for _ in range(expected)]
        with contextlib.suppress(TimeoutError):
            while True:
                received.append(await self.message(QUIET_S))
        return received
