"""One close for all who ask, whatever happens to them."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_encore.eventloop.close_once import CloseOnce


class Thing:
    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.go = asyncio.Event()
        self.close = CloseOnce(self._close)

    async def _close(self) -> None:
        self.begun += 1
        await self.go.wait()
        self.ended += 1


async def test_all_callers_wait_for_the_same_close() -> None:
    thing = Thing()
    closes = [asyncio.create_task(thing.close()) for _ in range(3)]
    await asyncio.sleep(0)
    closes[0].cancel()
    await asyncio.gather(closes[0], return_exceptions=True)
    assert thing.ended == 0
    thing.go.set()
    await asyncio.gather(*closes[1:])
    await thing.close()
    assert (thing.begun, thing.ended) == (1, 1)


async def test_a_failed_close_raises_for_every_caller() -> None:
    async def fail() -> None:
        raise OSError("gone")

    close = CloseOnce(fail)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            await close()


def test_a_close_whose_loop_ended_begins_again_on_the_next() -> None:
    thing = Thing()

    async def begin_and_leave() -> None:
        closing = asyncio.create_task(thing.close())
        await asyncio.sleep(0)
        assert not closing.done()

    async def close() -> None:
        thing.go = asyncio.Event()
        thing.go.set()
        await thing.close()

    asyncio.run(begin_and_leave())
    asyncio.run(close())
    assert (thing.begun, thing.ended) == (2, 1)
