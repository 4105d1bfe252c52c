"""Encrypted topics in Spark, on a real Pulsar: written and read with keys, refused without keys."""

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

from pulsar_encore import CryptoKeyReader
from tests.harness.pulsar_server import Server

from .numbered_topics import body, publish, values, with_options

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


def test_encrypted_rows_are_read_only_with_the_private_key(
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
    frame = with_options(spark.read, pulsar, topic, minPartitions=2, **with_key).load()
    assert values(frame) == everything
    plan = spark._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "extended")
    secret = Path(private).read_text().splitlines()[1]
    assert secret not in plan

    stream = with_options(spark.readStream, pulsar, topic, startingOffsets="earliest", **with_key)
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
            with_options(spark.read, pulsar, topic, **options).load().collect()
        assert "CryptoError" in str(caught.value)
        assert "pulsar.reader.cryptoPrivateKeyPath" in str(caught.value)
        assert "'lake'" in str(caught.value)


def test_messages_without_a_key_are_discarded_or_delivered_encrypted_by_option(
    spark: SparkSession, pulsar: Server, topic: str, keys: tuple[str, str]
) -> None:
    public, private = keys
    reader = CryptoKeyReader(public, private)
    publish(pulsar, topic, range(5), encryption_key="lake", crypto_key_reader=reader)
    publish(pulsar, topic, range(5, 9))
    publish(pulsar, topic, range(9, 12), encryption_key="lake", crypto_key_reader=reader)
    failure_action = "pulsar__reader__cryptoFailureAction"
    decrypted = with_options(spark.read, pulsar, topic, **{failure_action: "DISCARD"}).load()
    assert values(decrypted) == [body(each) for each in range(5, 9)]
    undecrypted = values(
        with_options(spark.read, pulsar, topic, **{failure_action: "CONSUME"}).load()
    )
    assert len(undecrypted) == 12
    assert undecrypted[5:9] == [body(each) for each in range(5, 9)]
    # plus the authentication tag
    assert all(len(each) == 8 + 16 for each in undecrypted[:5] + undecrypted[9:])
    with pytest.raises(PySparkException, match="cryptoPrivateKeyPath: cannot read"):
        missing = {"pulsar__reader__cryptoPrivateKeyPath": private + ".gone"}
        with_options(spark.read, pulsar, topic, **missing).load().collect()
