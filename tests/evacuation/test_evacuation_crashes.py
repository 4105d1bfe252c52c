"""A killed, cancelled or refused evacuation may cause duplicates, but never a loss."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evacuation_kit import (
    HOUR,
    RETRY,
    OldHost,
    numbers_of,
    put_numbers,
    receive_all,
    take_over,
)

from pulsar_encore import Client, Consumer, TransportError
from pulsar_encore.evacuation import EvacuationReport, EvacuationStoppedError, evacuate
from pulsar_encore.evacuation import evacuation_run as moving
from pulsar_encore.exceptions import MessageTooBig
from pulsar_encore.state.rocks import AttemptRecords, StateReader
from pulsar_encore.testing import MemoryTransport
from pulsar_encore.transport.native.producer.native_producer import NativeProducer
from pulsar_encore.values.outgoing_message import OutgoingMessage

WHICH = {0, 1, 2, 3, 11, 12, 27}
BATCHES = pytest.mark.parametrize("batch", [1, 4])


class Killed(BaseException):
    """The process ends at this exception."""


def waiting_in(path: Path) -> int:
    with StateReader(path) as state:
        return sum(1 for _ in state.waiting())


async def killed_at(
    host: OldHost, patch: pytest.MonkeyPatch, owner: type, name: str, after: int
) -> None:
    """Run an evacuation until call number `after` + 1 of a method.

    That call has no effect, and the directory keeps its state of that moment.
    """
    left = host.path.with_name("left")
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def call(self: Any, *args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            if not left.exists():
                shutil.copytree(host.path, left)
            raise Killed
        return original(self, *args, **options)

    with patch.context() as patched:
        patched.setattr(owner, name, call)
        # One after the other, so that some messages are moved when the evacuation ends.
        patched.setattr(moving, "MAX_IN_FLIGHT", 1)
        with pytest.raises(Killed):
            await evacuate(host.client, host.path)
    host.path = left


@BATCHES
@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize(
    ("owner", "name", "doubles"),
    [
        (NativeProducer, "publish", 3),
        (Consumer, "acknowledge", 4),
        (AttemptRecords, "record_ack", 4),
    ],
)
async def test_a_killed_evacuation_continues_later_and_loses_nothing(
    transport: MemoryTransport,
    client: Client,
    host: OldHost,
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
    after: int,
    owner: type,
    name: str,
    doubles: int,
) -> None:
    put_numbers(transport, 40, batch)
    await host.leave_waiting(40, WHICH)
    await killed_at(host, monkeypatch, owner, name, after)
    report = await evacuate(client, host.path)
    assert report.moved == report.waiting and report.refused == 0
    assert waiting_in(host.path) == 0
    consumer = await take_over(client)
    assert await receive_all(consumer) == []  # no message arrives before its due time
    numbers = numbers_of(await receive_all(consumer, 2 * HOUR))
    assert set(numbers) == WHICH
    assert len(numbers) <= len(WHICH) + doubles
    if batch == 1:
        assert len(numbers) <= len(WHICH) + (doubles == 4)


async def test_a_cancelled_evacuation_completes_sends_in_flight(
    transport: MemoryTransport, client: Client, host: OldHost
) -> None:
    put_numbers(transport, 2_000)
    await host.leave_waiting(2_000, set(range(2_000)))
    report = EvacuationReport()
    running = asyncio.ensure_future(
        evacuate(client, host.path, report=report, on_progress=lambda _: running.cancel())
    )
    with pytest.raises(asyncio.CancelledError):
        await running
    assert 0 < report.moved < 2_000
    assert waiting_in(host.path) == 2_000 - report.moved
    await evacuate(client, host.path)
    numbers = numbers_of(await receive_all(await take_over(client), 2 * HOUR))
    assert numbers == list(range(2_000))


async def test_a_refused_copy_stays_and_does_not_delay_others(
    transport: MemoryTransport,
    client: Client,
    host: OldHost,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_numbers(transport, 12, 4)
    await host.leave_waiting(12, {0, 1, 2, 3, 4, 5})
    refuse_payloads(monkeypatch, {b"2", b"4"}, MessageTooBig("too big"))
    report = await evacuate(client, host.path)
    assert (report.moved, report.refused, report.left) == (4, 2, 2)
    assert len(report.refusals) == 2 and list(report.reasons.values()) == [2]
    assert waiting_in(host.path) == 2
    monkeypatch.undo()
    report = await evacuate(client, host.path)
    assert (report.waiting, report.moved) == (2, 2)
    numbers = numbers_of(await receive_all(await take_over(client), 2 * HOUR))
    assert numbers == [0, 1, 2, 3, 4, 5]


async def test_a_retry_letter_topic_that_accepts_nothing_ends_only_its_own_topic(
    transport: MemoryTransport, client: Client, host: OldHost
) -> None:
    refunds = "persistent://public/default/refunds"
    put_numbers(transport, 600)
    put_numbers(transport, 3, topic=refunds)
    await host.leave_waiting(600, set(range(600)))
    await host.leave_waiting(3, {0}, topic=refunds)
    await (await client.create_producer(RETRY)).close()
    transport.terminate(RETRY)
    report = await evacuate(client, host.path)
    assert (report.waiting, report.moved, report.refused) == (601, 1, 600)
    assert waiting_in(host.path) == 600
    assert any("erminated" in reason for reason in report.reasons)


async def test_a_cluster_lost_during_the_evacuation_is_reported_and_loses_nothing(
    transport: MemoryTransport,
    client: Client,
    host: OldHost,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_numbers(transport, 40)
    await host.leave_waiting(40, WHICH)
    calls = 0
    read = moving.TopicEntries.read

    async def of(self: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise TransportError("nobody answers", result="Timeout")
        return await read(self, *args)

    monkeypatch.setattr(moving.TopicEntries, "read", of)
    with pytest.raises(EvacuationStoppedError, match="after 3 messages, 4 are left: nobody"):
        await evacuate(client, host.path)
    monkeypatch.undo()
    assert waiting_in(host.path) == 4
    await evacuate(client, host.path)
    assert set(numbers_of(await receive_all(await take_over(client), 2 * HOUR))) == WHICH


def refuse_payloads(patch: pytest.MonkeyPatch, refused: set[bytes], error: Exception) -> None:
    publish = NativeProducer.publish

    def checked(self: NativeProducer, message: OutgoingMessage) -> Any:
        if message.payload in refused:
            raise error
        return publish(self, message)

    patch.setattr(NativeProducer, "publish", checked)
