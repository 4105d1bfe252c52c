"""Python blocks of `docs/spark.md` and `docs/spark-triage.md` run on a development broker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import pulsar_encore as encore
from pulsar_encore.deadletters import DeadLetters
from pulsar_encore.spark.triage import triage
from pulsar_encore.testing import BrokerSettings, BrokerThread
from tests.harness.pages import Block, blocks_of, run_block

FIRST, DECRYPTED, ENCRYPTED, WRITTEN, EXACTLY_ONCE, SHARED = blocks_of("spark.md")
KEPT, PROGRAM, FOLLOWED = blocks_of("spark-triage.md")
WAIT_S = 90


@pytest.fixture
def url() -> Iterator[str]:
    with BrokerThread(BrokerSettings(port=0)) as started:
        yield started.url


@pytest.fixture
def names(spark: SparkSession, url: str) -> Iterator[dict[str, Any]]:
    yield {"spark": spark, "url": url}
    for query in spark.streams.active:
        query.stop()


def local(block: Block, folder: Path, url: str) -> Block:
    """Return a block with paths and the address of this test."""
    code = block.code.replace('"pulsar://localhost:6650"', repr(url))
    for path in ("lake/", "checkpoints/", "/etc/keys/"):
        code = code.replace(f'"{path}', f'"{folder}/{path.strip("/")}/')
    return replace(block, code=code)


def run(block: Block, names: dict[str, Any]) -> None:
    asyncio.run(run_block(block, names))


def send(url: str, topic: str, *bodies: bytes) -> None:
    async def main() -> None:
        async with encore.Client(url) as client, client.create_producer(topic) as producer:
            for body in bodies:
                await producer.send(body)

    asyncio.run(main())


def received(url: str, topic: str, count: int) -> list[bytes]:
    async def main() -> list[bytes]:
        async with encore.Client(url) as client:
            reader = await client.create_reader(topic, encore.MessageId.earliest)
            return [(await reader.read_next(timeout=WAIT_S)).data() for _ in range(count)]

    return asyncio.run(main())


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_the_first_block_streams_a_topic_into_parquet(
    names: dict[str, Any], url: str, folder: Path
) -> None:
    send(url, "orders", b"one", b"two")
    run(local(FIRST, folder, url), names)
    (query,) = names["spark"].streams.active
    query.processAllAvailable()
    rows = names["spark"].read.parquet(f"{folder}/lake/orders").collect()
    assert sorted(bytes(row["value"]) for row in rows) == [b"one", b"two"]


def test_encrypted_rows_are_written_and_read(
    names: dict[str, Any], url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    keys = folder / "etc" / "keys"
    keys.mkdir(parents=True)
    (keys / "lake-public.pem").write_bytes(
        made.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    (keys / "lake-private.pem").write_bytes(
        made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    names["df"] = names["spark"].range(3).select(f.format_string("s%d", "id").alias("value"))
    run(local(ENCRYPTED, folder, url), names)
    assert b"s0" not in b"".join(stored_payloads(url))
    run(local(DECRYPTED, folder, url), names)
    query = (
        names["secrets"]
        .writeStream.format("memory")
        .queryName("secrets")
        .option("checkpointLocation", f"{folder}/memory")
        .start()
    )
    query.processAllAvailable()
    rows = names["spark"].table("secrets").collect()
    assert sorted(bytes(row["value"]) for row in rows) == [b"s0", b"s1", b"s2"]


def stored_payloads(url: str) -> list[bytes]:
    """Read the topic without a key: entries stay encrypted."""

    async def main() -> list[bytes]:
        async with encore.Client(url) as client:
            consumer = await client.subscribe(
                "secrets",
                "look",
                initial_position=encore.InitialPosition.Earliest,
                crypto_failure_action=encore.ConsumerCryptoFailureAction.CONSUME,
            )
            return [(await consumer.receive(timeout=WAIT_S)).data()]

    return asyncio.run(main())


def test_a_stream_is_written_to_a_topic(names: dict[str, Any], url: str, folder: Path) -> None:
    rate = names["spark"].readStream.format("rate").option("rowsPerSecond", 5).load()
    names["df"] = rate.select(f.format_string("p%d", "value").alias("value"))
    run(local(WRITTEN, folder, url), names)
    # Several tasks write, so the order is open.
    found = received(url, "prices", 3)
    assert len(set(found)) == 3
    assert set(found) <= {b"p%d" % number for number in range(100)}


@pytest.mark.parametrize("block", [EXACTLY_ONCE, SHARED], ids=["of tasks", "of batches"])
def test_a_stream_is_written_in_transactions(
    names: dict[str, Any], url: str, folder: Path, block: Block
) -> None:
    rate = names["spark"].readStream.format("rate").option("rowsPerSecond", 5).load()
    names["df"] = rate.select(f.format_string("p%d", "value").alias("value"))
    run(local(block, folder, url), names)
    found = received(url, "prices", 10)
    assert len(set(found)) == 10
    assert set(found) <= {b"p%d" % number for number in range(100)}


def test_kept_letters_are_replayed_from_the_folder(
    names: dict[str, Any], url: str, folder: Path
) -> None:
    send(url, "orders", b"one")

    async def dead_letter() -> None:
        async with encore.Client(url) as client:
            consumer = await client.subscribe(
                "orders",
                "billing",
                consumer_type=encore.ConsumerType.Shared,
                initial_position=encore.InitialPosition.Earliest,
                dead_letter_policy=encore.DeadLetterPolicy(max_redeliver_count=5),
            )
            await consumer.reject(await consumer.receive(), ValueError("no such customer"))
            assert len(await DeadLetters(client, "orders-billing-DLQ").list()) == 1

    asyncio.run(dead_letter())
    report = triage(
        names["spark"],
        ["orders-billing-DLQ"],
        {"service.url": url},
        out=f"{folder}/lake/letters",
        checkpoint=f"{folder}/lake/checkpoint",
    )
    assert (report.letters, report.kept) == (1, 1)
    run(local(KEPT, folder, url), names)
    assert received(url, "orders", 2) == [b"one", b"one"]


def test_the_program_of_the_cluster_is_the_command(folder: Path) -> None:
    (folder / "triage.py").write_text(PROGRAM.code)
    done = subprocess.run(
        [sys.executable, "triage.py", "--help"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "--checkpoint" in done.stdout


def test_the_progress_of_a_query_is_reported(
    names: dict[str, Any], url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    send(url, "orders", b"one", b"two")
    names["options"] = {"service.url": url, "topic": "orders", "startingOffsets": "earliest"}
    run(FOLLOWED, names)
    try:
        query = (
            names["orders"]
            .writeStream.format("noop")
            .option("checkpointLocation", f"{folder}/followed")
            .start()
        )
        query.processAllAvailable()
        eventually(lambda: "rows" in names["listener"].prometheus())
        text = names["listener"].prometheus()
    finally:
        names["spark"].streams.removeListener(names["listener"])
    assert any("rows" in line and line.endswith(" 2.0") for line in text.splitlines()), text
    assert "QueryMetrics" in capsys.readouterr().out
