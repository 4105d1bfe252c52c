"""A small program for an installed package: `python -I package_program.py EXTRA`, or without one.

It imports the public modules, sends messages to the development broker over loopback and reads
them on both transports, and uses the extra. `package_check.py` runs it in clean environments, so it
imports nothing from this folder. It prints the place of the package and "works".
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pulsar_encore as encore
from pulsar_encore import testing

#: Modules that an installation without extras can import.
MODULES: Final = (
    "pulsar_encore.asyncio",
    "pulsar_encore.deadletters",
    "pulsar_encore.evacuation",
    "pulsar_encore.exceptions",
    "pulsar_encore.health",
    "pulsar_encore.otel",
    "pulsar_encore.schema",
    "pulsar_encore.state",
    "pulsar_encore.testing",
)
#: Modules that need an extra.
MODULES_OF: Final = {
    "prometheus": ("pulsar_encore.prometheus",),
    "otel": ("pulsar_encore.otel.metrics", "pulsar_encore.otel.tracing"),
    "spark": (
        "pulsar_encore.spark",
        "pulsar_encore.spark.metrics",
        "pyspark_pulsar_encore",
    ),
    "triage": ("pulsar_encore.spark", "pulsar_encore.spark.triage", "matplotlib"),
}
WITHIN_S: Final = 20.0


@dataclass
class Order:
    number: int


async def exchange(url: str, topic: str, **client_options: Any) -> None:
    """Send two messages, nack the first once, and receive and acknowledge all."""
    async with encore.Client(url, **client_options) as client:
        consumer = await client.subscribe(
            topic, "check", consumer_type=encore.ConsumerType.Shared, schema=encore.Json(Order)
        )
        async with client.create_producer(topic, schema=encore.Json(Order)) as producer:
            for number in range(2):
                await producer.send(Order(number))
        first = await asyncio.wait_for(consumer.receive(), WITHIN_S)
        await consumer.negative_acknowledge(first, delay=0.1)
        numbers = []
        for _ in range(2):
            message = await asyncio.wait_for(consumer.receive(), WITHIN_S)
            numbers.append(message.value().number)
            await consumer.acknowledge(message)
        if sorted(numbers) != [0, 1]:
            raise AssertionError(f"received {numbers}, not 0 and 1")


async def base(url: str) -> None:
    for transport in ("native", "stock"):
        await exchange(url, f"check-{transport}", transport=transport)

    handled = asyncio.Event()

    async def handler(number: int) -> None:
        handled.set()

    async with encore.Client(url) as client:
        worker = encore.Worker(
            client,
            "check-worker",
            "check",
            handler,
            schema=encore.Json(int),
            initial_position=encore.InitialPosition.Earliest,
        )
        async with worker, client.create_producer("check-worker") as producer:
            await producer.send(b"1")
            await asyncio.wait_for(handled.wait(), WITHIN_S)


async def avro(url: str) -> None:
    from pulsar_encore import schema

    class Order(schema.Record):  # type: ignore[misc,unused-ignore]
        number = schema.Integer(required=True)

    async with encore.Client(url) as client:
        records = schema.AvroSchema(Order)
        consumer = await client.subscribe("check-avro", "check", schema=records)
        producer = await client.create_producer("check-avro", schema=records)
        await producer.send(Order(number=7))
        message = await asyncio.wait_for(consumer.receive(), WITHIN_S)
        assert message.value().number == 7


async def encryption(url: str) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM
    public = private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    secret = private.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("public.pem", "private.pem")]
        for path, content in zip(paths, (public, secret), strict=True):
            path.write_bytes(content)
        keys = encore.CryptoKeyReader(str(paths[0]), str(paths[1]))
        async with encore.Client(url, transport="native") as client:
            consumer = await client.subscribe("check-keys", "check", crypto_key_reader=keys)
            producer = await client.create_producer(
                "check-keys", encryption_key="check", crypto_key_reader=keys
            )
            await producer.send(b"secret")
            message = await asyncio.wait_for(consumer.receive(), WITHIN_S)
            assert message.data() == b"secret"


@contextlib.contextmanager
def web_service(answer: Callable[[str, str], dict[str, Any]]) -> Iterator[str]:
    """Run a web server on loopback. `answer` gets its address and the path of a request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = json.dumps(answer(address, self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield address
    finally:
        server.shutdown()
        server.server_close()


async def http(url: str) -> None:
    def lookup(address: str, path: str) -> dict[str, Any]:
        return {"partitions": 0} if "/partitions" in path else {"brokerUrl": url}

    with web_service(lookup) as address:
        await exchange(address, "check-lookup", transport="native")


async def oauth2(url: str) -> None:
    def issuer(address: str, path: str) -> dict[str, Any]:
        if "well-known" in path:
            return {"token_endpoint": f"{address}/token"}
        return {"access_token": "a-token", "token_type": "Bearer", "expires_in": 3600}

    with web_service(issuer) as address:
        login = encore.AuthenticationOauth2(
            json.dumps({"issuer_url": address, "client_id": "check", "client_secret": "secret"})
        )
        assert await login.data() == b"a-token"
        await exchange(url, "check-oauth2", transport="native", authentication=login)


async def prometheus(url: str) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from pulsar_encore.prometheus import Metrics

    registry = CollectorRegistry()
    await exchange(url, "check-metrics", observers=[Metrics(registry)])
    assert b"pulsar_client_encore_" in generate_latest(registry)


async def otel(url: str) -> None:
    from pulsar_encore.otel import Metrics, Tracing

    await exchange(url, "check-traces", observers=[Metrics(), Tracing()])


async def state(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with encore.Client(url) as client:
            consumer = await client.subscribe(
                "check-state",
                "check",
                consumer_type=encore.ConsumerType.Shared,
                state=encore.RocksState(folder),
            )
            producer = await client.create_producer("check-state")
            await producer.send(b"one")
            message = await asyncio.wait_for(consumer.receive(), WITHIN_S)
            await consumer.negative_acknowledge(message, delay=0.1)
            message = await asyncio.wait_for(consumer.receive(), WITHIN_S)
            await consumer.acknowledge(message)


async def cli(url: str) -> None:
    script = Path(sys.executable).parent / (
        "pulsar-encore.exe" if os.name == "nt" else "pulsar-encore"
    )
    for command in (
        [str(script), "--version"],
        [sys.executable, "-I", "-m", "pulsar_encore", "-h"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode != 0 or not done.stdout:
            raise AssertionError(f"{command} ended with {done.returncode}: {done.stderr}")


async def spark(url: str) -> None:
    from pulsar_encore.spark import PulsarDataSource

    assert PulsarDataSource.name() == "pulsar"


USES: Final[dict[str, Callable[[str], Coroutine[Any, Any, None]]]] = {
    "avro": avro,
    "cli": cli,
    "encryption": encryption,
    "http": http,
    "oauth2": oauth2,
    "otel": otel,
    "prometheus": prometheus,
    "spark": spark,
    "state": state,
    "triage": spark,
}


async def main(extra: str | None) -> None:
    for module in (*MODULES, *MODULES_OF.get(extra or "", ())):
        importlib.import_module(module)
    async with testing.broker() as url:
        await base(url)
        if extra is not None:
            await USES[extra](url)
    print(f"pulsar-encore {encore.__version__} in {Path(encore.__file__).parent} works")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
