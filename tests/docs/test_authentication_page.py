"""The Python blocks of `docs/authentication.md` run against brokers that ask for a login."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import testing
from pulsar_encore.authentication import oauth2
from pulsar_encore.authentication.oauth2_issuer import TokenGrant
from pulsar_encore.cli.login import Login
from pulsar_encore.devbroker import BrokerSettings, TlsSettings
from tests.harness.pages import Block, blocks_of, run_block, text_of
from tests.native.tls_kit import Authority
from tests.spark.crypto_kit import key_files

PAGE = text_of("authentication.md")
BLOCKS = blocks_of("authentication.md")
TOKEN = "token-1"


def block(title: str, paths: Mapping[str, str] = MappingProxyType({})) -> Block:
    """Return the block below a heading, with other paths in place of its own."""
    (found,) = (each for each in BLOCKS if each.title == title)
    code = found.code
    for old, new in paths.items():
        assert old in code
        code = code.replace(old, new)
    return replace(found, code=code)


@pytest.fixture
async def broker() -> AsyncIterator[testing.BrokerUrl]:
    async with testing.broker(BrokerSettings(token=TOKEN)) as url:
        yield url


async def log_in(client: encore.Client) -> None:
    async with client, client.create_producer("orders") as producer:
        await producer.send(b"in")


def test_every_block_has_a_test() -> None:
    assert len({each.title for each in BLOCKS}) == len(BLOCKS) == 5


async def test_a_token_file_and_a_certificate_of_ones_own_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("broker", "127.0.0.1", "localhost")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    settings = BrokerSettings(
        token=TOKEN, tls=TlsSettings(certificate_file=certificate, key_file=key)
    )
    async with testing.broker(settings) as url:
        paths = {
            "pulsar+ssl://broker.example:6651": url.broker.url_tls,
            "/run/secrets/token": str(tmp_path / "token"),
            "/etc/pulsar/ca.pem": authority.file,
        }
        names: dict[str, Any] = {"encore": encore}
        await run_block(block("Authentication and TLS", paths), names)
        await log_in(names["client"])
        untrusted = encore.Client(url.broker.url_tls, transport="native")
        with pytest.raises(encore.ConnectError, match="its certificate is not trusted"):
            await log_in(untrusted)
        wrong_port = str(url).replace("pulsar://", "pulsar+ssl://")
        with pytest.raises(encore.ConnectError, match="no TLS with"):
            await log_in(encore.Client(wrong_port, operation_timeout_seconds=1))


async def test_a_function_is_asked_for_each_connection(broker: testing.BrokerUrl) -> None:
    class Vault:
        calls = 0

        async def read(self, path: str) -> str:
            self.calls += 1
            return TOKEN

    names = {"encore": encore, "url": str(broker), "vault": Vault()}
    await run_block(block("Tokens that are renewed"), names)
    await log_in(names["client"])  # type: ignore[arg-type]
    await run_block(block("Tokens that are renewed"), names)
    await log_in(names["client"])  # type: ignore[arg-type]
    assert names["vault"].calls == 2  # type: ignore[attr-defined]


async def test_a_function_that_fails_is_named_without_its_text(broker: testing.BrokerUrl) -> None:
    async def fail() -> str:
        raise ValueError("the secret")

    client = encore.Client(broker, authentication=encore.AuthenticationToken(fail))
    with pytest.raises(encore.AuthenticationError, match=r"failed here.*ValueError") as caught:
        await log_in(client)
    assert "the secret" not in str(caught.value)


async def test_a_refused_login_is_an_error_at_once(broker: testing.BrokerUrl) -> None:
    client = encore.Client(broker, encore.AuthenticationToken("wrong"), transport="native")
    with pytest.raises(encore.AuthenticationError):
        await log_in(client)


async def test_oauth2_asks_the_issuer(
    broker: testing.BrokerUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    async def request_token(parameters: Any) -> TokenGrant:
        asked.append((parameters.issuer_url, parameters.client().client_id, parameters.audience))
        return TokenGrant(TOKEN, 3600)

    monkeypatch.setattr(oauth2, "request_token", request_token)
    secret = tmp_path / "oauth2.json"
    secret.write_text(json.dumps({"client_id": "billing", "client_secret": "secret"}))
    names: dict[str, Any] = {
        "encore": encore,
        "issuer_url": "https://issuer.example",
        "json": json,
        "url": str(broker),
    }
    await run_block(block("OAuth2", {"/run/secrets/oauth2.json": str(secret)}), names)
    await log_in(names["client"])
    assert asked == [("https://issuer.example", "billing", "urn:pulsar:cluster")]


async def test_the_broker_cannot_read_an_encrypted_message(tmp_path: Path) -> None:
    files = key_files(tmp_path)
    paths = {"/etc/pulsar/public.pem": files.public, "/etc/pulsar/private.pem": files.private}
    async with testing.broker() as url, encore.Client(url) as client:
        names: dict[str, Any] = {"client": client, "encore": encore}
        await run_block(block("Encryption of messages", paths), names)
        reader = await client.subscribe(
            "orders",
            "without-keys",
            crypto_failure_action=encore.ConsumerCryptoFailureAction.CONSUME,
        )
        await names["producer"].send(b"the payload")
        assert (await names["consumer"].receive()).data() == b"the payload"
        encrypted = await reader.receive()
        assert b"the payload" not in encrypted.data()
        context = encrypted.encryption_context()
        assert context is not None
        assert context.is_decryption_failed()


async def test_a_class_of_the_application_gives_its_token(broker: testing.BrokerUrl) -> None:
    class Session:
        async def token(self) -> str:
            return TOKEN

    names: dict[str, Any] = {"Session": Session, "encore": encore}
    await run_block(block("Your own class"), names)
    await log_in(encore.Client(broker, names["SessionToken"](Session())))


def test_the_table_of_tls_has_the_options_and_defaults_of_the_client() -> None:
    section = PAGE.partition("## TLS")[2].partition("\n## ")[0]
    listed = {
        name: default
        for names, default in re.findall(r"^\| (`\w+`.*?) \| (\w+) \|", section, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    parameters = inspect.signature(encore.Client).parameters
    assert listed.keys() == {each for each in parameters if each.startswith("tls_")}
    assert {name: str(parameters[name].default) for name in listed} == listed


def test_the_variables_are_those_of_the_command_line() -> None:
    section = PAGE.partition("## The command line")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `(PULSAR_\w+)`", section, flags=re.MULTILINE))
    fields = {f"PULSAR_{name.upper()}" for name in Login.__dataclass_fields__}
    assert listed == fields | {"PULSAR_URL", "PULSAR_TOKEN"}


def test_the_classes_and_errors_of_the_tables_exist() -> None:
    for name in re.findall(r"`(Authentication\w+|\w+Error|\w+Timeout)", PAGE):
        assert hasattr(encore, name), name
