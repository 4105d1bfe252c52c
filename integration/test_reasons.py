"""A real broker's own reason in errors of calls for which the C++ client returns a bare code.

Each case is a program of its own, because a process has one C++ log, and this suite uses another.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any
from uuid import uuid4

import pytest

from tests.harness.pulsar_server import Server

BEGINNING = """
import asyncio, json, sys
import pulsar_encore as encore
from pulsar_encore.schema import AvroSchema, Integer, Record, String

class Count(Record):
    count = Integer(required=True)

class Colour(Record):
    colour = String(required=True)

class Weight(Record):
    weight = String(required=True)

async def main(client, topic):
"""
END = """
async def run():
    async with encore.Client(sys.argv[1], transport="stock") as client:
        print(json.dumps([str(each) for each in await main(client, sys.argv[2])]))

asyncio.run(run())
"""


@pytest.fixture
def errors_of(pulsar: Server) -> Any:
    def run(program: str) -> list[str]:
        body = textwrap.indent(textwrap.dedent(program), "    ")
        ended = subprocess.run(
            [
                sys.executable,
                "-c",
                BEGINNING + body + END,
                pulsar.service_url,
                f"why-{uuid4().hex}",
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        (line,) = ended.stdout.splitlines()  # and no line of the C++ client
        assert "ClientConnection" not in ended.stdout
        found: list[str] = json.loads(line)
        return found

    return run


def test_a_second_exclusive_consumer_gets_the_brokers_reason(errors_of: Any) -> None:
    (error,) = errors_of("""
    await client.subscribe(topic, "s")
    return await asyncio.gather(client.subscribe(topic, "s"), return_exceptions=True)
    """)
    assert "ConsumerBusy: another consumer holds the subscription" in error
    assert error.endswith("(Exclusive consumer is already connected)")


def test_an_incompatible_schema_gets_the_brokers_reason(errors_of: Any) -> None:
    (error,) = errors_of("""
    await client.create_producer(topic, schema=AvroSchema(Count))
    return await asyncio.gather(
        client.subscribe(topic, "s", schema=AvroSchema(Colour)), return_exceptions=True
    )
    """)
    assert "IncompatibleSchema: the topic has a schema that does not fit" in error
    assert "SchemaValidationException" in error
    assert '"name" : "Colour"' in error


def test_concurrent_errors_get_their_own_reasons(errors_of: Any) -> None:
    """The calls share one connection, and the C++ client itself returns the reason of the
    producer.
    """
    colour, weight, producer, busy = errors_of("""
    await client.create_producer(topic, schema=AvroSchema(Count))
    await client.subscribe(topic + "-busy", "s")
    return await asyncio.gather(
        client.subscribe(topic, "s", schema=AvroSchema(Colour)),
        client.subscribe(topic, "t", schema=AvroSchema(Weight)),
        client.create_producer(topic, schema=AvroSchema(Weight)),
        client.subscribe(topic + "-busy", "s"),
        return_exceptions=True,
    )
    """)
    assert '"name" : "Colour"' in colour and "Weight" not in colour
    assert '"name" : "Weight"' in weight and "Colour" not in weight
    assert '"name" : "Weight"' in producer and "Colour" not in producer
    assert busy.endswith("(Exclusive consumer is already connected)")


def test_a_missing_namespace_gets_the_brokers_reason(errors_of: Any) -> None:
    found = errors_of("""
    missing = "persistent://public/not-there/" + topic
    return await asyncio.gather(
        client.subscribe(missing, "s"), client.get_topic_partitions(missing), return_exceptions=True
    )
    """)
    for error in found:
        assert error.endswith("(Namespace not found)")
