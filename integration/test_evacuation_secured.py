"""`pulsar-encore state evacuate` on a broker with authentication, over TLS."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from uuid import uuid4

import pytest

import pulsar_encore as encore

from .secured_server import Credentials, Secured

# looptime's plugin requests a loop before every synchronous test; see the suite's fixtures.
asyncio.set_event_loop(None)

SHARED = encore.ConsumerType.Shared
MESSAGES = 20


async def evacuate(directory: Path, **options: str) -> tuple[int | None, str, str]:
    """Run the command with options by name. Return its exit code, its output and its errors."""
    option_words = [
        part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)
    ]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pulsar_encore", "state", "evacuate", str(directory), "--json"),
        *option_words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: text for name, text in os.environ.items() if not name.startswith("PULSAR_")},
    )
    out, problems = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode(), problems.decode()


def authorized_client(secured: Secured) -> encore.Client:
    return encore.Client(
        secured.tls_url,
        authentication=encore.AuthenticationToken(secured.credentials.token()),
        tls_trust_certs_file_path=secured.file("ca.pem"),
        transport="native",
    )


@pytest.mark.parametrize("login_name", ["with_token", "with_certificate"])
async def test_a_host_of_a_secured_cluster_is_evacuated(
    secured: Secured, tmp_path: Path, login_name: str
) -> None:
    topic = f"persistent://public/default/orders-{uuid4().hex[:8]}"
    async with authorized_client(secured) as client:
        host = await client.subscribe(topic, "s", SHARED, state=encore.RocksState(tmp_path))
        producer = await client.create_producer(topic)
        await asyncio.gather(*(producer.send(b"%d" % each) for each in range(MESSAGES)))
        for _ in range(MESSAGES):
            await host.negative_acknowledge(await host.receive(timeout=10), delay=5)
        await host.close()

    wrong = Credentials(secured.credentials.folder, b"0" * 32).token()
    refused = {**secured.with_token, "token_file": secured.write_file("wrong", wrong)}
    code, out, problems = await evacuate(tmp_path, **refused)
    assert (code, out) == (2, "") and "--token-file" in problems and "Traceback" not in problems

    code, out, problems = await evacuate(tmp_path, **getattr(secured, login_name))
    assert code == 0, problems
    report = json.loads(out)
    assert (report["moved"], report["refused"], report["left"]) == (MESSAGES, 0, 0)

    async with authorized_client(secured) as client:
        consumer = await client.subscribe(topic, "s", SHARED, retry_enable=True)
        received = [int((await consumer.receive(timeout=60)).data()) for _ in range(MESSAGES)]
        assert sorted(received) == list(range(MESSAGES))
        await consumer.unsubscribe()
