"""The options of `tail`, and the pending messages of `explain`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from pulsar_encore.cli.explanation.worker_pending import pending_by_id, read_pending
from pulsar_encore.cli.tail import print_messages
from pulsar_encore.cli.tail_options import TailOptions, tail_options
from pulsar_encore.errors import ConfigurationError
from pulsar_encore.message import Message
from pulsar_encore.transport.native.consumer.message_views import PlainMessage
from pulsar_encore.values.message_id import MessageId
from pulsar_encore.wire import pb

METADATA = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)


def options(**given: Any) -> TailOptions:
    unset: dict[str, Any] = dict.fromkeys(("since", "from_id", "limit", "key"))
    unset |= {"topic": "orders", "follow": False, "properties": (), "json": False}
    return tail_options(**unset | given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"since": "1h", "from_id": "1:2:-1"}, "not both"),
        ({"since": "soon"}, "since must be like"),
        ({"from_id": "soon"}, "ledger:entry:partition"),
        ({"limit": 0}, "limit must be 1 or more"),
        ({"properties": ["shop"]}, "name=value"),
        ({"topic": "non-persistent://public/default/t"}, "stores no messages"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        options(**given)


def test_all_filters_must_match() -> None:
    found = options(key="k", properties=["a=1", "b=x=y"])
    assert found.takes("k", {"a": "1", "b": "x=y"})
    assert not found.takes("j", {"a": "1", "b": "x=y"})
    assert not found.takes("k", {"a": "1"})


def test_a_start_before_the_epoch_is_the_earliest_message() -> None:
    assert options(since="99999999d").since_ms == options(since="1960-01-01").since_ms == 0


async def test_the_last_message_of_a_limit_is_not_followed_by_a_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def messages() -> AsyncGenerator[Message, None]:
        for number in range(3):
            message_id = MessageId(-1, 7, number)
            yield Message.of_reader(
                PlainMessage("t", b"", METADATA, b"%d" % number), None, message_id
            )
        raise AssertionError("it waits for a message that it does not print")

    await print_messages(messages(), options(limit=3))
    assert [each.split()[0] for each in capsys.readouterr().out.splitlines()] == [
        "7:0:-1",
        "7:1:-1",
        "7:2:-1",
    ]


def test_from_a_chunked_message_reading_starts_at_its_first_chunk() -> None:
    assert str(options(from_id="7:1:-1;7:4:-1").from_id) == "7:1:-1"


def test_pending_messages_are_found_by_topic_and_id() -> None:
    pending = {
        "id": "7:1:-1",
        "topic": "persistent://public/default/orders",
        "state": "nacked",
        "attempt": 2,
        "since": None,
        "due": "2027-01-15T08:00:00+00:00",
        "last_error": "KeyError: EUR",
    }
    workers = [{"name": "billing", "pending": [pending, "broken"]}, {"name": "other"}, None]
    [(key, found)] = pending_by_id({"workers": workers}).items()
    assert key == ("persistent://public/default/orders", "7:1:-1")
    assert (found.worker, found.state, found.attempt) == ("billing", "nacked", 2)
    assert (found.since_ms, found.due_ms) == (None, 1_800_000_000_000)


async def test_a_health_port_must_be_a_url() -> None:
    with pytest.raises(ConfigurationError, match="--health must be like"):
        await read_pending("localhost:8081")
