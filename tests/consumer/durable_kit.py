"""A host on which consumer processes start and end, for tests of durable state."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import Any

from consumer_kit import TOPIC, settle

from pulsar_encore import Client, Consumer, ConsumerType, InitialPosition, RocksState
from pulsar_encore.testing import MemoryTransport


class Host:
    """A machine with a disk, on which one process after the other runs a consumer."""

    def __init__(self, transport: MemoryTransport, path: Path) -> None:
        self.transport = transport
        self.path = path
        self._numbers = count()
        self.running: list[Client] = []

    async def start(self, topic: str = TOPIC, **options: Any) -> Consumer:
        """A process starts and subscribes."""
        state = options.pop("state", {})
        options.setdefault("consumer_type", ConsumerType.Shared)
        client = Client("pulsar://nowhere:6650", transport=self.transport)
        self.running.append(client)
        return await client.subscribe(
            topic,
            "s",
            initial_position=InitialPosition.Earliest,
            state=RocksState(self.path, **state),
            **options,
        )

    async def kill(self) -> None:
        """Kill the process; the next one starts from a copy of the files written so far."""
        left = self.path.with_name(f"disk-{next(self._numbers)}")
        while True:
            try:
                shutil.copytree(self.path, left)
                break
            except shutil.Error:  # RocksDB tidied up meanwhile
                shutil.rmtree(left)
        self.path = left
        for client in self.running:
            client.shutdown()
        self.running.clear()
        await settle()

    async def stop(self) -> None:
        """It ends in order."""
        for client in self.running:
            await client.close()
        self.running.clear()
        await settle()
