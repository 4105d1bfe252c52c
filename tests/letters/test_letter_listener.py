"""A listener that raises: its error is the evidence on the dead letter."""

from __future__ import annotations

import asyncio

from forwarding_kit import DEAD, TOPIC, open_consumer, read_out

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.testing import MemoryTransport


class Refused(Exception):
    pass


async def test_every_dead_letter_of_a_listener_has_the_error_of_its_message(
    client: encore.Client, transport: MemoryTransport
) -> None:
    async def refuse(consumer: encore.Consumer, message: encore.Message) -> None:
        raise Refused(f"no {message.data().decode()}")

    for start in range(0, 50, 10):
        transport.put(TOPIC, *(b"%d" % number for number in range(start, start + 10)))
    consumer = await open_consumer(client, most=1, message_listener=refuse)
    await asyncio.sleep(10)
    await consumer.close()
    dead = await read_out(client, DEAD)
    assert sorted(int(each.data()) for each in dead) == list(range(50))
    for letter in dead:
        found = letter.properties()
        assert found[letters.ERROR_CLASS].endswith("Refused")
        assert found[letters.ERROR_MESSAGE] == f"no {letter.data().decode()}"
        assert "in refuse" in found[letters.ERROR_STACK]


async def test_a_cancelled_error_in_a_listener_is_the_error_of_the_dead_letter(
    client: encore.Client, transport: MemoryTransport
) -> None:
    async def wait_for_what_is_cancelled(consumer: encore.Consumer, _: encore.Message) -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task

    transport.put(TOPIC, b"x")
    consumer = await open_consumer(client, most=1, message_listener=wait_for_what_is_cancelled)
    await asyncio.sleep(10)
    await consumer.close()
    (letter,) = await read_out(client, DEAD)
    assert letter.properties()[letters.ERROR_CLASS].endswith("CancelledError")
