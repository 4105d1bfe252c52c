"""No function that the application passes to the C++ client ends the process, on a real Pulsar.

Each group runs in its own process, and the test checks the exit code: a C++ thread that receives a
Python exception aborts the process.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

import pulsar_encore as encore

from .secured_server import Secured

asyncio.set_event_loop(None)

HERE = Path(__file__).resolve().parent
FAILING_SUPPLIERS = HERE.parent / "tests/authentication/failing_suppliers.py"
SECRET = b"s3cret"


async def run(program: Path, *arguments: str, stdin: str) -> tuple[list[str], bytes]:
    """Run a program that must succeed. Returns the lines that it printed and its log."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(program), *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, log = await asyncio.wait_for(process.communicate(stdin.encode()), 120)
    lines = out.decode().splitlines()
    assert process.returncode == 0, (lines[-5:], log.decode()[-2000:])
    assert lines[-1] == "done"
    return lines, log


async def test_a_supplier_that_fails_at_a_challenge_does_not_end_the_process(
    secured: Secured,
) -> None:
    """The answer is the previous token, which the broker refuses. The next connection works.

    One process has binary lookups and the other HTTP lookups.
    """
    tokens = [secured.credentials.token(lifetime_s=each) for each in (8, 3600)]
    urls = (secured.plain_url, secured.web_url)
    runs = [run(FAILING_SUPPLIERS, stdin=json.dumps([url, tokens])) for url in urls]
    for _, log in await asyncio.gather(*runs):
        assert SECRET not in log and tokens[0].encode() not in log


@pytest.mark.parametrize("scheme", ["pulsar", "http"])
async def test_a_supplier_that_fails_at_the_first_connect_is_named_at_once(
    secured: Secured, scheme: str
) -> None:
    url = secured.plain_url if scheme == "pulsar" else secured.web_url
    lines, _ = await run(HERE / "stock_callbacks_program.py", "suppliers", url, stdin="")
    assert lines == ["refused True"] * 4 + ["done"]


@pytest.mark.parametrize("case", ["loggers", "providers", "updates"])
async def test_failing_loggers_and_providers_do_not_end_the_process(
    secured: Secured, case: str
) -> None:
    lines, _ = await run(
        HERE / "stock_callbacks_program.py",
        case,
        secured.plain_url,
        stdin=secured.credentials.token(),
    )
    if case == "providers":
        assert lines.count("used close") == 4


async def test_a_temporarily_failing_supplier_loses_no_message(secured: Secured) -> None:
    """The token expires and the supplier fails. When it works again, sends and receives
    continue.
    """
    lifetime_s: float | None = 3.0
    is_failing = False
    failures = 0

    def supplier() -> str:
        nonlocal failures
        if is_failing:
            failures += 1
            raise ValueError(SECRET.decode())
        return secured.credentials.token(lifetime_s=lifetime_s)

    auth = encore.AuthenticationToken(supplier)
    topic = "persistent://public/default/failing-for-a-while"
    async with (
        encore.Client(secured.plain_url, auth, transport="stock") as client,
        client.subscribe(topic, "s", encore.ConsumerType.Shared) as consumer,
        await client.create_producer(topic, send_timeout_millis=60_000) as producer,
    ):
        sends: list[asyncio.Future[encore.MessageId]] = []
        is_failing = True
        async with asyncio.timeout(60):
            while failures < 3:
                sends.append(asyncio.ensure_future(producer.send(b"%d" % len(sends))))
                await asyncio.sleep(0.1)
            lifetime_s, is_failing = None, False
            await asyncio.gather(*sends)
            got: set[bytes] = set()
            while len(got) < len(sends):
                message = await consumer.receive(timeout=30)
                got.add(message.data())
                await consumer.acknowledge(message)
