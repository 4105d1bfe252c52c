"""A worker for each tenant's topic, on one client. Tenants come and go, and none stops another.

python examples/recipe_tenants.py service_url file (a tenant per line; until SIGTERM or Ctrl+C)
"""

import asyncio
import logging
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pulsar_encore as encore


async def bill(order: bytes, msg: encore.Message[bytes]) -> None:
    print(f"billed {order.decode()} of {msg.topic_name()}", flush=True)


async def is_set(event: asyncio.Event, within: float) -> bool:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), within)
    return event.is_set()


class Tenants:
    def __init__(self, client: encore.Client, *, handlers: int = 64) -> None:
        self.workers: dict[str, encore.Worker[bytes]] = {}
        self._client, self._free = client, asyncio.Semaphore(handlers)  # over all tenants
        self._tasks: dict[asyncio.Task[None], tuple[str, asyncio.Event]] = {}

    async def _handle(self, order: bytes, msg: encore.Message[bytes]) -> None:
        async with self._free, asyncio.timeout(60):  # a worker's `timeout` would count the wait
            await bill(order, msg)

    async def _keep_running(self, tenant: str, stopped: asyncio.Event, pause: float) -> None:
        while not await is_set(stopped, within=pause):
            worker = self.workers[tenant] = encore.Worker(
                self._client, f"orders-{tenant}", "billing", self._handle, concurrency=4,
                max_bytes=1 << 20, initial_position=encore.InitialPosition.Earliest,
            )  # fmt: skip
            try:
                await worker.serve()  # until `stop`, with the drain; installs no signal handlers
            except Exception:
                logging.exception("the worker of %s failed: another one starts in 30 s", tenant)
            pause = 30.0
        self.workers.pop(tenant, None)

    def update(self, names: set[str]) -> None:
        """Start the workers of new tenants, and drain those of tenants that are gone."""
        for tenant, stopped in self._tasks.values():
            if tenant not in names:
                stopped.set()
                if tenant in self.workers:
                    self.workers[tenant].stop()
        new = names - {tenant for tenant, _ in self._tasks.values()}
        for number, tenant in enumerate(sorted(new)):
            stopped = asyncio.Event()  # 50 starts each second spare the broker
            task = asyncio.create_task(self._keep_running(tenant, stopped, number / 50))
            self._tasks[task] = (tenant, stopped)
            task.add_done_callback(self._tasks.pop)

    async def close(self) -> None:
        self.update(set())
        await asyncio.gather(*self._tasks)


async def main(url: str, file: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with encore.Client(url) as client:
        tenants = Tenants(client)
        stopping = False
        while not stopping:
            names = await asyncio.to_thread(Path(file).read_text)
            tenants.update(set(names.split()))
            stopping = await is_set(stop, within=5)
        await tenants.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
