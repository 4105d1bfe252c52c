"""A probe reports at once when the server at an address is not a usable broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from pulsar_encore.cli.login import Login, access
from pulsar_encore.cli.probe import probe
from pulsar_encore.devbroker import BrokerSettings, run_in_thread
from pulsar_encore.errors import TransportError
from pulsar_encore.wire import NO_REQUEST, PROTOCOL_VERSION, encode, pb

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
TOPIC = "persistent://public/default/t"
SECRET = "s3cret"


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[int]:
    """Start a server with this behaviour and yield its port."""
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(ConnectionError):
            await answer(reader, writer)

    # From 3.12 on, the end of a server waits for the end of its connections.
    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            for writer in writers:
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()


async def asked(answer: Answer, scheme: str = "pulsar", timeout_s: float = 5) -> TransportError:
    """Return the error of a probe of a server with this behaviour."""
    async with serving(answer) as port:
        to = access(f"{scheme}://127.0.0.1:{port}", Login(), {"PULSAR_TOKEN": SECRET})
        with pytest.raises(TransportError) as caught:
            await probe(to, TOPIC, timeout_s=timeout_s)
    return caught.value


def says(*parts: bytes) -> Answer:
    """Send one part after each read, and close the connection after the last."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            await reader.read(4096)
            writer.write(part)
        await writer.drain()
        writer.close()

    return answer


def refusing(name: str, message: str) -> bytes:
    return encode(
        pb.CommandError(error=pb.ServerError.Value(name), message=message, request_id=NO_REQUEST)
    )


def connected(*, tells: bool = True) -> bytes:
    flags = pb.FeatureFlags(supports_get_partitioned_metadata_without_auto_creation=tells)
    return encode(
        pb.CommandConnected(
            server_version="x", feature_flags=flags, protocol_version=PROTOCOL_VERSION
        )
    )


@pytest.mark.parametrize(
    ("answer", "scheme", "change"),
    [
        (says(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "pulsar", "not that of the admin API"),
        (says(b"\x15\x03\x03\x00\x02\x02\x46"), "pulsar", "write --url pulsar+ssl://"),
        (says(b"\xff" * 32), "pulsar", "does not speak Pulsar's protocol"),
        (says(b""), "pulsar", "closes without an answer"),
        (says(b""), "pulsar+ssl", "one without TLS takes --url pulsar://"),
        (says(b"\xff" * 32), "pulsar+ssl", "one without TLS takes --url pulsar://"),
    ],
)
async def test_the_error_for_a_port_of_another_service_says_so(
    answer: Answer, scheme: str, change: str
) -> None:
    error = await asked(answer, scheme)
    assert change in str(error)
    assert error.result == "ConnectError"


async def test_a_silent_server_causes_a_timeout() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    error = await asked(silent, timeout_s=0.2)
    assert (error.result, error.retryable) == ("Timeout", True)
    assert "in 0.2 s: check --url" in str(error)


async def test_a_secret_in_the_brokers_answer_is_not_quoted() -> None:
    error = await asked(says(refusing("AuthenticationError", f"bad {SECRET}\x1b[2J\nfine")))
    assert SECRET not in str(error)
    assert "bad ***\\x1b[2J\\x0afine" in str(error)
    assert error.result == "AuthenticationError"


async def test_the_broker_s_reason_is_in_the_error() -> None:
    refused = encode(
        pb.CommandPartitionedTopicMetadataResponse(
            request_id=1,
            error=pb.ServerError.Value("AuthorizationError"),
            message="not yours",
            response=pb.CommandPartitionedTopicMetadataResponse.Failed,
        )
    )
    error = await asked(says(connected(), refused))
    assert error.result == "AuthorizationError"
    assert "permission" in str(error)
    assert "not yours" in str(error)


async def test_a_broker_that_is_not_ready_is_asked_again() -> None:
    answers = iter([says(refusing("ServiceNotReady", "starting")), says(b"HTTP/1.1 400\r\n")])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await next(answers)(reader, writer)

    assert "speaks HTTP" in str(await asked(answer))


async def test_a_broker_without_the_feature_is_not_asked_for_the_topic() -> None:
    """Such a broker would take the request for an order to create the topic."""
    received = bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read(4096))
        writer.write(connected(tells=False))
        received.extend(await reader.read())

    async with serving(answer) as port:
        await probe(access(f"pulsar://127.0.0.1:{port}", Login(), {}), TOPIC, timeout_s=5)
    assert TOPIC.encode() not in received


async def test_the_next_host_is_tried() -> None:
    with run_in_thread(BrokerSettings()) as broker:
        broker.create_topic(TOPIC)
        host = broker.url.partition("://")[2]
        to = access(f"pulsar://127.0.0.1:1,{host}", Login(), {})
        await probe(to, TOPIC, timeout_s=5)
        with pytest.raises(TransportError) as caught:
            await probe(to, f"{TOPIC}-other", timeout_s=5)
        assert caught.value.result == "TopicNotFound"
