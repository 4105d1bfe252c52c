"""Bytes on the connection for each codec and size of batch: a size, and so without noise.

The messages are orders in JSON, about 175 bytes each, and random bytes of the same size, which no
codec can shrink. The figures count the entries as the broker stores them, with their metadata.

    make bench ONLY=compression
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Final

import pulsar_encore as encore
from pulsar_encore.testing import MemoryTransport

from .rows import Row
from .trial import Benchmark, Trial

MESSAGES: Final = 10_000
BATCHES: Final = (1, 10, 1000)
CODECS: Final = ("LZ4", "SNAPPY", "ZSTD", "ZLib")
_TOPIC: Final = "persistent://public/default/orders"


def orders(count: int) -> list[bytes]:
    """Return orders in JSON; the same in each run."""
    chosen = random.Random(1)
    return [
        json.dumps(
            {
                "id": f"{chosen.getrandbits(64):016x}",
                "customer": f"customer-{chosen.randrange(10_000)}",
                "status": chosen.choice(["created", "paid", "sent", "returned"]),
                "items": [
                    {"sku": f"SKU-{chosen.randrange(500):05}", "count": chosen.randrange(1, 9)}
                    for _ in range(2)
                ],
                "total_cents": chosen.randrange(100, 100_000),
            }
        ).encode()
        for _ in range(count)
    ]


async def stored_bytes(payloads: list[bytes], batch: int, codec: str) -> float:
    """Return the bytes of a message in the broker's entries."""
    transport = MemoryTransport()
    async with encore.Client("pulsar://nowhere:6650", transport=transport) as client:
        reader = await client.create_reader(_TOPIC, encore.MessageId.earliest)  # keeps the entries
        producer = await client.create_producer(
            _TOPIC,
            batching_enabled=batch > 1,
            batching_max_messages=max(batch, 2),
            batching_max_allowed_size_in_bytes=2**20,
            compression_type=encore.CompressionType[codec],
            max_pending_messages=len(payloads),
        )
        await asyncio.gather(*map(producer.send, payloads))
        entries = transport.state(_TOPIC).log.entries
        found = sum(len(each.body) for each in entries) / len(payloads)
        await reader.close()
    return found


def run(trial: Trial) -> Iterator[Row]:
    """Measure each size of batch and codec beside no compression."""
    payloads = orders(MESSAGES)
    size = sum(map(len, payloads)) // MESSAGES
    chosen = random.Random(2)
    kinds = {"orders": payloads, "random bytes": [chosen.randbytes(size) for _ in payloads]}
    for kind, messages in kinds.items():
        for batch in BATCHES:
            trial.step(f"{kind}, batches of {batch}")
            plain = asyncio.run(stored_bytes(messages, batch, "NONE"))
            for codec in CODECS:
                yield Row(
                    what=f"{kind}, {f'batches of {batch}' if batch > 1 else 'unbatched'}, {codec}",
                    unit="B/msg",
                    ours=(round(asyncio.run(stored_bytes(messages, batch, codec)), 1),),
                    other=(round(plain, 1),),
                    beside="no compression",
                )


BENCHMARK: Final = Benchmark(
    name="compression",
    title="Compression: bytes of a message",
    about=(
        "Bytes of a stored message with its share of the entry's metadata, for each codec and size "
        "of batch: orders in JSON of about 175 bytes, and random bytes of the same size."
    ),
    seconds=25,
    quick_s=None,
    run=run,
)
