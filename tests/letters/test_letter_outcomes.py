"""Outcomes of letters that waited for their producer."""

from __future__ import annotations

import asyncio
import gc
import weakref

from pulsar_encore.consumer.event_publisher import EventDispatcher, ProducerEventPublisher
from pulsar_encore.consumer.forwarding.letter_producer import LetterProducer
from pulsar_encore.exceptions import AuthorizationError
from pulsar_encore.testing import run
from pulsar_encore.transport.interface import OnPosted, TransportProducer
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


def test_a_producer_that_works_again_does_not_keep_the_frames_of_an_old_error() -> None:
    class Held:
        """Stands for a message or consumer in a frame of a traceback."""

    class Working:
        def post(self, letter: OutgoingMessage, on_done: OnPosted) -> None:
            on_done(None)

        async def close(self) -> None:
            return None

    held: list[weakref.ref[Held]] = []

    async def main() -> None:
        async def create() -> TransportProducer:
            if held:
                return Working()  # type: ignore[return-value]
            local = Held()
            held.append(weakref.ref(local))
            raise AuthorizationError("x")

        loop = asyncio.get_running_loop()
        producer = LetterProducer("t", create, ProducerEventPublisher(EventDispatcher(None, loop)))
        errors: list[str] = []
        letter = OutgoingMessage(payload=b"")
        producer.post(letter, lambda error: errors.append(str(error)))
        await asyncio.sleep(0.01)
        producer.post(letter, lambda error: errors.append(str(error)))
        await asyncio.sleep(10)
        producer.post(letter, lambda error: errors.append(str(error)))
        await asyncio.sleep(1)
        assert errors == ["x", "the letter topic is not retried yet: x", "None"]
        gc.collect()
        assert [each() for each in held] == [None]
        await producer.close()

    run(main())


def test_a_letter_whose_error_cannot_be_copied_is_reported() -> None:
    class Awkward(AuthorizationError):
        def __init__(self, topic: str, *, reason: str) -> None:
            super().__init__(f"{topic}: {reason}")

    async def main() -> None:
        async def create() -> TransportProducer:
            raise Awkward("t", reason="no")

        loop = asyncio.get_running_loop()
        producer = LetterProducer("t", create, ProducerEventPublisher(EventDispatcher(None, loop)))
        errors: list[str] = []
        letter = OutgoingMessage(payload=b"")
        for _ in range(2):
            producer.post(letter, lambda error: errors.append(str(error)))
            await asyncio.sleep(0.01)
        assert errors == ["t: no", "the letter topic is not retried yet: t: no"]
        await producer.close()

    run(main())
