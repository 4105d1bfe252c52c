"""Replays in virtual time: sent letters, letters that stay, and the effect of a second run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from letters_kit import DEAD, HOME, bodies, properties_of, read_out, write_letters

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.deadletters import (
    DeadLetters,
    NoLettersError,
    NothingSelectedError,
    ReplayReport,
    ReplayStoppedError,
    Selection,
)
from pulsar_encore.testing import Fault, FaultPlan, MemoryTransport
from pulsar_encore.transport.native.producer.native_producer import NativeProducer
from pulsar_encore.values.outgoing_message import OutgoingMessage

OTHER = "persistent://public/default/refunds"


def durable_subscribes(transport: MemoryTransport) -> int:
    """Return how often a durable subscription was created or used."""
    return sum(each.details.durable for each in transport.recorded("SUBSCRIBE"))


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def test_a_replayed_message_equals_the_original(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    (letter_id,) = write_letters(transport, b"one", key="k", event_ms=42)
    report = await dead.replay(replay_id="second-try")
    (message,) = await read_out(client)
    assert message.data() == b"one"
    assert (message.partition_key(), message.event_timestamp()) == ("k", 42)
    assert message.properties() == {
        "colour": "red",
        letters.REAL_TOPIC: HOME,
        letters.REAL_SUBSCRIPTION: "billing",
        letters.ORIGIN_MESSAGE_ID: "7:7:-1",
        letters.REPLAY_ID: "second-try",
        letters.REPLAYED_FROM: letter_id,
    }
    assert (report.selected, report.replayed, report.passed) == (1, 1, 0)
    assert report.reached_end
    assert report.targets == {HOME: 1}


async def test_counters_and_evidence_are_kept_on_request(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    write_letters(transport, b"one")
    await dead.replay(keep_counters=True)
    (message,) = await read_out(client)
    kept = message.properties()
    assert properties_of().items() <= kept.items()
    assert set(kept) - set(properties_of()) == {letters.REPLAY_ID, letters.REPLAYED_FROM}


async def test_a_tombstone_stays_a_tombstone(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    write_letters(transport, None, key="k")
    await dead.replay()
    (message,) = await read_out(client)
    assert message.has_null_value()


async def test_a_letter_of_a_partition_goes_to_the_partitioned_topic(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    write_letters(transport, b"one", real_topic=f"{HOME}-partition-3", fingerprint=None)
    report = await dead.replay()
    assert report.targets == {HOME: 1}
    assert bodies(await read_out(client)) == [b"one"]


async def test_unselected_letters_stay_for_later_replays(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    write_letters(transport, b"a1", b"a2")
    write_letters(transport, b"b1", fingerprint="bbbbbbbbbbbb")
    write_letters(transport, b"a3")
    write_letters(transport, b"j1", fingerprint=None)
    only = Selection(fingerprints=["bbbbbbbbbbbb"])
    report = await dead.replay(only)
    assert (report.replayed, report.passed) == (1, 4)
    assert bodies(await read_out(client)) == [b"b1"]
    report = await dead.replay(Selection(fingerprints=["-"]))
    assert (report.replayed, report.passed) == (1, 3)
    report = await dead.replay()
    assert report.replayed == 3
    assert bodies(await read_out(client)) == [b"b1", b"j1", b"a1", b"a2", b"a3"]


async def test_batch_messages_are_replayed_one_by_one(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    """Our letters are never batched. Letters of other writers may be batched."""
    ids = transport.put(DEAD, b"x", b"y", b"z", properties=properties_of())
    middle = f"{ids[1].ledger_id()}:{ids[1].entry_id()}:-1:1"
    await dead.replay(Selection(ids=[middle]))
    assert bodies(await read_out(client)) == [b"y"]
    await dead.replay()
    assert bodies(await read_out(client)) == [b"y", b"x", b"z"]


async def test_every_partition_of_a_dead_letter_topic_is_replayed(
    transport: MemoryTransport, client: encore.Client
) -> None:
    topic = f"{HOME}-wide-billing-DLQ"
    transport.catalogue.create_partitioned(topic, 3)
    for number in range(3):
        write_letters(
            transport,
            b"%d" % number,
            topic=f"{topic}-partition-{number}",
            real_topic=f"{HOME}-wide",
        )
    wide = DeadLetters(client, topic)
    assert (await wide.list())[0].count == 3
    report = await wide.replay(Selection(fingerprints=["aaaaaaaaaaaa"]))
    assert (report.replayed, report.reached_end) == (3, True)
    assert sorted(bodies(await read_out(client, f"{HOME}-wide"))) == [b"0", b"1", b"2"]


async def test_a_chunked_letter_is_replayed_whole_and_once(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    transport.put_chunked(DEAD, b"long", 3)
    await dead.replay(target="orders")
    assert bodies(await read_out(client)) == [b"long"]
    with pytest.raises(NothingSelectedError):
        await dead.replay(target="orders")
    assert transport.backlog(DEAD, "encore-replay") == 0


async def test_a_replay_through_the_retry_topic_reaches_one_subscription(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    """On the original topic every subscription would get them.

    Attempt counts also start again there.
    """
    options: dict[str, Any] = {"consumer_type": encore.ConsumerType.Shared, "retry_enable": True}
    billing = await client.subscribe(HOME, "billing", **options)
    other = await client.subscribe(HOME, "other", **options)
    write_letters(transport, b"1", **{letters.DELAY_TIME: "3600000"})
    await dead.replay(target=f"{HOME}-billing-RETRY")
    message = await billing.receive(timeout=1)
    assert (message.data(), message.redelivery_count()) == (b"1", 0)
    assert letters.RECONSUME_TIMES not in message.properties()
    with pytest.raises(encore.ReceiveTimeout):
        await other.receive(timeout=100)


async def test_a_dry_run_counts_and_sends_nothing(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    write_letters(transport, b"1", b"2")
    write_letters(transport, b"3", real_topic=OTHER)
    both = Selection(real_topics=[HOME, OTHER])
    report = await dead.replay(both, dry_run=True)
    assert (report.selected, report.replayed) == (3, 0)
    assert report.targets == {HOME: 2, OTHER: 1}
    assert not await read_out(client)
    assert durable_subscribes(transport) == 0
    assert (await dead.replay(both)).replayed == 3


async def test_a_topic_of_replayed_messages_has_no_letters_and_gets_no_subscription(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    """The copies keep the properties of their letters. They are on the topic that they name."""
    write_letters(transport, b"1", b"2")
    await dead.replay(keep_counters=True)
    transport.put(HOME, b"ordinary")
    before = durable_subscribes(transport)
    for dry_run in (True, False):
        with pytest.raises(NoLettersError, match="none of the 3 messages"):
            await DeadLetters(client, HOME).replay(dry_run=dry_run)
    assert durable_subscribes(transport) == before


async def test_a_replay_that_refuses_all_letters_creates_no_subscription(
    transport: MemoryTransport, dead: DeadLetters
) -> None:
    (other,) = write_letters(transport, b"1", real_topic=OTHER)
    (circular,) = write_letters(transport, b"2", real_topic=DEAD)
    write_letters(transport, b"3", fingerprint="bbbbbbbbbbbb")
    report = await dead.replay(Selection(fingerprints=["aaaaaaaaaaaa"]))
    assert [each.letter_id for each in report.refusals] == [other, circular]
    assert (report.selected, report.refused, report.passed) == (0, 2, 1)
    assert report.reached_end
    assert durable_subscribes(transport) == 0
    assert (await dead.replay()).replayed == 1
    assert durable_subscribes(transport) == 1


async def test_a_replay_whose_targets_accept_nothing_creates_no_subscription(
    transport: MemoryTransport, dead: DeadLetters
) -> None:
    write_letters(transport, b"1", b"2")
    transport.state(HOME).log.terminated = True
    report = await dead.replay()
    assert (report.selected, report.refused, report.targets) == (0, 2, {})
    assert "terminated" in report.refusals[0].reason
    assert durable_subscribes(transport) == 0
    transport.state(HOME).log.terminated = False
    assert (await dead.replay()).replayed == 2


async def test_a_replay_that_selects_no_letter_creates_no_subscription(
    transport: MemoryTransport, dead: DeadLetters
) -> None:
    write_letters(transport, b"1")
    for selection in (Selection(fingerprints=["-"]), Selection(ids=["7:7:-1"])):
        with pytest.raises(NothingSelectedError):
            await dead.replay(selection)
    assert durable_subscribes(transport) == 0


async def test_a_second_run_sends_nothing_twice_and_reports_why(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    write_letters(transport, b"1", b"2")
    await dead.replay()
    with pytest.raises(
        NothingSelectedError, match="2 letters match, and all of them were replayed"
    ):
        await dead.replay()
    assert len(await read_out(client)) == 2
    again = DeadLetters(client, DEAD, subscription="once-more")
    assert (await again.replay()).replayed == 2


async def test_the_end_is_found_if_the_last_letters_were_replayed_before(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    write_letters(transport, b"first")
    write_letters(transport, b"last", fingerprint="bbbbbbbbbbbb")
    await dead.replay(Selection(fingerprints=["bbbbbbbbbbbb"]))
    begin = now_s()
    report = await dead.replay(quiet=3)
    assert report.replayed == 1
    assert not report.reached_end
    assert now_s() - begin == pytest.approx(3, abs=0.5)


async def test_the_rate_limit_is_respected(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    write_letters(transport, *(b"%d" % number for number in range(21)))
    begin = now_s()
    await dead.replay(rate=4)
    assert now_s() - begin == pytest.approx(5.0, abs=0.2)


async def test_the_limit_is_respected_and_the_next_run_continues(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    write_letters(transport, *(b"%d" % number for number in range(5)))
    report = await dead.replay(limit=3)
    assert (report.replayed, report.reached_end) == (3, False)
    assert (await dead.replay(limit=3)).replayed == 2
    assert bodies(await read_out(client)) == [b"0", b"1", b"2", b"3", b"4"]


async def test_progress_is_reported(transport: MemoryTransport, dead: DeadLetters) -> None:
    write_letters(transport, b"1", b"2", b"3")
    progress: list[int] = []
    await dead.replay(on_progress=lambda report: progress.append(report.replayed))
    assert progress == [1, 2, 3]


async def test_a_letter_without_an_original_topic_is_reported_and_stays(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    (lost,) = write_letters(transport, b"lost", real_topic=None)
    (circular,) = write_letters(transport, b"round", real_topic=f"{DEAD}-partition-1")
    (forged,) = write_letters(transport, b"bad", real_topic="persistent://a\x1b[2J/b/c")
    write_letters(transport, b"fine")
    report = await dead.replay()
    assert (report.replayed, report.refused) == (1, 3)
    assert [each.letter_id for each in report.refusals] == [lost, circular, forged]
    assert "no REAL_TOPIC" in report.refusals[0].reason
    assert "dead-letter topic itself" in report.refusals[1].reason
    assert "\x1b" not in report.refusals[2].reason
    report = await dead.replay(target="orders")
    assert (report.replayed, report.refused) == (3, 0)
    assert bodies(await read_out(client)) == [b"fine", b"lost", b"round", b"bad"]


async def test_a_cancelled_replay_can_be_repeated_without_duplicates(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    """The cancel comes between any two letters. Sent letters are acked before the replay ends."""
    sent = [b"%03d" % number for number in range(60)]
    write_letters(transport, *sent)
    runs = 0
    while True:
        runs += 1
        work = asyncio.ensure_future(dead.replay(rate=100))
        await asyncio.sleep(0.073)
        if work.done():
            assert work.result().reached_end
            break
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert runs > 5
    assert bodies(await read_out(client)) == sent


@pytest.mark.parametrize("steps", range(0, 300, 6))  # about 270 steps, 80 of them receive
async def test_a_cancel_at_any_step_loses_and_duplicates_nothing(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters, steps: int
) -> None:
    sent = [b"%d" % number for number in range(6)]
    write_letters(transport, *sent)
    work = asyncio.ensure_future(dead.replay())
    for _ in range(steps):
        await asyncio.sleep(0)
    if not work.done():
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        try:
            await dead.replay()
        except NothingSelectedError:
            pass  # the cancel came after the last letter
    await work if not work.cancelled() else None
    assert bodies(await read_out(client)) == sent


async def test_a_topic_that_accepts_nothing_does_not_delay_other_topics(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    write_letters(transport, b"1")
    stuck = write_letters(transport, *(b"%d" % number for number in range(200)), real_topic=OTHER)
    write_letters(transport, b"2")
    transport.state(OTHER).log.terminated = True
    both = Selection(real_topics=[HOME, OTHER])
    report = await dead.replay(both)
    assert (report.replayed, report.refused) == (2, 200)
    assert report.targets == {HOME: 2}
    assert report.refusals[0].letter_id == stuck[0]
    assert "terminated" in report.refusals[0].reason
    assert bodies(await read_out(client)) == [b"1", b"2"]
    assert len(transport.recorded("SEND")) < 150  # no request for each of them
    assert (await dead.replay(both, target=HOME)).replayed == 200


async def test_a_letter_that_can_never_be_sent_does_not_delay_others(
    transport: MemoryTransport,
    client: encore.Client,
    dead: DeadLetters,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds in every run, and also if the transport calls the error temporary."""
    publish = NativeProducer.publish

    def picky(self: NativeProducer, message: OutgoingMessage) -> Any:
        if message.payload is not None and message.payload.startswith(b"bad"):
            raise encore.TransportError("too much", result=message.payload[3:].decode())
        return publish(self, message)

    monkeypatch.setattr(NativeProducer, "publish", picky)
    bad = write_letters(transport, b"badMessageTooBig", b"badTimeout")
    write_letters(transport, *(b"%d" % number for number in range(100)))
    report = await dead.replay()
    assert (report.replayed, report.refused) == (100, 2)
    assert [each.letter_id for each in report.refusals] == bad
    assert "too much" in report.refusals[0].reason
    write_letters(transport, b"more")
    report = await dead.replay()
    assert (report.selected, report.replayed, report.refused) == (1, 1, 2)
    assert len(await read_out(client)) == 101


