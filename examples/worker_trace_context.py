"""Trace each call: a log filter adds the trace, and a decorator opens a session for each message.

python examples/worker_trace_context.py
"""

import asyncio
import functools
import logging
import sys
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import pulsar_encore as encore
from pulsar_encore import testing

log = logging.getLogger("billing")
session: ContextVar[list[str]] = ContextVar("session")  # stands for a database session
Handler = Callable[[bytes], Awaitable[None]]


class TraceFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        msg = encore.current_message()
        record.trace = msg.properties().get("traceparent", "-") if msg else "-"
        return True


def with_session(handler: Handler) -> Handler:
    @functools.wraps(handler)  # the worker looks at the parameters of the handler
    async def call(order: bytes) -> None:
        session.set([])  # each call has a context of its own, so nothing has to be reset
        await handler(order)
        log.info("committed %s", session.get())

    return call


@with_session
async def bill(order: bytes) -> None:
    session.get().append(f"insert {order.decode()}")
    await asyncio.sleep(1)  # the calls of other messages run meanwhile
    session.get().append(f"update {order.decode()}")


async def main() -> None:
    logging.basicConfig(stream=sys.stdout, format="%(trace)s: %(message)s")
    logging.getLogger().handlers[0].addFilter(TraceFilter())
    log.setLevel(logging.INFO)
    transport = testing.MemoryTransport()  # topics and subscriptions, without a network
    async with encore.Client("memory://", transport=transport) as client:
        async with encore.Worker(client, "orders", "billing", bill):
            for name in ("lamp", "chair"):
                transport.put("orders", name.encode(), properties={"traceparent": f"00-{name}"})
            await asyncio.sleep(2)


if __name__ == "__main__":
    testing.run(main())
