"""`pulsar-encore dlq` on a broker with authentication, over TLS, as an operator runs it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import pulsar_encore as encore
from pulsar_encore import letters

from .secured_server import OPERATOR, PASSWORD, Credentials, Secured

# looptime's plugin requests a loop before every synchronous test; see the suite's fixtures.
asyncio.set_event_loop(None)

LETTERS = 20
QUIET = encore.ConsoleLogger(encore.LoggerLevel.Error)


async def dlq(
    *arguments: str, environment: dict[str, str] | None = None, **options: str
) -> tuple[int | None, str, str]:
    """Run a command with options by name. Return its exit code, its output and its errors."""
    option_words = [
        part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)
    ]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pulsar_encore", "dlq", *arguments, *option_words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={
            **{name: text for name, text in os.environ.items() if not name.startswith("PULSAR_")},
            **(environment or {}),
        },
    )
    out, problems = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode(), problems.decode()


async def publish_letters(secured: Secured) -> tuple[str, str]:
    """Publish letters on a new topic. Return the real topic and the dead letter topic."""
    real_topic = f"persistent://public/default/orders-{uuid4().hex[:8]}"
    properties = {letters.REAL_TOPIC: real_topic, letters.REAL_SUBSCRIPTION: "s"}
    properties[letters.FINGERPRINT] = "aaaaaaaaaaaa"
    async with (
        encore.Client(
            secured.tls_url,
            authentication=encore.AuthenticationToken(secured.credentials.token()),
            tls_trust_certs_file_path=secured.file("ca.pem"),
            transport="stock",
            logger=QUIET,
        ) as client,
        await client.create_producer(f"{real_topic}-s-DLQ") as producer,
    ):
        sends = (producer.send(b"%d" % each, properties) for each in range(LETTERS))
        await asyncio.gather(*sends)
    return real_topic, f"{real_topic}-s-DLQ"


async def read_out(secured: Secured, topic: str) -> list[bytes]:
    async with (
        encore.Client(
            secured.tls_url,
            authentication=encore.AuthenticationToken(secured.credentials.token()),
            tls_trust_certs_file_path=secured.file("ca.pem"),
            transport="stock",
            logger=QUIET,
        ) as client,
        await client.create_reader(topic, encore.MessageId.earliest) as reader,
    ):
        found = []
        while await reader.has_message_available():
            found.append((await reader.read_next(timeout_millis=5000)).data())
        return found


@pytest.mark.parametrize("login_name", ["with_token", "with_certificate"])
async def test_letters_are_listed_shown_and_replayed(secured: Secured, login_name: str) -> None:
    real_topic, dead_topic = await publish_letters(secured)
    login = getattr(secured, login_name)
    code, out, problems = await dlq("ls", dead_topic, "--json", **login)
    assert (code, problems) == (0, "")
    [group] = json.loads(out)
    assert (group["count"], group["real_topic"]) == (LETTERS, real_topic)
    code, out, problems = await dlq("show", dead_topic, group["sample_id"], "--json", **login)
    assert (code, problems) == (0, "")
    shown = json.loads(out)
    assert (shown["payload"], shown["payload_encoding"]) == (f"{LETTERS - 1}", "text")
    code, out, problems = await dlq("replay", dead_topic, "--all", "--json", **login)
    assert (code, problems) == (0, "")
    report = json.loads(out)
    assert (report["replayed"], report["targets"]) == (LETTERS, {real_topic: LETTERS})
    assert sorted(await read_out(secured, real_topic)) == sorted(
        b"%d" % each for each in range(LETTERS)
    )


async def test_every_login_method_is_accepted(secured: Secured) -> None:
    _, dead_topic = await publish_letters(secured)
    token = secured.credentials.token()
    by_environment = {
        "PULSAR_URL": secured.tls_url,
        "PULSAR_TLS_TRUST_CERTS_FILE": secured.file("ca.pem"),
    }
    pair = secured.write_file("pair", f"{OPERATOR}:{PASSWORD}\n")
    localhost = secured.tls_url.replace("127.0.0.1", "localhost")
    logins: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({}, {**by_environment, "PULSAR_TOKEN": token}),
        ({}, {**by_environment, "PULSAR_TOKEN_FILE": secured.with_token["token_file"]}),
        ({**secured.tls_options, "basic_file": pair}, {}),
        ({**secured.with_certificate, "token_file": secured.with_token["token_file"]}, {}),
        ({**secured.with_token, "url": localhost}, {}),
        ({"url": secured.plain_url}, {"PULSAR_TOKEN": token}),
    ]
    for options, environment in logins:
        code, out, problems = await dlq(
            "ls", dead_topic, "--json", environment=environment, **options
        )
        assert (code, problems) == (0, ""), (options, environment)
        assert [group["count"] for group in json.loads(out)] == [LETTERS]


async def test_a_refused_login_says_which_option_to_change(secured: Secured) -> None:
    wrong = Credentials(secured.credentials.folder, b"0" * 32).token()
    stranger = {
        "tls_certificate_file": secured.file("stranger.pem"),
        "tls_private_key_file": secured.file("stranger.key"),
    }
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {**secured.with_token, "token_file": secured.write_file("wrong", wrong)},
            "check the token of --token-file or PULSAR_TOKEN",
        ),
        (secured.tls_options, "log in with --token-file"),
        (
            {
                **secured.tls_options,
                "basic_file": secured.write_file("pair", f"{OPERATOR}:guessed"),
            },
            "check the user and the password in --basic-file",
        ),
        ({**secured.tls_options, **stranger}, "check --tls-certificate-file"),
        (
            {
                **secured.tls_options,
                "token_file": secured.write_file("other", secured.credentials.token("nobody")),
            },
            "the role that is logged in needs the permission",
        ),
        (
            {**secured.with_token, "tls_trust_certs_file": secured.file("other-ca.pem")},
            "name the file with its CA in --tls-trust-certs-file",
        ),
        (
            {"url": secured.tls_url, "token_file": secured.with_token["token_file"]},
            "name the file with its CA in --tls-trust-certs-file",
        ),
        (
            {**secured.with_token, "tls_trust_certs_file": secured.file("missing.pem")},
            "--tls-trust-certs-file (PULSAR_TLS_TRUST_CERTS_FILE): cannot read",
        ),
        (
            {
                "url": secured.tls_url.replace("pulsar+ssl", "pulsar"),
                "token_file": secured.with_token["token_file"],
            },
            "(pulsar+ssl://",
        ),
        (
            {**secured.with_token, "url": secured.plain_url.replace("pulsar", "pulsar+ssl")},
            "one without TLS takes --url pulsar://",
        ),
    ]
    for options, change in cases:
        code, out, problems = await dlq("ls", "orders-s-DLQ", "--json", **options)
        assert (code, out) == (2, ""), options
        assert change in problems
        assert problems.count("\n") == 1
        assert not any(
            secret in problems for secret in (wrong, secured.credentials.token(), "guessed")
        )


async def test_dlq_commands_never_create_a_topic(secured: Secured) -> None:
    """The broker has topic auto-creation enabled, as by default."""
    name = f"missing-{uuid4().hex[:8]}"
    login = secured.with_token
    for arguments in (
        ("ls", name, "--json"),
        ("show", name, "1:2"),
        ("show", f"{name}-partition-0", "aaaaaaaaaaaa"),
        ("replay", name, "--all"),
        ("replay", name, "--all", "--dry-run"),
    ):
        code, out, problems = await dlq(*arguments, **login)
        assert (code, out) == (3, "[]\n" if "--json" in arguments else "")
        assert "there is no dead-letter topic" in problems
    topics = await asyncio.to_thread(secured.admin.topics)
    partitioned = await asyncio.to_thread(
        secured.admin.call, "GET", "/persistent/public/default/partitioned"
    )
    assert not [topic for topic in [*topics, *partitioned] if name in topic]


@pytest.fixture
def misnamed(secured: Secured, tmp_path: Path) -> Iterator[str]:
    """Address of a server with a certificate that the CA signed for another host."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(secured.file("misnamed.pem"), secured.file("misnamed.key"))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            try:
                connection, _ = listening.accept()
                with connection, context.wrap_socket(connection, server_side=True) as secure:
                    secure.recv(4096)
            except OSError:  # the client closes the connection
                pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"pulsar+ssl://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


async def test_a_certificate_of_another_host_is_refused(secured: Secured, misnamed: str) -> None:
    code, out, problems = await dlq("ls", "orders-s-DLQ", **{**secured.with_token, "url": misnamed})
    assert (code, out) == (2, "")
    assert "is another host's" in problems
    assert "--no-tls-validate-hostname" in problems