# Dead letter topics with other names


@pytest.mark.parametrize(
    ("topic", "real", "of"),
    [
        (DEAD, HOME, {}),
        (DEAD, f"{HOME}-partition-3", {}),
        (f"{HOME}-partition-3-billing-DLQ", HOME, {}),
        (f"{HOME}-partition-3-billing-DLQ", f"{HOME}-partition-3", {}),
        (DEAD, HOME, {letters.REAL_SUBSCRIPTION: "billing"}),
        (DEAD, "orders", {}),
    ],
)
async def test_letters_return_to_the_topic_that_their_dead_letter_topic_is_named_after(
    transport: MemoryTransport, client: encore.Client, topic: str, real: str, of: dict[str, str]
) -> None:
    write_letters(transport, b"1", topic=topic, real_topic=real, **of)
    report = await DeadLetters(client, topic).replay()
    assert report.targets == {HOME: 1}


@pytest.mark.parametrize(
    ("topic", "real"),
    [
        (DEAD, OTHER),
        (DEAD, "persistent://public/default/order"),
        (DEAD, "persistent://public/default/orders-billing"),
        (DEAD, "non-persistent://public/default/orders"),
        (DEAD, "persistent://public/other/orders"),
        ("persistent://public/default/graveyard", HOME),
        (f"{HOME}-DLQ", HOME),
        # a dead letter topic of another subscription
        ("persistent://public/default/orders-sales-DLQ", HOME),
    ],
)
async def test_a_letter_goes_to_another_topic_only_on_request(
    transport: MemoryTransport, client: encore.Client, topic: str, real: str
) -> None:
    """A publisher can write REAL_TOPIC on a message, and letters of Java's client keep that
    property.
    """
    write_letters(transport, b"1", topic=topic, real_topic=real)
    dead = DeadLetters(client, topic)
    report = await dead.replay()
    assert (report.selected, report.replayed, report.refused) == (0, 0, 1)
    assert "named after" in report.refusals[0].reason
    assert not transport.recorded("SEND")
    report = await dead.replay(Selection(real_topics=[real]))
    assert (report.replayed, report.targets) == (1, {real: 1})


