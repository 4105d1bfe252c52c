"""`await client.subscribe(...)` and `async with client.subscribe(...)`: both, of all it makes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import testing

URL = "memory://"


def make_client() -> encore.Client:
    return encore.Client(URL, transport=testing.MemoryTransport())


OPENINGS: dict[str, Callable[[encore.Client], Any]] = {
    "subscribe": lambda client: client.subscribe("t", "s"),
    "create_producer": lambda client: client.create_producer("t"),
    "create_reader": lambda client: client.create_reader("t", encore.MessageId.earliest),
}


@pytest.fixture(params=[pytest.param(call, id=name) for name, call in OPENINGS.items()])
def opening(request: pytest.FixtureRequest) -> Callable[[encore.Client], Any]:
    call: Callable[[encore.Client], Any] = request.param
    return call


async def test_an_opening_call_is_entered_without_await_and_closed_at_the_end(
    opening: Callable[[encore.Client], Any],
) -> None:
    async with make_client() as client:
        async with opening(client) as made:
            assert "connected" in repr(made) and "not" not in repr(made)
        assert repr(made).endswith("closed>")


async def test_an_opening_call_can_be_awaited(opening: Callable[[encore.Client], Any]) -> None:
    async with make_client() as client:
        made = await opening(client)
        async with made:
            assert made.is_connected()
        tasks = [asyncio.create_task(opening(client))]
        (made,) = await asyncio.gather(*tasks)
        await made.close()
        made = await asyncio.wait_for(opening(client), 5)
        await made.close()


async def test_an_error_of_an_opening_call_is_raised_by_the_await(
    opening: Callable[[encore.Client], Any],
) -> None:
    """As from the coroutine function it was: `gather(..., return_exceptions=True)` collects it."""
    client = make_client()
    await client.close()
    (error,) = await asyncio.gather(opening(client), return_exceptions=True)
    assert isinstance(error, encore.ClosedError)
    with pytest.raises(encore.ClosedError):
        async with opening(client):
            raise AssertionError("entered")


async def test_an_opening_call_that_is_never_awaited_warns(
    opening: Callable[[encore.Client], Any],
) -> None:
    async with make_client() as client:
        with pytest.warns(RuntimeWarning, match="never awaited"):
            opening(client)


async def test_reprs_name_the_topic_and_the_state() -> None:
    client = make_client()
    consumer = await client.subscribe("jobs", "worker", encore.ConsumerType.Shared)
    producer = await client.create_producer("jobs")
    reader = await client.create_reader("jobs", encore.MessageId.earliest)
    topic = "persistent://public/default/jobs"
    assert repr(client) == "<Client of memory://, 3 open>"
    assert repr(consumer) == f"<Consumer of {topic}, subscription 'worker', Shared, connected>"
    assert repr(producer) == f"<Producer of {topic}, connected>"
    assert repr(reader) == f"<Reader of {topic}, connected>"
    await client.close()
    assert repr(client) == "<Client of memory://, closed>"
    for each in (consumer, producer, reader):
        assert repr(each).endswith(", closed>")


async def test_using_an_object_without_await_raises_and_warns(
    opening: Callable[[encore.Client], Any],
) -> None:
    """A common first mistake of users of the synchronous client."""
    async with make_client() as client:
        with pytest.warns(RuntimeWarning, match="never awaited"):
            with pytest.raises(TypeError, match="never awaited"):
                opening(client).send(b"x")
        with pytest.warns(RuntimeWarning, match="never awaited"):
            with pytest.raises(AttributeError, match="so there is no 'receive' yet"):
                opening(client).receive()
        with pytest.warns(RuntimeWarning, match="never awaited, so there is no 'close' yet"):
            opening(client).close()
