"""A handler of two hours: it extends its timeout, and a deployment may interrupt it.

python examples/worker_long_handler.py (in virtual time, so two hours take milliseconds)
"""

import asyncio

import pulsar_encore as encore
from pulsar_encore import testing

MINUTE = 60
progress: dict[bytes, int] = {}  # steps that are done; a program keeps them in its database
finished = asyncio.Event()


async def train(model: bytes, msg: encore.Message[bytes]) -> None:
    first = progress.get(model, 0)
    print(f"attempt {msg.attempt} begins at minute {first}")
    for minute in range(first, 120):
        await msg.extend(5 * MINUTE)  # a step may take so long, the handler longer
        await asyncio.sleep(1 * MINUTE)  # one step of the work
        progress[model] = minute + 1
        if msg.stopping.is_set():  # the worker drains
            print(f"stopped after minute {minute + 1}")
            raise encore.Retry(delay=0, count=False)  # given back, without using up an attempt
    print("done")
    finished.set()


async def main() -> None:
    transport = testing.MemoryTransport()
    async with encore.Client("memory://", transport=transport) as client:

        def make_worker() -> encore.Worker:
            # `drain` is longer than a step. Kubernetes needs a longer grace period than that.
            return encore.Worker(client, "models", "gpu", train, timeout=5 * MINUTE, drain=100)

        async with make_worker() as worker:
            transport.put("models", b"a large model")
            await asyncio.sleep(45.5 * MINUTE)
        print(f"given back: {worker.report().given_back}")
        async with make_worker() as worker:  # the next process
            await finished.wait()
        print(f"failed attempts: {worker.report().failed}")


if __name__ == "__main__":
    testing.run(main())
