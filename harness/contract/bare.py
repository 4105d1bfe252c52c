"""A client that only knows frames, for what no client shows: permits, read blocks, refusals."""

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

WAIT_S = 20.0  # for what must come, however busy the machine is
QUIET_S = 0.5  # for what must not
_CONSUMER = 1
_PRODUCER = 1
_NAMES = {number: name for name, number in pb.BaseCommand.Type.items()}


class Bare:
    """One connection with at most one producer and one consumer; an async context manager.

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

    def send(self, *sent: Message) -> None:
        """Write commands, all at once."""
        self._writer.write(b"".join(frames.encode(command) for command in sent))

    async def answer(self, kind: str, timeout: float = WAIT_S) -> pb.BaseCommand:
        """The next command of a kind, or ERROR; messages that come meanwhile are kept."""
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

    async def find(self, topic: str) -> None:
        """What comes before PRODUCER and SUBSCRIBE."""
        self.send(pb.CommandPartitionedTopicMetadata(topic=topic, request_id=next(self._requests)))
        await self.answer("PARTITIONED_METADATA_RESPONSE")
        self.send(
            pb.CommandLookupTopic(topic=topic, request_id=next(self._requests), authoritative=False)
        )
        await self.answer("LOOKUP_RESPONSE")

    async def ask(self, command: Message, kind: str) -> pb.BaseCommand:
        """The answer to a command, or ERROR."""
        self.send(command)
        return await self.answer(kind)

    async def produce(self, topic: str) -> pb.BaseCommand:
        """Make the producer; gives PRODUCER_SUCCESS or ERROR."""
        await self.find(topic)
        request = next(self._requests)
        self.send(pb.CommandProducer(topic=topic, producer_id=_PRODUCER, request_id=request))
        return await self.answer("PRODUCER_SUCCESS")

    async def publish(self, topic: str, count: int, *, batch: int = 0) -> list[tuple[int, int]]:
        """Entries, of `batch` messages or plain; gives their (ledger, entry)."""
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
        ids = [await self.answer("SEND_RECEIPT") for _ in range(count)]
        places = [answer.send_receipt.message_id for answer in ids]
        return [(place.ledgerId, place.entryId) for place in places]

    async def store(self, metadata: pb.MessageMetadata, payload: bytes) -> tuple[int, int]:
        """One entry as it is given, by the producer that was made; gives its (ledger, entry)."""
        number = metadata.sequence_id
        count = metadata.num_messages_in_batch
        command = pb.CommandSend(producer_id=_PRODUCER, sequence_id=number, num_messages=count)
        self._writer.write(frames.encode_with_body(command, encode_body(metadata, payload)))
        place = (await self.answer("SEND_RECEIPT")).send_receipt.message_id
        return place.ledgerId, place.entryId

    async def subscribe(self, topic: str, kind: int, **fields: Any) -> pb.BaseCommand:
        """Make the consumer, from the beginning; gives SUCCESS or ERROR."""
        await self.find(topic)
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
        """FLOW, to be sent."""
        return pb.CommandFlow(consumer_id=_CONSUMER, messagePermits=permits)

    def redeliver(self, ids: Sequence[tuple[int, int]] = (), epoch: int | None = None) -> Message:
        """REDELIVER, to be sent."""
        places = [pb.MessageIdData(ledgerId=ledger, entryId=entry) for ledger, entry in ids]
        return pb.CommandRedeliverUnacknowledgedMessages(
            consumer_id=_CONSUMER, message_ids=places, consumer_epoch=epoch
        )

    def ack_part(self, place: tuple[int, int], mask: int) -> Message:
        """ACK of the indexes of a batch whose bit is 0, to be sent."""
        ledger, entry = place
        return pb.CommandAck(
            consumer_id=_CONSUMER,
            message_id=[pb.MessageIdData(ledgerId=ledger, entryId=entry, ack_set=[mask])],
            ack_type=pb.CommandAck.Individual,
        )

    async def unsubscribed(self) -> None:
        """Close the consumer."""
        self.send(pb.CommandCloseConsumer(consumer_id=_CONSUMER, request_id=next(self._requests)))
        await self.answer("SUCCESS")
        self._messages.clear()

    async def entry(self) -> frames.Frame:
        """The next message with its body; not to be mixed with `message`."""
        while True:
            frame = await self._next(WAIT_S)
            if frame.body is not None:
                return frame

    async def message(self, timeout: float = WAIT_S) -> pb.CommandMessage:
        """The next message.

        Raises:
            TimeoutError: None came.
        """
        while not self._messages:
            command = (await self._next(timeout)).command
            if _NAMES[command.type] == "MESSAGE":
                self._messages.append(command.message)
        return self._messages.pop(0)

    async def messages(self, expected: int) -> list[pb.CommandMessage]:
        """So many messages, and what comes unexpectedly behind them."""
        got = [await self.message() for _ in range(expected)]
        with contextlib.suppress(TimeoutError):
            while True:
                got.append(await self.message(QUIET_S))
        return got
