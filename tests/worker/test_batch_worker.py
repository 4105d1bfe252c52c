"""A batch worker passes lists to its handler, and settles each message of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from worker_kit import (
    DEAD_LETTERS,
    SUBSCRIPTION,
    TOPIC,
    all_acked,
    copy_disk,
    letters,
    running_lists,
    until,
)

import pulsar_encore as encore
from pulsar_encore import Client, Consumer, Message
from pulsar_encore.eventloop.awaitables import Failing
from pulsar_encore.testing import MemoryTransport

ORDERS = ["none", "partition"]


@dataclass
class Number:
    n: int


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def now() -> float:
    return asyncio.get_running_loop().time()


# Lists


@pytest.mark.parametrize("order", ORDERS)
async def test_a_full_list_starts_at_once_and_the_rest_after_max_wait(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    lists: list[tuple[int, float]] = []

    async def handler(values: list[bytes]) -> None:
        lists.append((len(values), now()))

    async with running_lists(client, handler, order=order, max_wait=60) as worker:
        await asyncio.sleep(5)
        transport.put(TOPIC, *numbers(250))
        started = now()
        await all_acked(transport)
        assert worker.report().succeeded == 250
    assert [count for count, _ in lists] == [100, 100, 50]
    assert lists[1][1] - started < 1
    assert 59 <= lists[2][1] - started <= 61


async def test_a_list_starts_when_its_oldest_message_has_waited_max_wait(
    client: Client, transport: MemoryTransport
) -> None:
    lists: list[tuple[list[bytes], float]] = []

    async def handler(values: list[bytes]) -> None:
        lists.append((values, now()))

    async with running_lists(client, handler, max_wait=10):
        started = now()
        for number in range(6):
            transport.put(TOPIC, b"%d" % number)
            await asyncio.sleep(4)
        await all_acked(transport)
    assert [values for values, _ in lists] == [[b"0", b"1", b"2"], [b"3", b"4", b"5"]]
    assert 10 <= lists[0][1] - started < 11


async def test_messages_wait_together_while_all_slots_are_busy(
    client: Client, transport: MemoryTransport
) -> None:
    lists: list[list[bytes]] = []

    async def handler(values: list[bytes]) -> None:
        lists.append(values)
        await asyncio.sleep(100)

    async with running_lists(client, handler, max_wait=1, concurrency=1):
        transport.put(TOPIC, b"first")
        for number in range(50):
            await asyncio.sleep(1.5)
            transport.put(TOPIC, b"%d" % number)
        await all_acked(transport)
    assert lists == [[b"first"], numbers(50)]


async def test_max_wait_of_0_passes_what_is_there(
    client: Client, transport: MemoryTransport
) -> None:
    lists: list[list[bytes]] = []

    async def handler(values: list[bytes]) -> None:
        lists.append(values)

    async with running_lists(client, handler, max_wait=0):
        started = now()
        transport.put(TOPIC, b"x")
        await until(lambda: bool(lists))
        assert now() - started <= 1


async def test_several_lists_run_at_once_without_an_order(
    client: Client, transport: MemoryTransport
) -> None:
    running = most = 0

    async def handler(values: list[bytes]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(5)
        running -= 1

    transport.put(TOPIC, *numbers(1000))
    async with running_lists(client, handler, max_messages=50, concurrency=3) as worker:
        await asyncio.sleep(1)
        assert worker.health().running == 3
        await all_acked(transport)
    assert most == 3


async def test_the_next_list_is_received_while_a_list_runs(
    client: Client, transport: MemoryTransport
) -> None:
    starts: list[float] = []

    async def handler(values: list[bytes]) -> None:
        assert len(values) == 100
        starts.append(now())
        await asyncio.sleep(10)

    transport.put(TOPIC, *numbers(1000))
    async with running_lists(client, handler, concurrency=1, max_wait=60):
        await all_acked(transport)
    assert starts[-1] - starts[0] < 91


async def test_a_list_of_a_partition_has_its_consecutive_messages_and_runs_alone(
    client: Client, transport: MemoryTransport
) -> None:
    transport.catalogue.create_partitioned(TOPIC, 3)
    seen: dict[str, list[bytes]] = {}
    running: set[str] = set()
    at_once = 0

    async def handler(values: list[bytes], messages: list[Message]) -> None:
        nonlocal at_once
        (topic,) = {message.topic_name() for message in messages}
        assert topic not in running
        running.add(topic)
        at_once = max(at_once, len(running))
        await asyncio.sleep(1)
        seen.setdefault(topic, []).extend(values)
        running.remove(topic)

    for partition in range(3):
        transport.put(f"{TOPIC}-partition-{partition}", *numbers(300))
    async with running_lists(client, handler, order="partition", max_messages=20) as worker:
        await until(lambda: sum(map(len, seen.values())) == 900)
        await until(lambda: worker.report().succeeded == 900)
    assert list(seen.values()) == [numbers(300)] * 3
    assert at_once == 3


async def test_a_list_is_cut_at_max_bytes(client: Client, transport: MemoryTransport) -> None:
    lists: list[int] = []

    async def handler(values: list[bytes]) -> None:
        lists.append(sum(map(len, values)))
        await asyncio.sleep(1)

    transport.put(TOPIC, *[bytes(300)] * 50)
    transport.put(TOPIC, bytes(5000))
    async with running_lists(client, handler, max_bytes=1000, max_wait=3600):
        await all_acked(transport)
    assert max(lists[:-1]) <= 1000
    assert sum(lists) == 50 * 300 + 5000
    assert 5000 in lists


async def test_the_handler_gets_the_messages_as_a_second_list(
    client: Client, transport: MemoryTransport
) -> None:
    seen: list[tuple[bytes, str | None, int]] = []

    async def handler(values: list[bytes], messages: list[Message]) -> None:
        assert encore.current_message() is None
        for value, message in zip(values, messages, strict=True):
            seen.append((value, message.key, message.attempt))

    transport.put(TOPIC, b"a", b"b", key="k")
    async with running_lists(client, handler):
        await all_acked(transport)
    assert seen == [(b"a", "k", 1), (b"b", "k", 1)]


def store_in_thread(values: list[bytes]) -> None:
    if len(values) > 1 and b"7" in values:
        raise ValueError("not together")


async def test_a_plain_function_runs_in_a_thread(
    client: Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, *numbers(10))
    async with running_lists(client, store_in_thread) as worker:
        await all_acked(transport)
        assert worker.report().succeeded == 10


# Failures


@pytest.mark.parametrize("order", ORDERS)
async def test_a_shared_failure_halves_the_list_until_the_cause_fails_alone(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    calls: list[list[bytes]] = []
    attempts = Counter[bytes]()
    processed: list[bytes] = []

    async def handler(values: list[bytes], messages: list[Message]) -> None:
        calls.append(values)
        for value, message in zip(values, messages, strict=True):
            attempts[value] = message.attempt
        if b"5" in values:
            raise ValueError("no such customer")
        processed.extend(values)

    transport.put(TOPIC, *numbers(16))
    retry = encore.RetryPolicy(attempts=3, backoff=[1])
    async with running_lists(client, handler, order=order, retry=retry) as worker:
        await all_acked(transport)
        assert worker.report().rejected == 1
    with_cause = [values for values in calls if b"5" in values]
    assert [len(values) for values in with_cause] == [16, 8, 4, 2, 1, 1, 1]
    assert {value: n for value, n in attempts.items() if n > 1} == {b"5": 3}
    others = [value for value in numbers(16) if value != b"5"]
    assert sorted(processed) == sorted(others)
    if order == "partition":
        assert processed == others
    (letter,) = await letters(client)
    assert letter.data() == b"5"
    assert "no such customer" in str(letter.properties())


@pytest.mark.parametrize("error", [encore.Reject("no"), encore.Retry(delay=5), TimeoutError()])
@pytest.mark.parametrize("order", ORDERS)
async def test_an_error_of_several_messages_is_of_none_of_them(
    client: Client, transport: MemoryTransport, order: str, error: Exception
) -> None:
    seen = Counter[bytes]()

    async def handler(values: list[bytes], messages: list[Message]) -> None:
        assert all(message.attempt == 1 for message in messages)
        if len(values) > 1:
            raise error
        seen.update(values)

    transport.put(TOPIC, *numbers(33))
    retry = encore.RetryPolicy(attempts=1)
    async with running_lists(client, handler, order=order, retry=retry, reject_limit=2):
        await all_acked(transport)
    assert seen == Counter(numbers(33))
    assert await letters(client) == []


@pytest.mark.parametrize("order", ORDERS)
async def test_an_error_of_a_list_of_one_is_about_its_message(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    calls: list[float] = []

    async def handler(values: list[bytes]) -> None:
        calls.append(now())
        raise encore.Retry(delay=50) if len(calls) == 1 else encore.Reject("negative total")

    transport.put(TOPIC, b"x")
    async with running_lists(client, handler, order=order):
        await all_acked(transport)
    assert 50 <= calls[1] - calls[0] < 52
    (letter,) = await letters(client)
    assert "negative total" in str(letter.properties())


@pytest.mark.parametrize("order", ORDERS)
async def test_a_timeout_halves_the_list(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    lists: list[int] = []

    async def handler(values: list[bytes]) -> None:
        lists.append(len(values))
        await asyncio.sleep(2 * len(values))

    transport.put(TOPIC, *numbers(16))
    async with running_lists(client, handler, order=order, timeout=10) as worker:
        await all_acked(transport)
        assert worker.report().succeeded == 16
    assert sorted(lists, reverse=True) == [16, 8, 8, 4, 4, 4, 4]


async def test_the_messages_that_a_batch_failure_names_are_settled_one_by_one(
    client: Client, transport: MemoryTransport
) -> None:
    calls: list[tuple[float, list[bytes]]] = []
    attempts = Counter[bytes]()

    async def handler(values: list[bytes], messages: list[Message]) -> None:
        calls.append((now(), values))
        for value, message in zip(values, messages, strict=True):
            attempts[value] = message.attempt
        answers = {
            b"1": encore.Reject("negative total"),
            b"2": ValueError("bug"),
            b"3": encore.Retry(delay=100, count=False),
        }
        if len(calls) > 1:
            del answers[b"3"]
        failed = {n: answers[value] for n, value in enumerate(values) if value in answers}
        raise encore.BatchFailure(failed)

    transport.put(TOPIC, *numbers(10))
    retry = encore.RetryPolicy(attempts=2, backoff=[10])
    async with running_lists(client, handler, retry=retry) as worker:
        await all_acked(transport)
        assert worker.report().succeeded == 8
    assert [values for _, values in calls] == [numbers(10), [b"2"], [b"3"]]
    assert 10 <= calls[1][0] - calls[0][0] < 15
    assert 100 <= calls[2][0] - calls[0][0] < 105
    assert attempts[b"2"] == 2
    assert attempts[b"3"] == 1
    assert sorted(letter.data() for letter in await letters(client)) == [b"1", b"2"]


async def test_messages_that_a_batch_failure_named_are_in_lists_again(
    client: Client, transport: MemoryTransport
) -> None:
    lists: list[int] = []

    async def handler(values: list[bytes]) -> None:
        lists.append(len(values))
        if len(lists) == 1:
            raise encore.BatchFailure({n: ValueError("busy") for n in range(40)})

    transport.put(TOPIC, *numbers(100))
    async with running_lists(client, handler, retry=encore.RetryPolicy(backoff=[10])):
        await all_acked(transport)
    assert lists == [100, 40]


async def test_messages_that_both_halves_named_are_in_one_list_again(
    client: Client, transport: MemoryTransport
) -> None:
    calls: list[int] = []

    async def handler(values: list[bytes]) -> None:
        calls.append(len(values))
        if len(calls) == 1:
            raise ValueError("shared")
        if len(calls) <= 3:
            errors = {n: encore.Retry(delay=10, count=False) for n in range(len(values))}
            raise encore.BatchFailure(errors)

    transport.put(TOPIC, *numbers(8))
    async with running_lists(client, handler):
        await all_acked(transport)
    assert calls == [8, 4, 4, 8]


async def test_a_message_that_failed_alone_is_alone_again_after_its_nack(
    client: Client, transport: MemoryTransport
) -> None:
    calls: list[list[bytes]] = []

    async def handler(values: list[bytes]) -> None:
        calls.append(values)
        if b"poison" in values:
            raise ValueError("bug")

    transport.put(TOPIC, b"poison")
    retry = encore.RetryPolicy(attempts=3, backoff=[20])
    async with running_lists(client, handler, max_wait=5, retry=retry):
        await until(lambda: bool(calls))
        for number in range(60):
            await asyncio.sleep(1)
            transport.put(TOPIC, b"%d" % number)
        await all_acked(transport)
    assert [values for values in calls if b"poison" in values] == [[b"poison"]] * 3


async def test_with_an_order_the_messages_behind_a_failed_one_are_passed_again(
    client: Client, transport: MemoryTransport
) -> None:
    calls: list[list[bytes]] = []

    async def handler(values: list[bytes]) -> None:
        calls.append(values)
        if len(calls) <= 2:
            index = values.index(b"4")
            raise encore.BatchFailure({index: ValueError("not yet"), index + 2: ValueError("too")})

    transport.put(TOPIC, *numbers(10))
    async with running_lists(client, handler, order="partition"):
        await all_acked(transport)
    assert calls == [numbers(10), numbers(10)[4:], numbers(10)[4:]]
    assert transport.recorded("REDELIVER_UNACKNOWLEDGED_MESSAGES") == []


async def test_with_an_order_a_rejected_message_is_stored_before_the_messages_behind_it_run(
    client: Client, transport: MemoryTransport
) -> None:
    calls: list[list[bytes]] = []

    async def handler(values: list[bytes]) -> None:
        calls.append(values)
        if b"2" in values:
            raise encore.BatchFailure({values.index(b"2"): encore.Reject("no")})
        assert transport.backlog(DEAD_LETTERS, "encore-replay") == 1

    transport.put(TOPIC, *numbers(6))
    async with running_lists(client, handler, order="partition"):
        await all_acked(transport)
    assert calls == [numbers(6), [b"3", b"4", b"5"]]


@pytest.mark.parametrize("order", ORDERS)
async def test_an_empty_batch_failure_means_that_all_messages_are_processed(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    calls = []

    async def handler(values: list[bytes]) -> None:
        calls.append(values)
        raise encore.BatchFailure({})

    transport.put(TOPIC, *numbers(10))
    async with running_lists(client, handler, order=order) as worker:
        await all_acked(transport)
        assert worker.report().succeeded == 10
    assert calls == [numbers(10)]


async def test_a_batch_failure_with_a_wrong_index_is_a_shared_failure(
    client: Client, transport: MemoryTransport
) -> None:
    lists = []

    async def handler(values: list[bytes]) -> None:
        lists.append(len(values))
        if len(values) > 1:
            raise encore.BatchFailure({0: ValueError("bug"), len(values): ValueError("bug")})

    transport.put(TOPIC, *numbers(2))
    async with running_lists(client, handler):
        await all_acked(transport)
    assert lists == [2, 1, 1]


@pytest.mark.parametrize(
    ("errors", "text"),
    [
        ([ValueError()], "dict of index to exception"),
        ({-1: ValueError()}, "indexes from 0"),
        ({"0": ValueError()}, "indexes from 0"),
        ({True: ValueError()}, "indexes from 0"),
        ({0: "bug"}, "exceptions as values"),
        ({0: ValueError}, "exceptions as values"),
    ],
)
def test_wrong_arguments_of_a_batch_failure(errors: Any, text: str) -> None:
    with pytest.raises(encore.ConfigurationError, match=text):
        encore.BatchFailure(errors)


@pytest.mark.parametrize("order", ORDERS)
async def test_a_payload_that_does_not_decode_is_dead_lettered_and_not_passed(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    seen: list[int] = []

    async def handler(values: list[Number], messages: list[Message]) -> None:
        assert len(values) == len(messages)
        seen.extend(value.n for value in values)

    payloads = [b'{"n": %d}' % n for n in range(10)]
    transport.put(TOPIC, *payloads[:4], b"{broken", *payloads[4:])
    async with running_lists(client, handler, order=order, schema=encore.Json(Number)):
        await all_acked(transport)
    assert sorted(seen) == list(range(10))
    if order == "partition":
        assert seen == list(range(10))
    (letter,) = await letters(client)
    assert letter.data() == b"{broken"


# The rules that lists share with Worker


@pytest.mark.parametrize("order", ORDERS)
async def test_an_outage_costs_no_attempts_and_its_probes_are_single_messages(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    processed = Counter[bytes]()
    during: list[tuple[float, int]] = []

    async def handler(values: list[bytes]) -> None:
        await asyncio.sleep(0.1)
        if 5 < now() < 605:
            during.append((now(), len(values)))
            raise ConnectionError("the database is away")
        processed.update(values)

    async with running_lists(
        client,
        handler,
        order=order,
        retry=encore.RetryPolicy(attempts=1),
        breaker=encore.Breaker(on=(ConnectionError,)),
    ) as worker:
        await asyncio.sleep(5)
        transport.put(TOPIC, *numbers(2000))
        await until(lambda: now() > 60)
        health = worker.health()
        assert health.ready  # or an outage would stop a rollout
        assert "the database is away" in health.reasons[0]
        await all_acked(transport)
    assert processed == Counter(numbers(2000))
    assert await letters(client) == []
    opened = during[4][0]
    probes = [count for at, count in during if at > opened + 1]
    assert probes
    assert set(probes) == {1}
    assert len(probes) < 10


async def test_a_poison_message_among_healthy_ones_is_found_in_spite_of_the_breaker(
    client: Client, transport: MemoryTransport
) -> None:
    async def handler(values: list[bytes]) -> None:
        await asyncio.sleep(0.01)
        if b"poison" in values:
            raise ConnectionError("refused")

    transport.put(TOPIC, b"poison", *numbers(5000))
    async with running_lists(
        client,
        handler,
        breaker=encore.Breaker(on=(ConnectionError,)),
        retry=encore.RetryPolicy(attempts=3, backoff=[1]),
    ) as worker:
        for number in range(100):
            await asyncio.sleep(1)
            transport.put(TOPIC, b"%d" % number)
        await all_acked(transport)
        assert worker.report().succeeded == 5100
    assert [each.data() for each in await letters(client)] == [b"poison"]


async def test_after_the_reject_limit_a_backlog_is_not_dead_lettered(
    client: Client, transport: MemoryTransport
) -> None:
    is_broken = True

    async def handler(values: list[bytes]) -> None:
        if is_broken:
            errors = {n: encore.Reject("unknown schema") for n in range(len(values))}
            raise encore.BatchFailure(errors)

    transport.put(TOPIC, *numbers(500))
    async with running_lists(client, handler, reject_limit=5) as worker:
        await asyncio.sleep(600)
        assert not worker.health().ready
        assert worker.report().rejected == 4
        is_broken = False
        await all_acked(transport)
        assert worker.report().succeeded == 496


async def test_rejections_beside_processed_messages_do_not_reach_the_limit(
    client: Client, transport: MemoryTransport
) -> None:
    async def handler(values: list[bytes]) -> None:
        raise encore.BatchFailure({n: encore.Reject("no") for n in range(len(values) // 2)})

    transport.put(TOPIC, *numbers(400))
    async with running_lists(client, handler, reject_limit=5) as worker:
        await all_acked(transport)
        assert worker.report().rejected == 200


@pytest.mark.parametrize("order", ORDERS)
async def test_the_results_of_processed_messages_are_stored(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    is_first = True

    async def handler(values: list[bytes], messages: list[Message]) -> bytes | None:
        nonlocal is_first
        for value, message in zip(values, messages, strict=True):
            message.publish(value)
        if is_first:
            is_first = False
            raise encore.BatchFailure({2: ValueError("not yet")})
        return None

    transport.put(TOPIC, *numbers(4))
    async with running_lists(client, handler, order=order, publish="invoices") as worker:
        await all_acked(transport)
        assert worker.report().published == 4
    stored = [each.data() for each in await letters(client, "invoices")]
    assert stored == (
        [b"0", b"1", b"2", b"3"] if order == "partition" else [b"0", b"1", b"3", b"2"]
    )


async def test_an_async_generator_publishes_each_value(
    client: Client, transport: MemoryTransport
) -> None:
    async def handler(values: list[bytes]) -> Any:
        for value in values:
            yield value * 2

    transport.put(TOPIC, *numbers(3))
    async with running_lists(client, handler, publish="doubles"):
        await all_acked(transport)
    assert [each.data() for each in await letters(client, "doubles")] == [b"00", b"11", b"22"]


@pytest.mark.parametrize("order", ORDERS)
async def test_messages_that_the_handler_settled_are_left_alone(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    calls: list[list[bytes]] = []

    async def handler(values: list[bytes], messages: list[Message]) -> None:
        calls.append(values)
        if len(calls) == 1:
            await messages[0].ack()
            await messages[2].ack()
            raise ValueError("after two acks")

    transport.put(TOPIC, *numbers(5))
    async with running_lists(client, handler, order=order):
        await all_acked(transport)
    again = [value for values in calls[1:] for value in values]
    assert calls[0] == numbers(5)
    assert again == [b"1", b"3", b"4"]


async def test_with_an_order_messages_behind_a_named_one_that_the_handler_settled_are_passed_again(
    client: Client, transport: MemoryTransport
) -> None:
    calls: list[list[bytes]] = []

    async def handler(values: list[bytes], messages: list[Message]) -> None:
        calls.append(values)
        if len(calls) == 1:
            await messages[1].ack()
            raise encore.BatchFailure({1: ValueError("acked all the same")})

    transport.put(TOPIC, *numbers(4))
    async with running_lists(client, handler, order="partition"):
        await all_acked(transport)
    assert calls == [numbers(4), [b"2", b"3"]]


async def test_a_detached_message_is_acked_by_its_lease(
    client: Client, transport: MemoryTransport
) -> None:
    handles = []

    async def handler(values: list[bytes], messages: list[Message]) -> None:
        handles.append(messages[1].detach(lease=3600).handle)

    for value in numbers(3):
        transport.put(TOPIC, value)
    async with running_lists(client, handler) as worker:
        await until(lambda: transport.backlog(TOPIC, SUBSCRIPTION) == 1)
        lease = await worker.consumer.lease(handles[0])
        await lease.ack()
        await all_acked(transport)
    assert len(handles) == 1


async def test_extend_moves_the_timeout_of_the_list(
    client: Client, transport: MemoryTransport
) -> None:
    calls = []

    async def handler(values: list[bytes], messages: list[Message]) -> None:
        calls.append(values)
        for _ in range(120):
            messages[-1].extend(90)
            await asyncio.sleep(60)

    transport.put(TOPIC, *numbers(3))
    async with running_lists(client, handler, timeout=60):
        await all_acked(transport)
    assert calls == [numbers(3)]


@pytest.mark.parametrize("order", ORDERS)
async def test_messages_over_max_age_are_dead_lettered_without_a_call(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    seen: list[bytes] = []

    async def handler(values: list[bytes]) -> None:
        seen.extend(values)
        await asyncio.sleep(50)

    transport.put(TOPIC, *numbers(5))
    await asyncio.sleep(3600)
    async with running_lists(
        client,
        handler,
        order=order,
        max_messages=2,
        concurrency=1,
        retry=encore.RetryPolicy(max_age=60),
    ):
        await asyncio.sleep(5)
        transport.put(TOPIC, *(b"new %d" % n for n in range(5)))
        await all_acked(transport)
    assert seen == [b"new 0", b"new 1", b"new 2", b"new 3"]
    dead = [letter.data() for letter in await letters(client)]
    assert dead == [*numbers(5), b"new 4"]


async def test_a_dict_of_priorities_starts_lists_of_the_higher_priority_first(
    client: Client, transport: MemoryTransport
) -> None:
    lists: list[set[bytes]] = []

    async def handler(values: list[bytes]) -> None:
        lists.append(set(values))
        await asyncio.sleep(1)

    transport.put("low", *[b"low"] * 100)
    transport.put("high", *[b"high"] * 100)
    options: dict[str, Any] = {"concurrency": 1, "max_messages": 10, "prefetch": 300}
    async with running_lists(client, handler, {"low": 0, "high": 5}, **options):
        await until(lambda: len(lists) == 20)
    assert all(len(each) == 1 for each in lists)
    assert lists[2:9].count({b"low"}) <= 1
    assert lists[12:].count({b"high"}) <= 2


# Drain, pause and run


@pytest.mark.parametrize("order", ORDERS)
async def test_a_drain_gives_unfinished_messages_back_without_an_attempt(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    attempts = []

    async def never(values: list[bytes], messages: list[Message]) -> None:
        attempts.extend(message.attempt for message in messages)
        await asyncio.Event().wait()

    transport.put(TOPIC, *numbers(250))
    for _ in range(5):
        async with running_lists(client, never, order=order, drain=5) as worker:
            await asyncio.sleep(30)
        assert worker.report().given_back >= 250
    assert set(attempts) == {1}
    seen: list[bytes] = []

    async def handler(values: list[bytes], messages: list[Message]) -> None:
        assert {message.attempt for message in messages} == {1}
        seen.extend(values)

    async with running_lists(client, handler, order=order):
        await all_acked(transport)
    assert sorted(seen) == sorted(numbers(250))


@pytest.mark.parametrize("order", ORDERS)
async def test_a_handler_that_is_cancelled_in_the_drain_can_still_name_what_it_did_not_process(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    async def handler(values: list[bytes]) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise encore.BatchFailure(
                {n: ValueError("cancelled") for n in range(3, len(values))}
            ) from None

    for value in numbers(10):
        transport.put(TOPIC, value)
    async with running_lists(client, handler, order=order, drain=5) as worker:
        await asyncio.sleep(30)
    assert transport.backlog(TOPIC, SUBSCRIPTION) == 7
    assert worker.report().given_back == 7
    assert worker.report().succeeded == 3


@pytest.mark.parametrize("order", ORDERS)
async def test_messages_from_one_on_whose_ack_fails_in_the_drain_are_given_back(
    client: Client,
    transport: MemoryTransport,
    order: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    acknowledge = Consumer.acknowledge

    def failing(self: Consumer, message: Message) -> Any:
        if message.data() == b"1":
            return Failing(encore.EncoreError("disk full"), asyncio.get_running_loop())
        return acknowledge(self, message)

    async def handler(values: list[bytes]) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise encore.BatchFailure({3: ValueError("cancelled")}) from None

    monkeypatch.setattr(Consumer, "acknowledge", failing)
    for value in numbers(4):
        transport.put(TOPIC, value)
    async with running_lists(client, handler, order=order, drain=5) as worker:
        await asyncio.sleep(30)
    report = worker.report()
    assert (report.succeeded, report.given_back) == (1, 3)
    assert transport.backlog(TOPIC, SUBSCRIPTION) == 3
    assert any("disk full" in each for each in caplog.messages)


async def test_pause_starts_no_list_until_resume(
    client: Client, transport: MemoryTransport
) -> None:
    seen: list[bytes] = []

    async def handler(values: list[bytes]) -> None:
        seen.extend(values)

    async with running_lists(client, handler) as worker:
        worker.pause()
        transport.put(TOPIC, *numbers(250))
        await asyncio.sleep(60)
        assert seen == []
        assert worker.health().state == "paused"
        worker.resume()
        await all_acked(transport)
    assert len(seen) == 250


async def test_run_serves_a_worker_and_a_batch_worker(
    client: Client, transport: MemoryTransport
) -> None:
    async def one(value: bytes) -> None: ...

    async def many(values: list[bytes]) -> None: ...

    transport.put(TOPIC, *numbers(10))
    earliest = encore.InitialPosition.Earliest
    single = encore.Worker(client, TOPIC, "single", one, initial_position=earliest)
    batch = encore.BatchWorker(client, TOPIC, SUBSCRIPTION, many, initial_position=earliest)
    running = asyncio.ensure_future(encore.run(single, batch))
    await until(lambda: single.report().succeeded == batch.report().succeeded == 10)
    single.stop()
    batch.stop()
    reports = await running
    assert [report.succeeded for report in reports] == [10, 10]


async def test_a_partition_that_another_consumer_takes_over_cancels_its_list(
    client: Client, transport: MemoryTransport
) -> None:
    cancelled = []
    seen: list[bytes] = []

    async def first(values: list[bytes]) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(values)
            raise

    async def second(values: list[bytes]) -> None:
        seen.extend(values)

    def named(name: str) -> encore.SubscribeOptions:
        return encore.SubscribeOptions(consumer_name=name)

    transport.catalogue.create_partitioned(TOPIC, 2)
    for partition in range(2):
        transport.put(f"{TOPIC}-partition-{partition}", *numbers(10))
    async with running_lists(client, first, order="partition", options=named("a")) as worker:
        await asyncio.sleep(10)
        # The broker gives one of two partitions to each consumer.
        async with running_lists(client, second, order="partition", options=named("b")):
            await until(lambda: len(seen) == 10)
        assert cancelled == [numbers(10)]
        assert worker.report().lost == 10
        assert worker.report().failed == 0
    assert seen == numbers(10)


async def test_a_long_list_is_in_health(client: Client, transport: MemoryTransport) -> None:
    async def handler(values: list[bytes]) -> None:
        await asyncio.sleep(1000)

    transport.put(TOPIC, *numbers(10))
    async with running_lists(client, handler) as worker:
        await asyncio.sleep(400)
        (long,) = worker.health().long_handlers
        assert "10 messages" in long.message
        assert long.running > 300
        await all_acked(transport)


async def test_the_parameters_of_a_batch_worker_are_checked(client: Client) -> None:
    async def handler(values: list[bytes]) -> None: ...

    def make(**options: Any) -> encore.BatchWorker:
        return encore.BatchWorker(client, TOPIC, SUBSCRIPTION, handler, **options)

    for options, text in (
        ({"order": "key"}, '"none" or "partition"'),
        ({"max_messages": 0}, "max_messages must be"),
        ({"max_wait": -1}, "max_wait must be"),
        ({"max_messages": 100, "prefetch": 50}, "prefetch must be at least max_messages"),
        ({"concurrency": 0}, "concurrency must be"),
        ({"publish": TOPIC}, "loop"),
    ):
        with pytest.raises(encore.ConfigurationError, match=text):
            make(**options)
    with pytest.raises(encore.ConfigurationError, match="client must be a Client"):
        encore.BatchWorker("pulsar://localhost", TOPIC, SUBSCRIPTION, handler)  # type: ignore[arg-type]
    assert repr(make()).startswith("<BatchWorker ")


@pytest.mark.parametrize("order", ORDERS)
async def test_with_state_the_attempts_of_single_messages_survive_a_restart(
    client: Client, transport: MemoryTransport, tmp_path: Path, order: str
) -> None:
    alone: list[int] = []
    others: set[int] = set()

    async def handler(values: list[bytes], messages: list[Message]) -> None:
        others.update(each.attempt for each in messages if each.data() != b"0")
        if len(values) > 2:
            raise ValueError("shared")
        if b"0" in values:
            index = values.index(b"0")
            alone.append(messages[index].attempt)
            raise encore.BatchFailure({index: ValueError("own")})

    transport.put(TOPIC, *numbers(8))
    options: dict[str, Any] = {
        "order": order,
        "retry": encore.RetryPolicy(attempts=10, backoff=[5]),
        "state": encore.RocksState(tmp_path / "state"),
    }
    async with running_lists(client, handler, **options):
        await asyncio.sleep(30)
    assert alone[-1] in range(3, 9)
    async with running_lists(client, handler, **options):
        await all_acked(transport)
    assert alone == list(range(1, 11))
    assert max(others) == 1
    assert [letter.data() for letter in await letters(client)] == [b"0"]


async def test_with_state_a_message_that_kills_its_process_is_dead_lettered_alone(
    client: Client, transport: MemoryTransport, tmp_path: Path
) -> None:
    calls: list[list[bytes]] = []

    async def handler(values: list[bytes]) -> None:
        calls.append(values)
        while b"0" in values:
            await asyncio.sleep(1000)

    transport.put(TOPIC, *numbers(3))
    for run in range(4):
        state = encore.RocksState(tmp_path / f"{run}")
        retry = encore.RetryPolicy(attempts=3)
        async with running_lists(client, handler, state=state, retry=retry, concurrency=1):
            await asyncio.sleep(100)
            # The disk of a process that is killed now.
            copy_disk(tmp_path / f"{run}", tmp_path / f"{run + 1}")
    assert calls == [numbers(3), [b"0"], [b"0"], [b"1"], [b"2"]]
    assert [letter.data() for letter in await letters(client)] == [b"0"]
    assert transport.backlog(TOPIC, SUBSCRIPTION) == 0


# Tests of applications, and the log


async def test_handle_calls_the_handler_for_a_list_of_one(client: Client) -> None:
    async def handler(values: list[bytes]) -> None:
        if values == [b"bad"]:
            raise encore.BatchFailure({0: encore.Reject("negative total")})
        if values == [b"wrong"]:
            raise encore.BatchFailure({1: encore.Reject("negative total")})

    worker = encore.BatchWorker(client, TOPIC, SUBSCRIPTION, handler)
    good = await worker.handle(encore.testing.message(b"good"))
    assert good.settlement == "ack"
    bad = await worker.handle(encore.testing.message(b"bad"))
    assert bad.settlement == "dead letter"
    assert "negative total" in bad.reason
    wrong = await worker.handle(encore.testing.message(b"wrong"))
    assert wrong.settlement == "retry"
    assert isinstance(wrong.error, encore.ConfigurationError)


@pytest.mark.parametrize("order", ORDERS)
async def test_the_drain_of_a_test_returns_the_outcome_of_each_message(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    is_first = True

    async def handler(values: list[bytes], messages: list[Message]) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            await messages[0].ack()
            raise encore.BatchFailure({2: ValueError("not yet")})

    transport.put(TOPIC, *numbers(4))
    worker = encore.BatchWorker(
        client,
        TOPIC,
        SUBSCRIPTION,
        handler,
        order=order,  # type: ignore[arg-type]
        initial_position=encore.InitialPosition.Earliest,
    )
    drained = await encore.testing.drain(worker)
    found = [(each.message.data(), each.settlement, each.attempt) for each in drained.outcomes]
    again = [(b"2", "ack", 2)]
    once = [(b"0", "settled", 1), (b"1", "ack", 1)]
    last = [(b"3", "ack", 1)]
    if order == "partition":
        assert found == [*once, (b"2", "retry", 1), *again, *last]
    else:
        assert found == [*once, *last, (b"2", "retry", 1), *again]


async def test_a_failure_that_messages_share_is_logged_once_with_its_traceback(
    client: Client, transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(values: list[bytes]) -> None:
        if len(values) > 1:
            raise ValueError("shared")

    transport.put(TOPIC, *numbers(4))
    async with running_lists(client, handler):
        await all_acked(transport)
    lines = [each for each in caplog.records if "failed, the next one is in" in each.getMessage()]
    assert len(lines) == 1
    assert lines[0].exc_info


@pytest.mark.parametrize("order", ORDERS)
async def test_rejections_by_the_verb_reach_the_limit_too(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    async def handler(values: list[bytes], messages: list[Message[bytes]]) -> None:
        for message in messages:
            await message.reject("wrong schema")

    for n in range(200):
        transport.put(TOPIC, b"%d" % n)
    options: dict[str, Any] = {"order": order, "max_messages": 10, "concurrency": 1}
    async with running_lists(client, handler, **options) as worker:
        await asyncio.sleep(25)
        assert "messages in a row were rejected" in worker.health().reasons[0]
        assert worker.report().succeeded == 0
    assert 20 <= len(await letters(client)) <= 30


@pytest.mark.parametrize("order", ORDERS)
async def test_rejections_by_the_verb_are_no_successes_in_the_report(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    calls: list[list[bytes]] = []

    async def handler(values: list[bytes], messages: list[Message[bytes]]) -> None:
        calls.append(values)
        for message in messages[:2]:
            await message.reject("negative total")

    transport.put(TOPIC, *numbers(5))
    async with running_lists(client, handler, order=order) as worker:
        await all_acked(transport)
        report = worker.report()
    assert calls == [numbers(5)]
    assert (report.succeeded, report.rejected, report.failed) == (3, 2, 0)


async def test_a_nack_by_the_verb_is_a_retry_in_the_report(
    client: Client, transport: MemoryTransport
) -> None:
    async def handler(values: list[bytes], messages: list[Message[bytes]]) -> None:
        if messages[-1].attempt == 1:
            await messages[-1].nack()

    for value in numbers(3):
        transport.put(TOPIC, value)
    async with running_lists(client, handler) as worker:
        await all_acked(transport)
        report = worker.report()
    assert (report.succeeded, report.retried, report.failed) == (3, 1, 0)
