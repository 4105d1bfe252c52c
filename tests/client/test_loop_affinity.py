"""`LoopAffinity`: in which loop, thread and process an object may be used."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvloop

from pulsar_encore.errors import ForkedError, WrongLoopError
from pulsar_encore.eventloop.affinity import LoopAffinity

NewLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> NewLoop:
    made: NewLoop = request.param
    return made


async def make() -> LoopAffinity:
    return LoopAffinity("consumer")


async def is_here(affinity: LoopAffinity) -> bool:
    return affinity.is_here()


def test_the_thread_is_known_only_while_the_loop_runs(new_loop: NewLoop) -> None:
    loop = new_loop()

    async def known() -> tuple[int | None, bool, int | None]:
        return affinity.thread, affinity.is_here(), affinity.thread

    affinity = loop.run_until_complete(make())
    assert affinity.thread is None and not affinity.is_here()
    for _ in range(2):
        here = threading.get_ident()
        assert loop.run_until_complete(known()) == (None, True, here)
        assert affinity.thread is None
    with pytest.raises(WrongLoopError, match="without its event loop running"):
        affinity.check()
    loop.close()
    with pytest.raises(WrongLoopError, match="closed by now"):
        affinity.check()


def test_another_loop_in_the_same_thread_is_refused(new_loop: NewLoop) -> None:
    first, second = new_loop(), new_loop()

    async def check() -> None:
        affinity.check()

    affinity = first.run_until_complete(make())
    with pytest.raises(WrongLoopError, match="another event loop"):
        second.run_until_complete(check())
    assert first.run_until_complete(is_here(affinity))
    first.close()
    second.close()


def test_a_loop_can_go_on_in_another_thread(new_loop: NewLoop) -> None:
    loop = new_loop()
    affinity = loop.run_until_complete(make())
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(loop.run_until_complete, is_here(affinity)).result(10)
    assert loop.run_until_complete(is_here(affinity))
    loop.close()


def test_an_async_generator_that_is_left_open_does_not_keep_the_thread(new_loop: NewLoop) -> None:
    """It holds the other hook, which finalizes generators."""
    loop = new_loop()

    async def begin() -> LoopAffinity:
        await anext(generator)
        return LoopAffinity("reader")

    async def generate() -> AsyncGenerator[int, None]:
        yield 1

    generator = generate()
    affinity = loop.run_until_complete(begin())
    assert affinity.thread is None
    loop.run_until_complete(generator.aclose())
    loop.close()


def test_a_loop_without_its_async_generator_hook_is_looked_up_each_time() -> None:
    async def use() -> None:
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=None)
        try:
            affinity = LoopAffinity("producer")
            assert affinity.is_here() and affinity.thread is None
        finally:
            sys.set_asyncgen_hooks(*hooks)
        affinity.check()
        assert affinity.thread == threading.get_ident()

    asyncio.run(use())


async def test_a_check_on_another_thread_is_refused() -> None:
    affinity = await make()
    with pytest.raises(WrongLoopError, match="call_soon_threadsafe"):
        await asyncio.to_thread(affinity.check)


async def test_a_forked_child_is_refused_on_the_inherited_loop() -> None:
    affinity = await make()
    child = os.fork()
    if child == 0:
        try:
            affinity.check()
        except ForkedError:
            os._exit(0)
        finally:
            os._exit(1)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert status == 0
