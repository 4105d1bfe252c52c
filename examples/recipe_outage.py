"""Stop while a dependency is away: no attempt is used up, no dead letter, and the order is kept.

python examples/recipe_outage.py service_url gateway_port (runs until SIGTERM or Ctrl+C)
"""

import asyncio
import logging
import sys
from dataclasses import dataclass

import pulsar_encore as encore


class GatewayAway(Exception):
    """The gateway did not answer. A class of its own, so that no other error looks like it."""


@dataclass
class Gateway:
    port: int

    async def charge(self, order: bytes) -> None:
        try:
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(order + b"\n")
                answer = await reader.readline()
                writer.close()
        except (OSError, TimeoutError) as error:
            raise GatewayAway(str(error)) from error
        if not answer:  # it closed the connection in the middle
            raise GatewayAway("no answer")
        if answer != b"charged\n":
            raise ValueError(f"the gateway refused the order: {answer!r}")  # uses up an attempt


def billing(client: encore.Client, gateway: Gateway) -> encore.Worker[bytes]:
    return encore.Worker(
        client,
        "orders",
        "billing",
        gateway.charge,
        order="key",
        breaker=encore.Breaker(on=GatewayAway, pause=10),
        initial_position=encore.InitialPosition.Earliest,
    )


async def main(url: str, port: str) -> None:
    logging.basicConfig(level=logging.INFO)
    async with encore.Client(url) as client:
        await encore.run(billing(client, Gateway(int(port))))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
