"""On a real Pulsar, no function of the application's ends the process from within the C++ library.

Each group runs in a process of its own, whose exit code is looked at: a C++ thread that meets an
exception of Python's aborts it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import pulsar_encore as encore

from .admin import Admin
from .pulsar_server import NoBrokerError, StandaloneError, own_broker
from .secured_server import OPERATOR, Credentials, Secured, make_credentials

asyncio.set_event_loop(None)

HERE = Path(__file__).resolve().parent
FAILING_SUPPLIERS = HERE.parent / "tests/authentication/failing_suppliers.py"
SECRET = b"s3cret"


@pytest.fixture(scope="module")
def refreshing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker that asks for another token within a second of the old one's end."""
    credentials = make_credentials(tmp_path_factory.mktemp("credentials"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {**credentials.settings(port), "authenticationRefreshCheckSeconds": 1}
    broker = own_broker("standalone", **settings)
    try:
        with broker:
            yield Secured(
                credentials,
                f"pulsar+ssl://127.0.0.1:{port}",
                broker.service_url,
                broker.admin_url,
                Admin(broker.admin_url, token=credentials.token()),
            )
    except (NoBrokerError, StandaloneError) as e:
        pytest.fail(str(e), pytrace=False)


def token_until(credentials: Credentials, lifetime_s: float) -> str:
    """A token of the operator's that ends."""

    def encoded(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    claims = {"sub": OPERATOR, "exp": int(time.time() + lifetime_s)}
    head = json.dumps({"alg": "HS256", "typ": "JWT"}).encode()
    signed = f"{encoded(head)}.{encoded(json.dumps(claims).encode())}"
    digest = hmac.digest(credentials.signing_key, signed.encode(), hashlib.sha256)
    return f"{signed}.{encoded(digest)}"


async def run(program: Path, *words: str, given: str) -> tuple[list[str], bytes]:
    """Run a program to its end, which must be a good one; what it printed, and its log."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(program), *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, problems = await asyncio.wait_for(process.communicate(given.encode()), 120)
    lines = out.decode().splitlines()
    assert process.returncode == 0, (lines[-5:], problems.decode()[-2000:])
    assert lines[-1] == "done"
    return lines, problems


@pytest.mark.parametrize("scheme", ["pulsar", "http"])
async def test_no_supplier_that_fails_at_a_challenge_ends_the_process(
    refreshing: Secured, scheme: str
) -> None:
    """It answers with the token before; the broker refuses, and the next connect has a new one."""
    url = refreshing.plain_url if scheme == "pulsar" else refreshing.web_url
    tokens = [token_until(refreshing.credentials, each) for each in (8, 3600)]
    _, problems = await run(FAILING_SUPPLIERS, given=json.dumps([url, tokens]))
    assert SECRET not in problems and tokens[0].encode() not in problems


@pytest.mark.parametrize("scheme", ["pulsar", "http"])
async def test_a_supplier_that_fails_from_the_start_is_named_at_once(
    refreshing: Secured, scheme: str
) -> None:
    url = refreshing.plain_url if scheme == "pulsar" else refreshing.web_url
    lines, _ = await run(HERE / "stock_callbacks_program.py", "suppliers", url, given="")
    assert lines == ["refused True"] * 4 + ["done"]


@pytest.mark.parametrize("case", ["loggers", "providers", "updates"])
async def test_no_other_function_ends_the_process(refreshing: Secured, case: str) -> None:
    lines, _ = await run(
        HERE / "stock_callbacks_program.py",
        case,
        refreshing.plain_url,
        given=refreshing.credentials.token(),
    )
    if case == "providers":
        assert lines.count("used close") == 4


async def test_a_supplier_that_fails_for_a_while_loses_nothing(refreshing: Secured) -> None:
    """The token ends, the supplier fails for 4 s, and then sends and receives go on."""
    loop = asyncio.get_running_loop()
    first = token_until(refreshing.credentials, 3)
    began = loop.time()

    def supplier() -> str:
        age = time.monotonic() - born
        if age < 2:
            return first
        if age < 8:
            raise ValueError(SECRET.decode())
        return refreshing.credentials.token()

    born = time.monotonic()
    auth = encore.AuthenticationToken(supplier)
    topic = "persistent://public/default/failing-for-a-while"
    async with (
        encore.Client(refreshing.plain_url, auth, transport="stock") as client,
        client.subscribe(topic, "s", encore.ConsumerType.Shared) as consumer,
        await client.create_producer(topic, send_timeout_millis=60_000) as producer,
    ):
        sending: list[asyncio.Future[encore.MessageId]] = []
        while loop.time() - began < 12:
            sending.append(asyncio.ensure_future(producer.send(b"%d" % len(sending))))
            await asyncio.sleep(0.2)
        async with asyncio.timeout(60):
            await asyncio.gather(*sending)
            got: set[bytes] = set()
            while len(got) < len(sending):
                message = await consumer.receive(timeout=30)
                got.add(message.data())
                await consumer.acknowledge(message)