async def test_a_lost_receipt_causes_a_recognisable_duplicate(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    (letter_id,) = write_letters(transport, b"1")
    await dead.replay(replay_id="r")
    other = DeadLetters(client, DEAD, subscription="knows-nothing")
    await other.replay(replay_id="r")
    marks = {
        (message.properties()[letters.REPLAY_ID], message.properties()[letters.REPLAYED_FROM])
        for message in await read_out(client)
    }
    assert marks == {("r", letter_id)}


async def test_only_one_replay_runs_at_a_time(
    transport: MemoryTransport, dead: DeadLetters
) -> None:
    write_letters(transport, b"1", b"2", b"3")
    first = asyncio.ensure_future(dead.replay(rate=1))
    await asyncio.sleep(0.5)
    with pytest.raises(encore.TransportError, match="another replay"):
        await dead.replay()
    assert (await first).replayed == 3


async def test_many_target_topics_need_few_producers(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    homes = [f"persistent://public/default/home-{number}" for number in range(150)]
    for home in homes:
        write_letters(transport, b"x", real_topic=home)
    report = await dead.replay(Selection(real_topics=homes))
    assert set(report.targets) == set(homes)
    assert len(await read_out(client, homes[149])) == 1


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"rate": 0}, "rate"),
        ({"rate": -1}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"rate": "fast"}, "rate"),
        ({"rate": True}, "rate"),
        ({"limit": 0}, "limit"),
        ({"limit": 1.5}, "limit"),
        ({"replay_id": " "}, "replay_id"),
        ({"replay_id": "a\nb"}, "replay_id"),
        ({"replay_id": "a" * 201}, "replay_id"),
        ({"target": ""}, "target"),
        ({"target": DEAD}, "target"),
        ({"target": f"{DEAD}-partition-0"}, "target"),
        ({"quiet": 0}, "quiet"),
        ({"keep_counters": 1}, "keep_counters"),
        ({"dry_run": "yes"}, "dry_run"),
        ({"selection": "all"}, "selection"),
    ],
)
async def test_the_error_for_an_invalid_argument_names_it_before_any_connection(
    transport: MemoryTransport, dead: DeadLetters, arguments: dict[str, Any], names: str
) -> None:
    with pytest.raises(encore.ConfigurationError, match=names):
        await dead.replay(**arguments)
    assert not transport.commands


