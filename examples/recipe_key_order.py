"""Process the messages of each key in their order, in as many processes as you like.

python examples/recipe_key_order.py service_url (runs until SIGTERM or Ctrl+C)
"""

import asyncio
import sys

import pulsar_encore as encore


async def bill(order: bytes, msg: encore.Message[bytes]) -> None:
    print(f"{msg.key} begins {order.decode()}, attempt {msg.attempt}", flush=True)
    await asyncio.sleep(0.05)  # stands for the work
    if order == b"declined" and msg.attempt < 3:
        raise OSError("the card was declined")
    print(f"{msg.key} ends {order.decode()}", flush=True)


def billing(client: encore.Client) -> encore.Worker[bytes]:
    return encore.Worker(
        client,
        "orders",
        "billing",
        bill,
        order="key",
        concurrency=64,  # no more than the keys that are active at once
        retry=encore.RetryPolicy(attempts=5, backoff=[1, 5, 10, 20]),  # its key waits as long
        initial_position=encore.InitialPosition.Earliest,
    )


async def publisher(client: encore.Client) -> encore.Producer:
    """Each producer of the topic needs this: by default a batch mixes keys."""
    by_key = encore.BatchingType.KeyBased
    return await client.create_producer("orders", batching_type=by_key)


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        await encore.run(billing(client))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
