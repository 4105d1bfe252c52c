"""Rows that the sink encrypts on the development broker are unreadable without the key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from crypto_kit import NAME, KeyFiles, key_files
from sink_kit import Home, home, schema_of

import pulsar_encore as encore
from pulsar_encore import ConsumerCryptoFailureAction, CryptoKeyReader
from pulsar_encore.errors import ConfigurationError, NotSupportedError

BOTH = pytest.mark.parametrize("transport", ["native", "stock"])
SECRET = [b"secret %d" % each for each in range(20)]


@pytest.fixture
def here() -> Iterator[Home]:
    with home() as made:
        yield made


@pytest.fixture
def keys(tmp_path: Path) -> KeyFiles:
    return key_files(tmp_path)


def with_keys(keys: KeyFiles, *names: str) -> dict[str, str]:
    return {
        "pulsar.producer.encryptionKeys": ",".join(names or (NAME,)),
        "pulsar.producer.cryptoPublicKeyPath": keys.public,
    }


def stored(url: str, topic: str, keys: KeyFiles | None) -> list[tuple[bytes, list[str]]]:
    """Return the messages of a topic with their key names. Without a key they stay encrypted."""

    async def read() -> list[tuple[bytes, list[str]]]:
        found = []
        async with (
            encore.Client(url) as client,
            await client.create_reader(
                topic,
                encore.MessageId.earliest,
                crypto_key_reader=None if keys is None else keys.reader,
                crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
            ) as reader,
        ):
            while await reader.has_message_available():
                message = await reader.read_next(10_000)
                context = message.encryption_context()
                names = [] if context is None else [each.key for each in context.keys()]
                found.append((message.data(), names))
        return found

    return asyncio.run(read())


@BOTH
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"pulsar.producer.batchingEnabled": "false"},
        {"pulsar.producer.compressionType": "ZLib"},
        {"pulsar.producer.chunkingEnabled": "true"},
    ],
)
def test_rows_are_encrypted_for_all_named_keys(
    here: Home, keys: KeyFiles, transport: str, more: dict[str, str]
) -> None:
    here.write(
        schema_of(value="binary"),
        [(each,) for each in SECRET],
        options={
            "topic": "t",
            "pulsar.client.transport": transport,
            **with_keys(keys, "a", "b"),
            **more,
        },
    )
    clear = stored(here.broker.url, "t", keys)
    assert [data for data, _ in clear] == SECRET
    assert all(sorted(names) == ["a", "b"] for _, names in clear)
    for data, _ in stored(here.broker.url, "t", None):
        assert b"secret" not in data


def test_letters_and_replays_are_encrypted_with_the_sinks_keys(here: Home, keys: KeyFiles) -> None:
    schema = schema_of(value="binary", __topic="string", __messageId="binary", __key="binary")
    here.write(schema_of(value="binary"), [(SECRET[0],)], options={"topic": "t", **with_keys(keys)})
    columns = schema.add("__messageProperties", schema_of(a="map")["a"].dataType)
    row = (SECRET[0], "persistent://public/default/t", MESSAGE_ID, None, {})
    for mode, topic in (("dead_letter", "t-s-DLQ"), ("reconsume_later", "t-s-RETRY")):
        options = {"sinkMode": mode, "subscription": "s", "textKeys": "true", **with_keys(keys)}
        here.write(columns, [row], options=options)
        assert stored(here.broker.url, topic, keys) == [(SECRET[0], [NAME])]
        [(sealed, _)] = stored(here.broker.url, topic, None)
        assert b"secret" not in sealed
    [letter] = properties(here, "t-s-DLQ", keys)
    row = (SECRET[0], "persistent://public/default/t-s-DLQ", MESSAGE_ID, None, letter)
    here.write(
        columns, [row], options={"sinkMode": "replay", "textKeys": "true", **with_keys(keys)}
    )
    assert stored(here.broker.url, "t", keys) == [(SECRET[0], [NAME])] * 2


MESSAGE_ID = encore.MessageId(-1, 1, 0).serialize()


def properties(here: Home, topic: str, keys: KeyFiles) -> list[dict[str, str]]:
    async def read() -> list[dict[str, str]]:
        async with (
            encore.Client(here.broker.url) as client,
            await client.create_reader(
                topic, encore.MessageId.earliest, crypto_key_reader=keys.reader
            ) as reader,
        ):
            return [(await reader.read_next(10_000)).properties()]

    return asyncio.run(read())


class Vault(CryptoKeyReader):
    def public_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        return Path(FOUND[-1]).read_bytes()


FOUND: list[str] = []


def vault() -> CryptoKeyReader:
    return Vault("none.pem", "none.pem")


def test_a_function_can_supply_the_keys(here: Home, keys: KeyFiles) -> None:
    FOUND.append(keys.public)
    options = {
        "topic": "t",
        "pulsar.producer.encryptionKeys": NAME,
        "pulsar.producer.cryptoKeyReader": f"{__name__}:vault",
    }
    here.write(schema_of(value="binary"), [(SECRET[0],)], options=options)
    assert stored(here.broker.url, "t", keys) == [(SECRET[0], [NAME])]
    with pytest.raises(NotSupportedError, match="stock transport does not ask"):
        here.write(
            schema_of(value="binary"),
            [(SECRET[0],)],
            options={**options, "pulsar.client.transport": "stock"},
        )


def test_a_missing_key_file_is_an_error_of_the_plan(
    here: Home, keys: KeyFiles, tmp_path: Path
) -> None:
    secret = Path(keys.private).read_text().splitlines()[1:-1]
    nowhere = KeyFiles(str(tmp_path / "none.pem"), "")
    for streaming in (False, True):
        for found, message in (
            (nowhere, "cryptoPublicKeyPath: cannot read '.*none"),
            (KeyFiles(keys.private, ""), "cryptoPublicKeyPath: no readable public key"),
        ):
            with pytest.raises(ConfigurationError, match=message) as caught:
                here.write(
                    schema_of(value="binary"),
                    [(SECRET[0],)],
                    options={"topic": "t", **with_keys(found)},
                    streaming=streaming,
                )
            assert not any(line in str(caught.value) for line in secret)
    assert here.topics() == []
