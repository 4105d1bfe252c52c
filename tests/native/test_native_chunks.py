"""Chunks that arrive at different times are requested together and joined."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest
from native_kit import run, subscription

from pulsar_encore.options import ConsumerType
from pulsar_encore.transport.native.consumer.chunked_messages import ChunkedMessages
from pulsar_encore.transport.native.consumer.entry_contents import ChunkEntry
from pulsar_encore.wire import pulsar_pb2 as pb
from pulsar_encore.wire.chunk_assembler import JoinedMessage, Place

LEDGER = 3


class Broker:
    """A broker that sends the requested entries in order, after a short delay.

    Args:
        kind: Type of the subscription.
        messages: Number of chunks of each message. Their entries follow one another.
    """

    def __init__(self, kind: ConsumerType, *messages: int) -> None:
        self.pieces = [
            (uuid, at, count) for uuid, count in enumerate(messages) for at in range(count)
        ]
        self.joined: list[JoinedMessage] = []
        self.asked = 0
        self._loop = asyncio.get_running_loop()
        self.chunked = ChunkedMessages(
            subscription(consumer_type=kind),
            "t",
            self._loop,
            list,
            self.redeliver,
            lambda: False,
            2**28,
            list,
            logging.getLogger("pulsar_encore.consumer"),
        )

    def redeliver(self, places: list[Place]) -> None:
        self.asked += 1
        self._loop.call_later(0.003, self.send, [entry for _, entry in places])

    def send(self, entries: list[int]) -> None:
        for entry in sorted(entries):
            uuid, at, count = self.pieces[entry]
            metadata = pb.MessageMetadata(
                uuid=str(uuid), chunk_id=at, num_chunks_from_msg=count, total_chunk_msg_size=count
            )
            joined = self.chunked.add(ChunkEntry(metadata, b"", b"x"), LEDGER, entry, 1)
            if isinstance(joined, JoinedMessage):
                self.joined.append(joined)


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_chunks_that_arrived_at_two_times_are_joined_after_at_most_two_requests(
    kind: ConsumerType,
) -> None:
    """Chunks requested at their arrival times came apart each second, for ever (Pulsar 4.2.4)."""

    async def main() -> None:
        broker = Broker(kind, 11)
        broker.send([0, 1, 2, 3, 6, 7, 8, 9, 10])
        await asyncio.sleep(0.18)
        broker.send([4, 5])
        await asyncio.sleep(5)
        (joined,) = broker.joined
        assert [entry for _, entry in joined.places] == list(range(11))
        assert broker.asked <= 2

    run(main())


@pytest.mark.parametrize("seed", range(40))
def test_chunks_that_arrive_at_random_times_are_joined_within_seconds(seed: int) -> None:
    async def main() -> None:
        dice = Random(seed)
        broker = Broker(
            ConsumerType.Shared, *(dice.randint(2, 12) for _ in range(dice.randint(1, 5)))
        )
        groups: dict[float, list[int]] = {}
        moments = [dice.uniform(0, 3) for _ in range(dice.randint(1, 4))]
        for entry in range(len(broker.pieces)):
            groups.setdefault(dice.choice(moments), []).append(entry)
        for moment, entries in groups.items():
            asyncio.get_running_loop().call_later(moment, broker.send, entries)
        await asyncio.sleep(15)
        places = [place for each in broker.joined for place in each.places]
        assert sorted(places) == [(LEDGER, entry) for entry in range(len(broker.pieces))]

    run(main())
