"""A client in memory with its transport, as the pytest plugin gives it to a test."""

from __future__ import annotations

from ..client import Client
from ..devbroker import BrokerSettings, FaultPlan
from .memory_transport import MemoryTransport


class MemoryPulsar:
    """A client and the cluster in memory that it uses. Works without a running event loop.

    Args:
        settings: Settings of the broker, see `MemoryTransport`.
        faults: Faults to inject.

    Attributes:
        client: The client. Closing it is the caller's task.
        transport: The cluster: publishes messages, shows backlogs and recorded commands.

    Example:
        ::

            async def test_bill(pulsar_memory):
                pulsar_memory.transport.put("orders", b"one")
                consumer = await pulsar_memory.client.subscribe("orders", "billing")
    """

    def __init__(
        self, settings: BrokerSettings | None = None, *, faults: FaultPlan | None = None
    ) -> None:
        self.transport: MemoryTransport = MemoryTransport(settings, faults=faults)
        self.client: Client = Client("memory://", transport=self.transport)

    def describe(self) -> str:
        """Return the topics and the backlogs of their subscriptions, a line each."""
        lines = []
        for name, state in sorted(self.transport.catalogue.topics.items()):
            lines.append(f"{name}: {state.log.end - state.log.base} entries")
            lines += [
                f"  {each.name}: {each.backlog} not acked" for each in state.subscriptions.values()
            ]
        return "\n".join(lines) or "no topics"

    def __repr__(self) -> str:
        return f"<MemoryPulsar of {len(self.transport.catalogue.topics)} topics>"
