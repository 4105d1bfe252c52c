"""A long read is handled in several steps of the event loop, like several short reads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from native_kit import CONNECTED
from test_native_session import Handler, body

from pulsar_encore import ProtocolError
from pulsar_encore.testing import run
from pulsar_encore.transport.native.connection import session as module
from pulsar_encore.transport.native.connection.session import Session
from pulsar_encore.wire import frames, pb


class Socket:
    """A transport that records when reading is paused."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        self.events.append("close")

    def abort(self) -> None:
        self.events.append("abort")

    def pause_reading(self) -> None:
        self.events.append("pause")

    def resume_reading(self) -> None:
        self.events.append("resume")


class Slow(Handler):
    """A consumer that takes 1 ms of the loop's clock for each entry."""

    def on_entry(self, *given: Any) -> None:
        loop: Any = asyncio.get_running_loop()
        loop.advance(0.001)
        super().on_entry(*given)


def opened() -> tuple[Session, Slow, Socket]:
    socket, handler = Socket(), Slow()
    session = Session(
        socket,
        loop=asyncio.get_running_loop(),
        request_ids=iter(range(1, 1000)),
        keep_alive_s=30.0,
        peer="test:6650",
        renew=lambda session: None,
        on_end=lambda session: None,
    )
    session.receive(CONNECTED)
    session.attach_consumer(1, handler)
    return session, handler, socket


def message(entry: int, redeliveries: int = 1) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
    command.message.consumer_id = 1
    command.message.redelivery_count = redeliveries
    command.message.message_id.ledgerId = 7
    command.message.message_id.entryId = entry
    return frames.encode_with_body(command, body())


def numbers(handler: Handler) -> list[int]:
    return [entry for _, entry, *_ in handler.entries]


async def until(done: Any) -> int:
    turns = 0
    while not done():
        await asyncio.sleep(0)
        turns += 1
        assert turns < 1_000
    return turns


COUNT = 10 * module.PART_FRAMES


def test_the_loop_runs_between_the_parts_of_a_read_and_nothing_is_read_meanwhile() -> None:
    async def main() -> None:
        session, handler, socket = opened()
        session.receive(b"".join(map(message, range(COUNT))))
        assert len(handler.entries) == module.PART_FRAMES
        assert socket.events == ["pause"]
        before = len(handler.entries)
        while len(handler.entries) < COUNT:
            await asyncio.sleep(0)
            assert len(handler.entries) - before <= module.PART_FRAMES
            before = len(handler.entries)
        assert numbers(handler) == list(range(COUNT))
        await asyncio.sleep(0)
        assert socket.events == ["pause", "resume"]

    run(main())


def test_a_short_read_takes_one_step() -> None:
    async def main() -> None:
        session, handler, socket = opened()
        session.receive(b"".join(map(message, range(module.PART_FRAMES))))
        assert len(handler.entries) == module.PART_FRAMES and socket.events == []

    run(main())


@pytest.mark.parametrize("cut", [0, 3, 11])
def test_bytes_that_arrive_while_reading_is_paused_wait_behind_the_rest(cut: int) -> None:
    async def main() -> None:
        session, handler, _ = opened()
        data = b"".join(map(message, range(2 * COUNT)))
        middle = len(b"".join(map(message, range(COUNT)))) - cut
        session.receive(data[:middle])
        session.receive(data[middle:])
        await until(lambda: len(handler.entries) == 2 * COUNT)
        assert numbers(handler) == list(range(2 * COUNT))

    run(main())


def test_a_lost_connection_is_reported_after_the_bytes_that_were_read() -> None:
    async def main() -> None:
        session, handler, _ = opened()
        answer = session.request(
            lambda request_id: pb.CommandGetLastMessageId(consumer_id=1, request_id=request_id),
            "ask",
            None,
        )
        session.receive(
            b"".join(map(message, range(COUNT))) + frames.encode(pb.CommandSuccess(request_id=1))
        )
        session.lost(None)
        assert handler.lost == [] and not session.gone.done()
        await until(lambda: session.gone.done())
        assert numbers(handler) == list(range(COUNT))
        assert len(handler.lost) == 1
        assert answer.done() and answer.exception() is None

    run(main())


def test_closing_a_session_drops_the_rest_of_a_read() -> None:
    async def main() -> None:
        session, handler, socket = opened()
        session.receive(b"".join(map(message, range(COUNT))))
        session.close()
        session.lost(None)
        await asyncio.sleep(0.1)
        assert len(handler.entries) == module.PART_FRAMES
        assert session.gone.done() and socket.events == ["pause", "close"]

    run(main())


def test_frames_before_a_broken_frame_are_handled_and_the_connection_ends() -> None:
    async def main() -> None:
        session, handler, _ = opened()
        session.receive(b"".join(map(message, range(COUNT))) + b"\0\0\0\0")
        assert not session.closed
        await until(lambda: session.closed)
        assert len(handler.entries) == COUNT
        assert isinstance(handler.lost[0], ProtocolError)

    run(main())


def test_a_consumer_that_is_removed_between_two_steps_gets_no_further_entry() -> None:
    async def main() -> None:
        session, handler, socket = opened()
        session.receive(b"".join(map(message, range(COUNT))))
        session.detach_consumer(1)
        await until(lambda: "resume" in socket.events)
        assert len(handler.entries) == module.PART_FRAMES

    run(main())


class SlowHandOver(Handler):
    """A consumer that takes runs, 1 us for each message, and 8 us to check each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[int] = []
        self._run = 0

    def on_run(self, *given: Any) -> int:
        _, _, _, data, at, _, stop = given
        loop: Any = asyncio.get_running_loop()
        size = len(message(1_000))
        while at < stop and at + size <= len(data):
            at += size
            self._run += 1
            loop.advance(0.000_001)
        return int(at)

    def on_entries_end(self) -> None:
        loop: Any = asyncio.get_running_loop()
        loop.advance(self._run * 0.000_008)
        self.parts.append(self._run)
        self._run = 0


def test_parts_are_shorter_while_the_consumer_checks_messages_one_by_one() -> None:
    async def main() -> None:
        session, _, socket = opened()
        handler = SlowHandOver()
        session.attach_consumer(1, handler)
        loop: Any = asyncio.get_running_loop()
        session.receive(b"".join(message(1_000 + at, redeliveries=0) for at in range(10_000)))
        while socket.events != ["pause", "resume"]:
            before = loop.time()
            await asyncio.sleep(0)
            assert loop.time() - before < 1.5 * module.PART_S
        assert sum(handler.parts) > 9_900
        assert max(handler.parts[1:]) < module.PART_RUN / 2

    run(main())
