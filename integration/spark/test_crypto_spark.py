"""Encrypted topics in Spark, on a real Pulsar: written and read with keys, refused without."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from harness.pulsar_server import Server
from pulsar_encore import CryptoKeyReader

from .numbered_topics import body, publish, reading, values

ROWS = 2000


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, str]:
    """Paths of a public and a private key."""
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public, private = tmp_path / "public.pem", tmp_path / "private.pem"
    public.write_bytes(
        made.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    private.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return str(public), str(private)


def test_what_is_written_with_a_key_is_read_with_it_and_not_without(
    spark: SparkSession, pulsar: Server, topic: str, keys: tuple[str, str], folder: Path
) -> None:
    public, private = keys
    made = spark.range(ROWS, numPartitions=1)
    made.select(F.format_string("%08d", "id").alias("value")).write.format("pulsar").options(
        **{
            "service.url": pulsar.service_url,
            "topic": topic,
            "pulsar.producer.encryptionKeys": "lake",
            "pulsar.producer.cryptoPublicKeyPath": public,
        }
    ).mode("append").save()
    everything = [body(each) for each in range(ROWS)]

    with_key = {"pulsar__reader__cryptoPrivateKeyPath": private}
    frame = reading(spark.read, pulsar, topic, minPartitions=2, **with_key).load()
    assert values(frame) == everything
    plan = spark._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "extended")
    secret = Path(private).read_text().splitlines()[1]
    assert secret not in plan

    stream = reading(spark.readStream, pulsar, topic, startingOffsets="earliest", **with_key)
    query = (
        stream.load()
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    stored = spark.read.parquet(str(folder / "out")).select("value").collect()
    assert sorted(bytes(row["value"]) for row in stored) == everything

    for options in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(PySparkException) as caught:
            reading(spark.read, pulsar, topic, **options).load().collect()
        assert "CryptoError" in str(caught.value)
        assert "pulsar.reader.cryptoPrivateKeyPath" in str(caught.value)
        assert "'lake'" in str(caught.value)


def test_what_has_no_key_here_is_left_out_or_handed_on_if_that_is_said(
    spark: SparkSession, pulsar: Server, topic: str, keys: tuple[str, str]
) -> None:
    public, private = keys
    reader = CryptoKeyReader(public, private)
    publish(pulsar, topic, range(5), encryption_key="lake", crypto_key_reader=reader)
    publish(pulsar, topic, range(5, 9))
    publish(pulsar, topic, range(9, 12), encryption_key="lake", crypto_key_reader=reader)
    failing = "pulsar__reader__cryptoFailureAction"
    kept = reading(spark.read, pulsar, topic, **{failing: "DISCARD"}).load()
    assert values(kept) == [body(each) for each in range(5, 9)]
    sealed = values(reading(spark.read, pulsar, topic, **{failing: "CONSUME"}).load())
    assert len(sealed) == 12
    assert sealed[5:9] == [body(each) for each in range(5, 9)]
    assert all(len(each) == 8 + 16 for each in sealed[:5] + sealed[9:])  # and its tag
    with pytest.raises(PySparkException, match="cryptoPrivateKeyPath: cannot read"):
        missing = {"pulsar__reader__cryptoPrivateKeyPath": private + ".gone"}
        reading(spark.read, pulsar, topic, **missing).load().collect()
