"""Retries on several topics and on patterns, on the stock engine and the development broker."""

from __future__ import annotations

import re
from typing import Any

import pytest
from forwarding_kit import (
    Act,
    await_letters,
    bodies,
    handle_all,
    nack,
    open_consumer,
    publish,
    reconsume,
    settled,
)

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread


def several(topic: str, form: str) -> tuple[Any, list[str]]:
    topics = [f"{topic}-a", f"{topic}-b"]
    return (re.compile(f"{topic}-[ab]"), topics) if form == "pattern" else (topics, topics)


@pytest.mark.parametrize("form", ["list", "pattern"])
@pytest.mark.parametrize("act", [nack, reconsume])
@pytest.mark.parametrize("name", [None, "me"])
async def test_several_topics_with_retries_share_letter_topics_and_the_consumer_name(
    stock: encore.Client, broker: BrokerThread, topic: str, form: str, act: Act, name: str | None
) -> None:
    which, topics = several(topic, form)
    for each in topics:
        await publish(stock, each, each[-1].encode())
    retry, dead = f"{topic}-again", f"{topic}-gone"
    async with await stock.subscribe(
        which,
        "s",
        consumer_type=encore.ConsumerType.Shared,
        initial_position=encore.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100,
        retry_enable=True,
        consumer_name=name,
        dead_letter_policy=encore.DeadLetterPolicy(
            1, retry_letter_topic=retry, dead_letter_topic=dead
        ),
    ) as consumer:
        given = consumer.consumer_name()
        assert given == name if name else re.fullmatch("[0-9a-f]{5}", given)
        assert await handle_all(consumer, act, quiet_s=0.7) == {b"a": 2, b"b": 2}
        found = await await_letters(stock, dead, 2)
    assert sorted(bodies(found)) == [b"a", b"b"]
    for each in (*topics, retry):
        await settled(broker, each)
        names = {
            command.command.subscribe.consumer_name
            for command in broker.recorded("SUBSCRIBE", "in")
            if command.command.subscribe.topic == each
        }
        assert names == {given}


async def test_an_id_without_a_topic_acks_the_message_of_the_topic_with_its_ledger(
    stock: encore.Client, broker: BrokerThread, topic: str
) -> None:
    _, topics = several(topic, "list")
    for each in topics:
        await publish(stock, each, each[-1].encode())
    async with await open_consumer(stock, *topics) as consumer:
        for _ in topics:
            message = await consumer.receive(timeout=5)
            stored = encore.MessageId.deserialize(message.message_id().serialize())
            await consumer.acknowledge(stored)
        with pytest.raises(encore.MessageNotHeldError, match="give it"):
            await consumer.acknowledge(encore.MessageId(-1, 987_654_321, 0))
    for each in topics:
        await settled(broker, each)
