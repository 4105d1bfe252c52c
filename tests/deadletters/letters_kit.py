"""Helpers for the dead-letter tests: letters of several writers, and reading a topic."""

from __future__ import annotations

import asyncio
from typing import Any

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.testing import MemoryTransport

# : The log of the C++ client is global: the first logger decides, and tests provoke errors.
QUIET = encore.ConsoleLogger(encore.LoggerLevel.Error)

HOME = "persistent://public/default/orders"
DEAD = "persistent://public/default/orders-billing-DLQ"


def properties_of(
    real_topic: str | None = HOME, fingerprint: str | None = "aaaaaaaaaaaa", **more: str
) -> dict[str, str]:
    """Return the properties of a letter. Without a fingerprint it is a letter of Java's client."""
    given = {"colour": "red", letters.ORIGIN_MESSAGE_ID: "7:7:-1", letters.RECONSUME_TIMES: "3"}
    given |= {letters.REAL_SUBSCRIPTION: "billing", letters.DELAY_TIME: "0"}
    if real_topic is not None:
        given[letters.REAL_TOPIC] = real_topic
    if fingerprint is not None:
        given |= {
            letters.FINGERPRINT: fingerprint,
            letters.ERROR_CLASS: "ValueError",
            letters.ERROR_MESSAGE: f"no {fingerprint[0]}",
            letters.ATTEMPTS: "4",
            letters.FIRST_TIME: "1",
            letters.LAST_TIME: "2",
        }
    return given | more


def write_letters(transport: MemoryTransport, *payloads: bytes | None, **of: Any) -> list[str]:
    """Write letters, one entry each, and return their ids as listed."""
    topic = of.pop("topic", DEAD)
    put = {name: of.pop(name) for name in ("key", "event_ms") if name in of}
    ids = []
    for payload in payloads:
        (message_id,) = transport.put(topic, payload, properties=properties_of(**of), **put)
        ids.append(f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}")
    return ids


async def read_out(client: encore.Client, topic: str = HOME) -> list[encore.Message]:
    """Return all messages of a topic."""
    found = []
    async with await client.create_reader(topic, encore.MessageId.earliest) as reader:
        while await reader.has_message_available():
            found.append(await reader.read_next(timeout_millis=5000))
    return found


def bodies(messages: list[encore.Message]) -> list[bytes]:
    return [message.data() for message in messages]


async def write_letters_on(url: str, payloads: list[bytes], **of: Any) -> None:
    """Write letters to a broker, one entry each."""
    await publish_on(url, DEAD, payloads, properties_of(**of))


async def publish_on(
    url: str, topic: str, payloads: list[bytes], properties: dict[str, str] | None = None
) -> None:
    """Write messages to a topic of a broker, one entry each."""
    async with (
        encore.Client(url, transport="stock", logger=QUIET) as client,
        await client.create_producer(topic, batching_enabled=False) as producer,
    ):
        sends = (producer.send(each, properties=properties) for each in payloads)
        await asyncio.gather(*sends)


async def read_from(url: str, topic: str = HOME) -> list[encore.Message]:
    """Return all messages of a broker's topic."""
    async with encore.Client(url, transport="stock", logger=QUIET) as client:
        return await read_out(client, topic)
