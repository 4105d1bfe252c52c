"""Run the broker as a process: print its address, then serve until a signal."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Sequence

from ..errors import EncoreError
from .broker_settings import BrokerSettings
from .server import Broker

log: logging.Logger = logging.getLogger("pulsar_encore.devbroker")


async def serve(settings: BrokerSettings) -> None:
    """Run a broker until SIGINT or SIGTERM. The first line on stdout is its address."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with Broker(settings) as broker:
        sys.stdout.write(f"{broker.url}\n")
        sys.stdout.flush()
        # Full garbage collections over many long-lived entries would show as pauses.
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        await stopped.wait()


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="pulsar-encore broker",
        description="A Pulsar broker for laptops and tests. In memory, not for production.",
    )
    options.add_argument("--host", default="127.0.0.1", help="address to listen on (loopback)")
    options.add_argument("--port", type=int, default=6650, help="port; 0 takes a free one")
    options.add_argument(
        "--partitions", type=int, default=0, help="partitions of automatically created topics"
    )
    options.add_argument("--token", help="require this token from clients")
    options.add_argument(
        "--any-namespace", action="store_true", help="accept namespaces besides public/default"
    )
    options.add_argument(
        "--tick", type=float, default=1.0, help="granularity of delayed delivery, seconds"
    )
    options.add_argument(
        "--rewind-overtaken",
        type=float,
        default=BrokerSettings().rewind_overtaken,
        help="share of rewinds that a read in flight overtakes, as on Pulsar; 0 for none",
    )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = parser().parse_args(arguments)
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.INFO)
    try:
        settings = BrokerSettings(
            host=parsed.host,
            port=parsed.port,
            auto_create_partitions=parsed.partitions,
            token=parsed.token,
            namespaces=None if parsed.any_namespace else ("public/default",),
            delayed_tick_ms=round(parsed.tick * 1000),
            rewind_overtaken=parsed.rewind_overtaken,
            record=False,
        )
        asyncio.run(serve(settings))
    except EncoreError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0
