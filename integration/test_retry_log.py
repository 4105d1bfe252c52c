"""Log lines about deleted topics, and events of an idle consumer, on a real Pulsar."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

import pulsar_encore as encore
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server


async def wait_until(found: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not found():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def lines(caplog: pytest.LogCaptureFixture, about: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if about in each.getMessage()]


async def test_a_deleted_topic_is_logged_as_deleted_and_as_recreated(
    pulsar: Server, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        encore.Client(pulsar.service_url, transport="native", recreate_after=5) as client,
        client.subscribe(topic, "billing") as consumer,
    ):
        await asyncio.to_thread(admin.delete_topic, topic)
        await wait_until(lambda: not consumer.is_connected())
        await wait_until(consumer.is_connected)
    messages = lines(caplog, "consumer of subscription 'billing' on ")
    assert any("does not exist any more. This client waits for it" in each for each in messages)
    assert any("is created again after" in each for each in messages)
    assert "attached again after" in " ".join(messages)


async def test_the_last_log_line_about_a_deleted_pattern_topic_is_its_deletion(
    pulsar: Server, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    admin.create_topic(f"{topic}-a")
    admin.create_topic(f"{topic}-b")
    async with (
        encore.Client(pulsar.service_url, transport="native") as client,
        client.subscribe(f"{topic}-.*", "s", is_pattern_topic=True),
    ):
        await asyncio.to_thread(admin.delete_topic, f"{topic}-b")
        await wait_until(lambda: lines(caplog, "deleted, and not waited for"))
        await asyncio.sleep(3)
    (line,) = lines(caplog, "deleted, and not waited for")
    about = [each for each in lines(caplog, f"{topic}-b") if "attempt" in each or each == line]
    assert about[-1] == line and f"{topic}-b" in line


async def test_a_stock_consumer_without_messages_names_its_topic_when_it_loses_the_connection(
    pulsar: Server, admin: Admin, topic: str
) -> None:
    events: list[encore.ConsumerEvent] = []
    async with (
        encore.Client(pulsar.service_url, transport="stock") as client,
        client.subscribe(topic, "s", event_listener=events.append),
    ):
        await asyncio.sleep(0.5)
        for _ in range(5):  # a reconnect of a few ms may be missed
            await asyncio.to_thread(admin.unload, topic)
            await asyncio.sleep(1)
            if events:
                break
        await wait_until(lambda: [each for each in events if isinstance(each, encore.Connected)])
    assert {each.topics for each in events if isinstance(each, encore.Connected)} == {
        each.topics for each in events if isinstance(each, encore.Disconnected)
    }
    [topics] = {each.topics for each in events if isinstance(each, encore.Disconnected)}
    assert len(topics) == 1 and topics[0].endswith(topic)
