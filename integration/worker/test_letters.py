"""Workers of all orders on both transports: retries in place and by letters, and dead letters."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

import pytest

import pulsar_encore as encore
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

from .fleet import QUIET, letters_of, publish

# looptime's plugin requests a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)

KEYS = 6
KINDS = ("ok", "fail2", "ok", "poison", "ok", "reject")
"""What happens to the messages of a key: processed, processed by the third attempt, dead-lettered
after three attempts, and dead-lettered at once."""
ATTEMPTS = {"ok": 1, "fail2": 3, "poison": 3, "reject": 1}
TEXTS = [f"k{key}:{at}-{kind}" for at, kind in enumerate(KINDS * 3) for key in range(KEYS)]
DEAD = [each for each in TEXTS if each.rpartition("-")[2] in ("poison", "reject")]


@pytest.mark.parametrize("transport", ["native", "stock"])
@pytest.mark.parametrize(
    ("order", "letters_after"), [("none", 600), ("none", 0.05), ("key", None), ("partition", None)]
)
async def test_each_message_is_processed_or_dead_lettered_after_its_attempts(
    pulsar: Server,
    admin: Admin,
    topic: str,
    transport: str,
    order: str,
    letters_after: float | None,
) -> None:
    """With `letters_after` below the delay, failed messages go through the retry letter topic."""
    await asyncio.to_thread(admin.create_partitioned_topic, topic, 3)
    calls = Counter[str]()
    attempts: defaultdict[str, list[int]] = defaultdict(list)
    starts: defaultdict[str, list[str]] = defaultdict(list)

    async def handler(value: bytes, message: encore.Message) -> None:
        text = value.decode()
        calls[text] += 1
        attempts[text].append(message.attempt)
        starts[text.partition(":")[0]].append(text)
        kind = text.rpartition("-")[2]
        if kind == "reject":
            raise encore.Reject("rejected by its text")
        if kind == "poison" or (kind == "fail2" and calls[text] < 3):
            raise ValueError("not yet")

    async with encore.Client(pulsar.service_url, transport=transport, logger=QUIET) as client:
        worker = encore.Worker(
            client,
            topic,
            "s",
            handler,
            order=order,
            initial_position=encore.InitialPosition.Earliest,
            retry=encore.RetryPolicy(attempts=3, backoff=[0.1], letters_after=letters_after),
        )
        async with worker:
            await publish(client, topic, TEXTS, batch=10, keyed=True)
            async with asyncio.timeout(60):
                while (now := worker.report()).succeeded + now.rejected < len(TEXTS):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        report = worker.report()
        assert sorted(await letters_of(client, topic)) == sorted(DEAD)
    assert (report.succeeded, report.rejected) == (len(TEXTS) - len(DEAD), len(DEAD))
    assert calls == {each: ATTEMPTS[each.rpartition("-")[2]] for each in TEXTS}
    assert all(found == list(range(1, len(found) + 1)) for found in attempts.values())
    if order != "none":
        for key, found in starts.items():
            assert list(dict.fromkeys(found)) == [
                each for each in TEXTS if each.startswith(f"{key}:")
            ]
            assert found == sorted(found, key=TEXTS.index), "a later message overtook a failed one"
    names = await asyncio.to_thread(admin.topics)
    assert [each for each in names if each.startswith(topic) and "DLQ" in each] == [
        f"{topic}-s-DLQ"
    ]
    stats = await asyncio.to_thread(admin.stats, f"{topic}-s-DLQ")
    (subscription,) = stats["subscriptions"].values()
    assert subscription["msgBacklog"] > 0, "no subscription keeps the letters"
    if order == "none":
        letters = await asyncio.to_thread(admin.stats, f"{topic}-s-RETRY")
        assert (letters["msgInCounter"] > 0) == (letters_after == 0.05)
