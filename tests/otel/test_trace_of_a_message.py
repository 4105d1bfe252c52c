"""The trace of one message through attempts, letters, a replay and a result."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pulsar_encore import Client, ConsumerType
from pulsar_encore.otel import Tracing
from pulsar_encore.testing import MemoryTransport
from tests.harness.trace_chain import Chain

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_all_attempts_letters_and_results_are_in_the_trace_of_the_publisher(
    transport: MemoryTransport, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    tracing = Tracing(provider)
    async with Client("memory://", transport=transport, observers=[tracing]) as client:
        chain = Chain(client, provider, "orders")
        await chain.run()
    chain.check(exporter.get_finished_spans())


async def test_a_lease_is_processed_in_a_span(
    transport: MemoryTransport, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    tracing = Tracing(provider)
    async with Client("memory://", transport=transport) as client:
        consumer = await client.subscribe("orders", "billing", ConsumerType.Shared)
        transport.put("orders", b"one", properties={"traceparent": PARENT})
        (lease,) = await consumer.pop(1, lease=60, wait=120)
        with tracing.process(lease, consumer):
            await lease.nack()
        (lease,) = await consumer.pop(1, lease=60, wait=120)
        with tracing.process(lease, consumer):
            await lease.ack()
    spans = exporter.get_finished_spans()
    assert [(each.name, (each.attributes or {})["pulsar_encore.attempt"]) for each in spans] == [
        ("process orders", 1),
        ("process orders", 2),
    ]
    assert [f"{each.context.trace_id:032x}" for each in spans] == [PARENT.split("-")[1]] * 2
