"""A client of the broker in memory: frames without a socket, and a clock that tests advance."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from google.protobuf.message import Message

from pulsar_encore.devbroker.broker_service import BrokerService
from pulsar_encore.devbroker.session import Session
from pulsar_encore.wire import PROTOCOL_VERSION, frames, pb
from pulsar_encore.wire.entries import decode_body, encode_body

TOPIC = "persistent://public/default/t"
EPOCH_MS = 1_700_000_000_000


class HandTimer:
    """A call that `HandClock` makes at its time."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def cancel(self) -> None:
        self.call = lambda: None


class HandClock:
    """A `Clock` without an event loop. Time passes only in `advance`."""

    def __init__(self) -> None:
        self._now_ms = 0.0
        self._asked = itertools.count()
        self._timers: list[tuple[float, int, HandTimer]] = []

    def now_ms(self) -> float:
        return self._now_ms

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self._now_ms)

    def call_later(self, delay_s: float, call: Callable[[], object]) -> HandTimer:
        timer = HandTimer(call)
        heappush(self._timers, (self._now_ms + delay_s * 1000, next(self._asked), timer))
        return timer

    def call_soon(self, call: Callable[[], object]) -> HandTimer:
        return self.call_later(0, call)

    def advance(self, seconds: float = 0) -> None:
        """Let time pass, and make each call at its due time."""
        end_ms = self._now_ms + seconds * 1000
        while self._timers and self._timers[0][0] <= end_ms:
            self._now_ms, _, timer = heappop(self._timers)
            timer.call()
        self._now_ms = end_ms


class MemoryClient:
    """A session without a socket: its `ByteTransport`, and the caller of its `receive`.

    Args:
        answers_pings: False for a client that has gone silent.
        certificate: Common name of the client's certificate.
        connect: Fields of CONNECT.
    """

    def __init__(
        self,
        service: BrokerService,
        *,
        answers_pings: bool = True,
        certificate: str | None = None,
        **connect: Any,
    ) -> None:
        self.got: list[frames.Frame] = []
        self.closed = False
        self.answers_pings = answers_pings
        self.on_message: Callable[[pb.CommandMessage], None] = lambda message: None
        self._decoder = frames.FrameDecoder()
        self.session = Session(
            service, self, url="pulsar://memory:1", address="/memory:2", certificate=certificate
        )
        self.send(
            pb.CommandConnect(client_version="test", protocol_version=PROTOCOL_VERSION, **connect)
        )

    def write(self, data: bytes) -> None:
        assert not self.closed
        for frame in self._decoder.feed(data):
            if frame.command.type == pb.BaseCommand.PING:
                if self.answers_pings:
                    self.send(pb.CommandPong())
                continue
            self.got.append(frame)
            if frame.command.type == pb.BaseCommand.MESSAGE:
                self.on_message(frame.command.message)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def send(self, *sent: Message) -> None:
        self.session.receive(b"".join(frames.encode(command) for command in sent))

    def subscribe(
        self,
        permits: int = 1000,
        kind: Any = pb.CommandSubscribe.Shared,
        topic: str = TOPIC,
        **fields: Any,
    ) -> None:
        self.send(
            pb.CommandSubscribe(
                topic=topic,
                subscription="s",
                consumer_id=1,
                request_id=1,
                subType=kind,
                **fields,
            ),
            pb.CommandFlow(consumer_id=1, messagePermits=permits),
        )

    def produce(self, topic: str = TOPIC) -> None:
        self.send(pb.CommandProducer(topic=topic, producer_id=1, request_id=2))

    def publish(self, payload: bytes, **metadata: Any) -> None:
        self.session.receive(send_frame(payload, **metadata))

    def names(self) -> list[str]:
        """Return the types of the received commands."""
        return [pb.BaseCommand.Type.Name(frame.command.type) for frame in self.got]

    def payloads(self) -> list[bytes]:
        """Return the payloads of the received messages."""
        return [
            bytes(decode_body(frame.body).payload) for frame in self.got if frame.body is not None
        ]


def send_frame(payload: bytes, **fields: Any) -> bytes:
    """Return a SEND frame of the first producer, with one message."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)
    return frames.encode_with_body(
        pb.CommandSend(producer_id=1, sequence_id=0), encode_body(metadata, payload)
    )
