"""The trace of one message through attempts, letters, a replay and a result, on both transports."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import pulsar_encore as encore
from pulsar_encore.otel import Tracing
from tests.harness.pulsar_server import Server
from tests.harness.trace_chain import Chain

# looptime's plugin requests a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)


@pytest.mark.parametrize("transport", ["native", "stock"])
async def test_a_message_has_one_trace(pulsar: Server, topic: str, transport: str) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(provider)
    async with encore.Client(
        pulsar.service_url, transport=transport, observers=[tracing]
    ) as client:
        chain = Chain(client, provider, topic.rpartition("/")[2])
        await chain.run()
    chain.check(exporter.get_finished_spans())