async def test_an_unknown_fingerprint_is_an_error_that_names_it(
    transport: MemoryTransport, dead: DeadLetters
) -> None:
    write_letters(transport, b"1")
    with pytest.raises(NothingSelectedError, match=r"'cccccccccccc'; it has 'aaaaaaaaaaaa'"):
        await dead.replay(Selection(fingerprints=["cccccccccccc"]))
    with pytest.raises(NothingSelectedError, match="none of the 1 letters"):
        await dead.replay(Selection(real_topics=["nowhere"]))


async def test_an_empty_topic_is_an_error_that_names_it(dead: DeadLetters) -> None:
    with pytest.raises(NothingSelectedError, match="holds no letters: check the name"):
        await dead.replay()


async def test_a_failing_callback_ends_the_replay(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    write_letters(transport, b"1", b"2")

    def fail(_: ReplayReport) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await dead.replay(on_progress=fail, rate=10)
    assert len(await read_out(client)) == 1


async def test_a_send_that_was_refused_once_is_repeated_by_the_next_run(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    write_letters(transport, b"1", b"2", b"3")
    transport.faults = FaultPlan(
        [Fault(kind="refuse", command="SEND", nth=2, error="NotAllowedError")]
    )
    report = await dead.replay(rate=10)
    assert (report.selected, report.replayed, report.refused) == (2, 2, 1)
    report = await dead.replay()
    assert (report.replayed, report.refused) == (1, 0)
    assert bodies(await read_out(client)) == [b"1", b"3", b"2"]


async def test_closing_the_client_stops_the_replay(
    transport: MemoryTransport, dead: DeadLetters
) -> None:
    write_letters(transport, *(b"%d" % number for number in range(20)))
    work = asyncio.ensure_future(dead.replay(rate=10))
    await asyncio.sleep(0.55)
    await dead._client.close()
    with pytest.raises((ReplayStoppedError, encore.ClosedError)):
        await work
