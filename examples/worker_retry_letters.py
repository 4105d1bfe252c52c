"""Retry after an hour: the message waits in the retry letter topic, and takes no memory here.

python examples/worker_retry_letters.py (in virtual time, so the hour takes milliseconds)
"""

import asyncio

import pulsar_encore as encore
from pulsar_encore import testing

done = asyncio.Event()


async def bill(order: bytes, msg: encore.Message[bytes]) -> None:
    minutes = asyncio.get_running_loop().time() / 60
    print(f"attempt {msg.attempt} after {minutes:.0f} minutes")
    if msg.attempt < 3:
        raise ConnectionError("the bank is closed")
    done.set()


async def main() -> None:
    transport = testing.MemoryTransport()  # topics and subscriptions, without a network
    async with encore.Client("memory://", transport=transport) as client:
        # Delays over `letters_after` (10 minutes by default) go through the retry letter topic.
        retry = encore.RetryPolicy(attempts=4, backoff=[10, 3600])
        async with encore.Worker(client, "orders", "billing", bill, retry=retry) as worker:
            transport.put("orders", b"order")
            await done.wait()
        print(f"{worker.report().retried} retries, {worker.report().rejected} dead letters")

    for letter in testing.letters(transport, "orders-billing-RETRY"):
        print(f"one went through the retry letter topic: {letter.error_message}")


if __name__ == "__main__":
    testing.run(main())
