"""Spark reads encrypted topics with keys, without keys, and with wrong keys.

The options decide whether an undecryptable message is an error, left out or delivered encrypted. It
never disappears silently.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from crypto_kit import NAME, KeyFiles, key_files
from reader_kit import Stream, numbered, publish, read_batch, read_ranges, source

from pulsar_encore import CompressionType, CryptoKeyReader
from pulsar_encore.devbroker import BrokerSettings, BrokerThread
from pulsar_encore.errors import ConfigurationError, NotSupportedError
from pulsar_encore.exceptions import CryptoError

BOTH = pytest.mark.parametrize("transport", ["native", "stock"])


@pytest.fixture
def url() -> Iterator[str]:
    with BrokerThread(BrokerSettings(keep_acked=True, max_message_size=70_000)) as broker:
        yield broker.url


@pytest.fixture
def keys(tmp_path: Path) -> KeyFiles:
    return key_files(tmp_path)


def seal(url: str, keys: KeyFiles, *messages: bytes, **options: Any) -> None:
    publish(url, *messages, encryption_key=NAME, crypto_key_reader=keys.reader, **options)


def values(rows: list[dict[str, Any]]) -> list[bytes]:
    return [row["value"] for row in rows]


def on(transport: str) -> dict[str, str]:
    return {"pulsar__client__transport": transport}


@BOTH
@pytest.mark.parametrize("batch", [0, 7])
def test_with_the_key_every_message_is_read_in_clear(
    url: str, keys: KeyFiles, transport: str, batch: int
) -> None:
    compressed = CompressionType.ZLib
    seal(url, keys, *numbered(50), batch=batch, compression_type=compressed)
    rows = read_batch(url, pulsar__reader__cryptoPrivateKeyPath=keys.private, **on(transport))
    assert values(rows) == numbered(50)


def test_chunked_messages_are_read_in_clear(url: str, keys: KeyFiles) -> None:
    large = [b"%d" % each * 150_000 for each in range(3)]
    seal(url, keys, *large, chunking_enabled=True)
    rows = read_batch(url, pulsar__reader__cryptoPrivateKeyPath=keys.private, minPartitions=4)
    assert values(rows) == large


@BOTH
@pytest.mark.parametrize("batch", [0, 7])
@pytest.mark.parametrize("given", [False, True])
def test_an_undecryptable_message_is_an_error_at_once(
    url: str, keys: KeyFiles, tmp_path: Path, transport: str, batch: int, given: bool
) -> None:
    options = on(transport)
    if given:
        options["pulsar__reader__cryptoPrivateKeyPath"] = key_files(tmp_path, "theirs").private
    publish(url, *numbered(3))
    seal(url, keys, *numbered(5, 3), batch=batch)
    publish(url, *numbered(3, 8))
    began = time.monotonic()
    with pytest.raises(CryptoError) as caught:
        # The message is not lost, so this option does not apply.
        read_batch(url, failOnDataLoss="false", **options)
    assert time.monotonic() - began < 20
    message = str(caught.value)
    assert "persistent://public/default/t is encrypted" in message
    assert "pulsar.reader.cryptoPrivateKeyPath" in message
    assert "cryptoFailureAction=DISCARD" in message
    if transport == "native":
        assert NAME in message
    lines = Path(key_files(tmp_path, "theirs").private).read_text().splitlines()[1:-1]
    assert not any(line in message for line in lines)


@pytest.mark.parametrize("batch", [0, 5])
def test_an_undecryptable_rest_of_a_batch_is_also_an_error(
    url: str, keys: KeyFiles, batch: int
) -> None:
    sent = publish(
        url, *numbered(5), batch=batch, encryption_key=NAME, crypto_key_reader=keys.reader
    )
    here = sent[2]
    begin = f"{here.ledger_id()}:{here.entry_id()}:{here.batch_index()}".removesuffix(":-1")
    with pytest.raises(CryptoError):
        read_batch(url, startingOffsets=f'{{"t": "{begin}"}}')


def test_encrypted_messages_outside_the_range_do_not_matter(url: str, keys: KeyFiles) -> None:
    seal(url, keys, *numbered(3))
    clear = publish(url, *numbered(4, 3))
    seal(url, keys, *numbered(3, 7))
    ends = {
        name: f'{{"t": "{each.ledger_id()}:{each.entry_id()}"}}'
        for name, each in (("startingOffsets", clear[0]), ("endingOffsets", clear[-1]))
    }
    assert values(read_batch(url, **ends)) == numbered(4, 3)


@BOTH
@pytest.mark.parametrize("batch", [0, 7])
def test_discard_leaves_out_encrypted_messages_and_reports_their_number(
    url: str, keys: KeyFiles, transport: str, batch: int, caplog: pytest.LogCaptureFixture
) -> None:
    seal(url, keys, *numbered(5), batch=batch)
    publish(url, *numbered(4, 5))
    seal(url, keys, *numbered(6, 9), batch=batch)  # also at the end of the range
    caplog.set_level(logging.WARNING, "pulsar_encore.spark")
    began = time.monotonic()
    rows = read_batch(
        url,
        pulsar__reader__cryptoFailureAction="DISCARD",
        minPartitions=1,
        pollTimeoutMs="30s",
        **on(transport),
    )
    assert values(rows) == numbered(4, 5)
    assert time.monotonic() - began < 20
    sealed = 2 if batch else 11
    assert f"{sealed} entries could not be decrypted and are left out" in caplog.text


@BOTH
def test_consume_delivers_the_encrypted_bytes(url: str, keys: KeyFiles, transport: str) -> None:
    seal(url, keys, *numbered(2))
    publish(url, *numbered(2, 2))
    seal(url, keys, *numbered(5, 4), batch=5)
    rows = read_batch(url, pulsar__reader__cryptoFailureAction="consume", **on(transport))
    first, second, third, fourth, batch = values(rows)  # an encrypted batch is one message
    assert (third, fourth) == (b"00002", b"00003")
    assert len(first) == len(second) == 5 + 16  # the length of the clear text plus a tag
    assert first != b"00000"
    assert len(batch) > 25


def test_planning_needs_no_keys(url: str, keys: KeyFiles) -> None:
    """The driver reads only times and batch sizes, which are not encrypted."""
    seal(url, keys, *numbered(20))
    began = time.monotonic()
    options = {"startingTime": "1", "minPartitions": "4", "endingTime": "9999999999999"}
    reader = source(url, **options).reader(source(url).schema())
    ranges = reader.partitions()
    assert len(ranges) == 4
    assert time.monotonic() - began < 15
    with pytest.raises(CryptoError):
        read_ranges(reader, ranges)


def test_a_stream_continues_after_messages_that_it_leaves_out(url: str, keys: KeyFiles) -> None:
    options = {"startingOffsets": "earliest", "latestOffsetPollMs": "0", "subscription": "s"}
    seal(url, keys, *numbered(3))
    stream = Stream(url, pulsar__reader__cryptoFailureAction="DISCARD", **options)
    assert stream.step() == 0
    publish(url, *numbered(2, 3))
    stream.run()
    assert stream.values() == numbered(2, 3)


def test_a_stream_fails_on_the_same_batch_until_it_has_the_key(url: str, keys: KeyFiles) -> None:
    options = {"startingOffsets": "earliest", "latestOffsetPollMs": "0", "subscription": "s"}
    seal(url, keys, *numbered(3))
    stream = Stream(url, **options)
    for _ in range(2):
        with pytest.raises(CryptoError):
            stream.step()
    stream.reader.stop()
    again = Stream(url, stream.offset, pulsar__reader__cryptoPrivateKeyPath=keys.private, **options)
    assert again.run().values() == numbered(3)


# Sources of keys


class Vault(CryptoKeyReader):
    """Keys that are in no file."""

    def private_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        assert name == NAME
        return Path(FOUND[-1]).read_bytes()


FOUND: list[str] = []


def vault() -> CryptoKeyReader:
    return Vault("none.pem", "none.pem")


def no_vault() -> str:
    return "sesame"


def files() -> CryptoKeyReader:
    return CryptoKeyReader(FOUND[-1], FOUND[-1])


def test_a_function_can_supply_the_keys(url: str, keys: KeyFiles) -> None:
    FOUND.append(keys.private)
    seal(url, keys, *numbered(5))
    hook = {"pulsar__reader__cryptoKeyReader": f"{__name__}:vault"}
    assert values(read_batch(url, **hook)) == numbered(5)
    with pytest.raises(NotSupportedError, match="stock transport does not ask"):
        read_batch(url, **hook, **on("stock"))
    hook = {"pulsar__reader__cryptoKeyReader": f"{__name__}:files"}
    assert values(read_batch(url, **hook, **on("stock"))) == numbered(5)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no_vault", "must return a pulsar_encore.CryptoKeyReader, it returned str"),
        ("nothing", "cannot be imported"),
    ],
)
def test_the_error_names_a_key_function_that_supplies_no_keys(
    url: str, keys: KeyFiles, function: str, message: str
) -> None:
    seal(url, keys, *numbered(1))
    with pytest.raises(ConfigurationError, match="cryptoKeyReader") as caught:
        read_batch(url, pulsar__reader__cryptoKeyReader=f"{__name__}:{function}")
    assert message in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_a_missing_key_file_is_an_error_of_the_plan(
    url: str, keys: KeyFiles, tmp_path: Path
) -> None:
    nowhere = source(url, pulsar__reader__cryptoPrivateKeyPath=tmp_path / "none.pem")
    public = source(url, pulsar__reader__cryptoPrivateKeyPath=keys.public)
    for plan in (lambda made: made.reader(made.schema()), lambda made: made.streamReader(None)):
        with pytest.raises(ConfigurationError, match=r"cryptoPrivateKeyPath: cannot read '.*none"):
            plan(nowhere)
        with pytest.raises(ConfigurationError, match="cryptoPrivateKeyPath: no readable private"):
            plan(public)


def test_a_key_file_missing_on_a_worker_is_an_error_of_its_task(url: str, keys: KeyFiles) -> None:
    seal(url, keys, *numbered(3))
    made = source(url, pulsar__reader__cryptoPrivateKeyPath=keys.private)
    reader = made.reader(made.schema())
    ranges = reader.partitions()
    Path(keys.private).unlink()
    with pytest.raises(ConfigurationError, match="on every worker") as caught:
        read_ranges(reader, ranges)
    assert "pulsar.reader.cryptoPrivateKeyPath: cannot read" in str(caught.value)
