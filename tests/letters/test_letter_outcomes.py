"""Outcomes of letters that waited for their producer."""

from __future__ import annotations

import asyncio

from pulsar_encore.consumer.event_publisher import EventDispatcher, ProducerEventPublisher
from pulsar_encore.consumer.forwarding.letter_producer import LetterProducer
from pulsar_encore.exceptions import AuthorizationError
from pulsar_encore.testing import run
from pulsar_encore.transport.interface import TransportProducer
from pulsar_encore.values.outgoing_message import OutgoingMessage


def test_an_error_in_the_callback_of_one_letter_does_not_block_other_letters() -> None:
    async def main() -> None:
        async def create() -> TransportProducer:
            raise AuthorizationError("x")

        loop = asyncio.get_running_loop()
        producer = LetterProducer("t", create, ProducerEventPublisher(EventDispatcher(None, loop)))
        confirmed: list[int] = []

        def broken(error: Exception | None) -> None:
            raise KeyError("e.g. a full disk")

        letter = OutgoingMessage(payload=b"")
        producer.post(letter, broken)
        for number in range(500):  # more than are sent in one turn of the loop
            producer.post(letter, lambda error, number=number: confirmed.append(number))  # type: ignore[misc]
        await asyncio.sleep(100)
        assert confirmed == list(range(500))
        producer.post(letter, lambda error: confirmed.append(500))
        await asyncio.sleep(100)
        assert confirmed[-1] == 500
        await producer.close()

    run(main())
