"""Bill orders, with delays and attempts that survive a killed process.

python examples/recipe_state.py service_url port topic directory (runs until SIGTERM or Ctrl+C)
"""

import asyncio
import sys

import pulsar_encore as encore


async def bill(order: bytes, msg: encore.Message[bytes]) -> None:
    if order.startswith(b"later") and msg.attempt == 1:
        raise encore.Retry(delay=300)  # stands for a customer who pays in five minutes
    print(f"billed {order.decode()} at attempt {msg.attempt}", flush=True)


def billing(client: encore.Client, topic: str, directory: str) -> encore.Worker[bytes]:
    state = encore.RocksState(directory)
    earliest = encore.InitialPosition.Earliest
    return encore.Worker(client, topic, "billing", bill, state=state, initial_position=earliest)


async def main(url: str, port: str, topic: str, directory: str) -> None:
    async with encore.Client(url) as client:
        worker = billing(client, topic, directory)
        async with encore.health.serve(worker, port=int(port)):
            await encore.run(worker)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
