"""The Python blocks of `docs/tracing.md` run, and its table has all attributes."""

from __future__ import annotations

import asyncio
import io
import logging
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider, export
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import pulsar_encore as encore
from pulsar_encore import Client, otel
from pulsar_encore.otel import attribute_names
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import Block, blocks_of, run_block, text_of

PAGE = text_of("tracing.md")
BLOCKS = blocks_of("tracing.md")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def block(title: str) -> Block:
    (found,) = (each for each in BLOCKS if each.title == title)
    return found


async def test_five_lines_trace_a_worker(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        encore, "Client", lambda url, **options: Client(url, transport=transport, **options)
    )
    seen: list[trace.Span] = []

    async def bill(value: bytes) -> None:
        seen.append(trace.get_current_span())

    async def run(worker: encore.Worker[Any]) -> None:
        async with worker:
            transport.put("orders", b"one")
            await asyncio.sleep(1)

    monkeypatch.setattr(encore, "run", run)
    names: dict[str, Any] = {"bill": bill}
    await run_block(block("Tracing"), names)
    await names["client"].close()
    assert len(seen) == 1


async def test_a_loop_makes_spans() -> None:
    billed: list[tuple[bytes, str]] = []

    async def bill(value: bytes) -> None:
        context = trace.get_current_span().get_span_context()
        billed.append((value, f"{context.trace_id:032x}"))

    async with Client("memory://", transport=(memory := MemoryTransport())) as client:
        consumer = await client.subscribe("orders", "billing")
        memory.put("orders", b"one", properties={"traceparent": PARENT})
        names = {"otel": otel, "consumer": consumer, "bill": bill}
        task = asyncio.create_task(run_block(block("A loop of your own"), names))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert memory.backlog("orders", "billing") == 0
    assert billed == [(b"one", PARENT.split("-")[1])]


async def test_the_block_about_the_sdk_exports_spans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(export, "ConsoleSpanExporter", lambda: exporter)
    providers: list[TracerProvider] = []
    monkeypatch.setattr(trace, "set_tracer_provider", providers.append)
    await run_block(block("Configure the SDK"), {})
    [provider] = providers
    with provider.get_tracer("test").start_as_current_span("process orders"):
        pass
    await asyncio.to_thread(provider.shutdown)
    [span] = exporter.get_finished_spans()
    assert (span.name, span.resource.attributes["service.name"]) == ("process orders", "billing")


async def test_log_records_have_the_trace_id(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    names: dict[str, Any] = {}
    await run_block(block("Log records with the trace"), names)
    handler = names["handler"]
    handler.setStream(stream)
    logger = logging.Logger("application")
    logger.addHandler(handler)
    with TracerProvider().get_tracer("test").start_as_current_span("any") as span:
        logger.info("billed")
    assert stream.getvalue() == f"{span.get_span_context().trace_id:032x} INFO billed\n"


async def test_the_test_of_spans_passes() -> None:
    names: dict[str, Any] = {}
    await run_block(block("Test your spans"), names)
    await names["test_a_failed_attempt_is_in_the_trace_of_its_order"]()


def test_the_table_has_all_attributes() -> None:
    for name, value in vars(attribute_names).items():
        if name.isupper():
            short = "." + value.rpartition(".")[2]
            assert f"`{value}`" in PAGE or f"`{short}`" in PAGE, value
