"""The checker on hand-written histories: each kind of finding, and the nearest case without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.histories import event_record as r
from tests.harness.histories.checker import Verdict, check
from tests.harness.histories.event_record import Event
from tests.harness.histories.workload import Action, Segment, Settling, Workload

TOPIC = "persistent://public/default/t"
AGAIN = f"{TOPIC}-again"


class History:
    """A history of events, a tenth of a second apart by default."""

    def __init__(self, kind: str = "Shared", messages: int = 4, **options: Any) -> None:
        batch = options.pop("batch", 0)
        keys = options.get("keys", 0)
        self.workload = Workload(
            seed=1,
            name="by hand",
            kind=kind,  # type: ignore[arg-type]
            segments=(Segment(messages=messages, batch=batch),),
            **options,
        )
        self.events: list[Event] = []
        self.now = 0.0
        for number in range(messages):
            entry = number // batch if batch else number
            position = (1, entry, number % batch if batch else 0)
            key = f"k{number % keys}" if keys else ""
            self.add(r.PRODUCED, number=number, topic=TOPIC, position=position, key=key)

    def add(self, what: str, **fields: Any) -> None:
        self.now = round(self.now + 0.1, 3)
        self.events.append(Event(self.now, what, **fields))

    def got(self, *numbers: int, who: int = 0, topic: str = TOPIC) -> None:
        for number in numbers:
            self.add(r.RECEIVED, who=who, number=number, topic=topic)

    def acked(self, *numbers: int, who: int = 0) -> None:
        for number in numbers:
            self.add(r.ACKED, who=who, number=number)

    def handled(self, *numbers: int, who: int = 0) -> None:
        for number in numbers:
            self.got(number, who=who)
            self.acked(number, who=who)

    def nacked(self, number: int, delay: float, who: int = 0) -> None:
        self.add(r.NACKED, who=who, number=number, delay=delay)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def verdict(self, *, exact: bool = False) -> Verdict:
        return check(self.workload, self.events, exact=exact)

    def kinds(self, *, exact: bool = False) -> dict[str, int]:
        return dict(self.verdict(exact=exact).kinds())


def test_a_history_with_every_message_acked_has_no_finding() -> None:
    for kind in ("Shared", "Exclusive", "Failover", "KeyShared"):
        history = History(kind)
        history.handled(0, 1, 2, 3)
        verdict = history.verdict()
        assert (verdict.findings, verdict.produced, verdict.handed) == ([], 4, 4)


# Lost and stuck


def test_a_message_that_is_never_delivered_is_lost() -> None:
    history = History()
    history.handled(0, 1, 3)
    assert history.kinds() == {"lost": 1}


def test_a_message_that_only_a_new_consumer_gets_is_stuck() -> None:
    history = History()
    history.handled(0, 1, 3)
    history.add(r.WORK_ENDED)
    history.got(2, who=r.DRAINER)
    assert history.kinds() == {"stuck": 1}


def test_a_nacked_message_that_is_never_redelivered_is_stuck() -> None:
    history = History()
    history.handled(0, 1, 3)
    history.got(2)
    history.nacked(2, 0.5)
    history.add(r.WORK_ENDED)
    history.got(2, who=r.DRAINER)
    [finding] = history.verdict().findings
    assert finding.kind == "stuck"
    assert "nacked by consumer 0" in finding.text


def test_a_deleted_topic_has_no_missing_messages() -> None:
    history = History()
    history.handled(0, 1)
    history.add(r.FAULT, topic=TOPIC, note="delete")
    assert history.kinds() == {}


def test_a_dead_lettered_message_is_complete() -> None:
    history = History(messages=1, max_redeliver=1)
    for _ in range(2):
        history.got(0)
        history.nacked(0, 0.1)
        history.wait(0.1)
    history.add(r.LETTER, number=0)
    assert history.kinds() == {}


# Order


def test_a_gap_on_an_ordered_subscription_is_a_finding() -> None:
    history = History("Exclusive")
    history.handled(0, 2, 3, 1)
    assert history.kinds() == {"gap": 1, "went back": 1}
    history = History("Shared")
    history.handled(0, 2, 3, 1)
    assert history.kinds() == {}


def test_a_step_back_needs_a_reason() -> None:
    history = History("Failover")
    history.got(0, 1, 2)
    history.handled(0, 1, 2, 3)
    assert history.kinds() == {"went back": 1}
    history = History("Failover")
    history.got(0, 1, 2)
    history.add(r.REDELIVER_ALL, who=0)
    history.handled(0, 1, 2, 3)
    assert history.kinds() == {}


def test_only_a_due_nack_is_a_reason_for_a_step_back() -> None:
    for delay, expected in ((0.2, {}), (50.0, {"went back": 1})):
        history = History("Exclusive")
        history.handled(0)
        history.got(1)
        history.nacked(1, delay)
        history.got(2)
        history.wait(0.5)
        history.handled(1, 2, 3)
        assert history.kinds() == expected


def test_a_lost_connection_is_a_reason_for_a_step_back() -> None:
    history = History("Exclusive")
    history.got(0, 1)
    history.add(r.DISCONNECTED, who=0)
    history.add(r.CONNECTED, who=0)
    history.handled(0, 1, 2, 3)
    assert history.kinds() == {}


def test_after_a_rewind_no_message_may_be_left_out() -> None:
    history = History("Exclusive")
    history.got(0, 1, 2)
    history.add(r.REDELIVER_ALL, who=0)
    history.handled(0, 2, 3)
    history.add(r.WORK_ENDED)
    history.got(1, who=r.DRAINER)
    assert history.kinds() == {"gap": 1, "stuck": 1}


def test_after_a_lost_connection_held_messages_may_be_left_out() -> None:
    history = History("Exclusive")
    history.got(0, 1)
    history.add(r.DISCONNECTED, who=0)
    history.add(r.CONNECTED, who=0)
    history.handled(2, 3)
    history.acked(0, 1)
    assert history.kinds() == {}


def test_a_second_consumer_begins_at_the_first_unsettled_message() -> None:
    history = History("Failover", consumers=2)
    history.handled(0)
    history.got(1)
    history.add(r.CRASHED, who=0)
    history.handled(2, 3, who=1)
    history.add(r.WORK_ENDED)
    history.got(1, who=r.DRAINER)
    assert history.kinds()["stuck"] == 1


def test_a_cumulative_ack_covers_only_delivered_messages() -> None:
    history = History("Exclusive")
    history.got(0, 1, 3)
    history.add(r.ACKED_CUMULATIVE, who=0, number=3)
    assert history.kinds() == {"gap": 1, "uncovered": 1}
    history = History("Exclusive")
    history.got(0, 1, 2, 3)
    history.add(r.ACKED_CUMULATIVE, who=0, number=3)
    assert history.kinds() == {}


def test_messages_delivered_before_a_redeliver_all_must_be_delivered_again() -> None:
    history = History("Exclusive")
    history.got(0, 1, 2)
    history.add(r.REDELIVER_ALL, who=0)
    history.got(0, 3)
    history.add(r.ACKED_CUMULATIVE, who=0, number=3)
    assert history.kinds() == {"gap": 1, "uncovered": 1}


def test_a_cumulative_ack_of_an_earlier_delivery_covers_the_messages_delivered_then() -> None:
    history = History("Exclusive", messages=3)
    history.got(0, 1, 2)
    history.add(r.REDELIVER_ALL, who=0)
    history.add(r.ACKED_CUMULATIVE, who=0, number=2)
    assert history.kinds() == {}


def test_the_order_of_a_key_is_checked() -> None:
    history = History("KeyShared", keys=2)
    history.handled(0, 1)
    history.handled(3, 2)
    assert history.kinds() == {}
    history = History("KeyShared", keys=2)
    history.handled(2, 0, 1, 3)
    assert history.kinds() == {"key order": 1}


# Time


@pytest.mark.parametrize(("waited", "expected"), [(0.3, {"early": 1}), (0.9, {})])
def test_a_nacked_message_is_never_early(waited: float, expected: dict[str, int]) -> None:
    history = History(messages=1)
    history.got(0)
    history.nacked(0, 0.8)
    history.wait(waited)
    history.handled(0)
    assert history.kinds() == expected


def _lost_connection(history: History) -> None:
    history.add(r.DISCONNECTED, who=0)


def _redeliver_all(history: History) -> None:
    history.add(r.REDELIVER_ALL, who=0)


def _another_consumer(history: History) -> None:
    history.got(0, who=1)


@pytest.mark.parametrize("excuse", [_lost_connection, _redeliver_all, _another_consumer])
def test_reasons_for_an_early_redelivery_are_accepted(excuse: Callable[[History], None]) -> None:
    history = History(messages=1, consumers=2)
    history.got(0)
    history.nacked(0, 5.0)
    excuse(history)
    history.handled(0)
    assert history.kinds() == {}


def test_a_letter_is_never_early() -> None:
    history = History(messages=1, max_redeliver=3, retry=True)
    history.got(0)
    history.add(r.RECONSUMED, who=0, number=0, delay=1.0)
    history.got(0, topic=AGAIN)
    history.acked(0)
    assert history.kinds() == {"early": 1}


@pytest.mark.parametrize(("cut", "expected"), [(True, {}), (False, {"early": 1})])
def test_the_original_of_a_letter_may_be_delivered_if_its_ack_was_lost(
    cut: bool, expected: dict[str, int]
) -> None:
    """It is reconsumed from the retry letter topic.

    Only the time distinguishes it from its copy.
    """
    history = History(messages=1, consumers=2, max_redeliver=3, retry=True)
    history.got(0, who=1, topic=AGAIN)
    history.add(r.RECONSUMED, who=1, number=0, delay=1.0)
    if cut:
        history.add(r.FAULT, who=1, note="cut")
    history.got(0, topic=AGAIN)
    history.acked(0)
    assert history.kinds() == expected


def test_a_redelivery_is_late_if_a_consumer_is_idle() -> None:
    history = History(messages=1)
    history.got(0)
    history.nacked(0, 0.2)
    history.wait(4.0)
    history.add(r.IDLE, who=0, delay=0.3)
    history.handled(0)
    assert history.kinds() == {"late": 1}


@pytest.mark.parametrize(
    ("kind", "other_is_busy"), [("Shared", True), ("Shared", False), ("Exclusive", True)]
)
def test_a_message_that_may_be_queued_at_a_busy_consumer_is_not_late(
    kind: str, other_is_busy: bool
) -> None:
    """Shared redelivers to any consumer. If all consumers are idle, the message is late."""
    history = History(kind=kind, messages=30, consumers=2)
    history.got(0)
    history.nacked(0, 0.2)
    for number in range(1, 29):
        history.wait(0.1)
        if other_is_busy or number < 2:
            history.got(number, who=1)
            history.acked(number, who=1)
    history.add(r.IDLE, who=0, delay=0.3)
    kinds = history.kinds()
    assert ("late" in kinds) is not (kind == "Shared" and other_is_busy)


def test_a_message_is_not_late_during_an_outage_or_on_a_slow_machine() -> None:
    history = History(messages=1)
    history.got(0)
    history.nacked(0, 0.2)
    history.add(r.DISCONNECTED, who=0)
    history.wait(4.0)
    history.add(r.IDLE, who=0, delay=0.3)
    history.add(r.CONNECTED, who=0)
    history.handled(0)
    assert history.kinds() == {}
    history = History(messages=1)
    history.got(0)
    history.nacked(0, 0.2)
    history.add(r.LAG, delay=3.0)
    history.wait(4.0)
    history.add(r.IDLE, who=0, delay=0.3)
    history.handled(0)
    assert history.kinds() == {}


# Attempts


def test_a_dead_letter_before_its_attempts_are_used_is_a_finding() -> None:
    history = History(messages=1, max_redeliver=2)
    for _ in range(2):
        history.got(0)
        history.nacked(0, 0.1)
        history.wait(0.1)
    history.add(r.LETTER, number=0)
    assert history.kinds() == {"dead early": 1}


def test_a_message_that_is_never_dead_lettered_is_a_finding() -> None:
    history = History(messages=1, max_redeliver=1)
    for _ in range(3):
        history.got(0)
        history.nacked(0, 0.1)
        history.wait(0.1)
    history.add(r.LETTER, number=0)
    assert history.kinds() == {"attempts": 1}


def test_two_letters_of_one_message_are_a_finding() -> None:
    history = History(messages=1, max_redeliver=1)
    for _ in range(2):
        history.got(0)
        history.nacked(0, 0.1)
        history.wait(0.1)
    history.add(r.LETTER, number=0)
    history.add(r.LETTER, number=0)
    assert history.kinds() == {"two letters": 1}


def test_a_letter_may_be_sent_again_if_the_ack_after_it_was_lost() -> None:
    history = History(messages=1, consumers=2, max_redeliver=1)
    for who in (0, 1):
        history.got(0, who=who)
        history.nacked(0, 0.1, who=who)
        history.wait(0.1)
    history.add(r.LETTER, number=0)
    history.add(r.FAULT, who=1, note="cut")
    history.got(0)
    history.nacked(0, 0.1)
    history.add(r.LETTER, number=0)
    verdict = history.verdict()
    assert dict(verdict.kinds()) == {}
    assert sum(verdict.doubles.values()) == 1


# Duplicates


def test_an_acked_message_is_not_delivered_again() -> None:
    history = History(messages=1)
    history.handled(0, 0)
    assert history.kinds() == {"acked again": 1}


def test_a_message_that_the_witness_gets_was_not_acked_at_the_broker() -> None:
    history = History(messages=1)
    history.handled(0)
    history.wait(5)
    history.add(r.WORK_ENDED)
    history.got(0, who=r.DRAINER)
    assert history.kinds() == {"acked again": 1}


def test_only_an_ack_within_a_second_before_a_crash_may_be_lost() -> None:
    for age, expected in ((0.3, {}), (5.0, {"acked again": 1})):
        history = History(messages=1)
        history.handled(0)
        history.wait(age)
        history.add(r.CRASHED, who=0)
        history.handled(0, who=1)
        assert history.kinds() == expected


def test_a_consumer_does_not_deliver_a_message_that_it_acked_after_a_reconnect() -> None:
    history = History(messages=1)
    history.handled(0)
    history.add(r.FAULT, who=0, note="cut")
    history.add(r.HEALED, who=0, note="cut")
    history.handled(0)
    assert history.kinds() == {"acked again": 1}


def test_a_killed_broker_may_forget_acks() -> None:
    history = History(messages=1)
    history.handled(0)
    history.add(r.FAULT, note="kill")
    history.add(r.HEALED, note="kill")
    history.handled(0)
    verdict = history.verdict()
    assert (verdict.findings, sum(verdict.doubles.values())) == ([], 1)


def test_a_batch_may_deliver_siblings_to_another_consumer() -> None:
    history = History(messages=2, batch=2, consumers=2)
    history.got(0, 1)
    history.nacked(1, 0.1)
    history.acked(0)
    history.wait(0.1)
    history.got(0, 1, who=1)
    history.acked(0, 1, who=1)
    verdict = history.verdict()
    assert (verdict.findings, sum(verdict.doubles.values())) == ([], 1)
    alone = History(messages=2, batch=2)
    alone.got(0, 1)
    alone.nacked(1, 0.1)
    alone.acked(0)
    alone.wait(0.1)
    alone.handled(0, 1)
    assert alone.kinds() == {"acked again": 1}


def test_after_a_seek_all_messages_must_be_delivered_again() -> None:
    history = History(messages=2)
    history.handled(0, 1)
    history.add(r.SEEK, who=0)
    history.handled(0)
    assert history.kinds() == {"lost": 1}
    history.handled(1)
    assert history.kinds() == {}


# Statements of the consumer


def _says(history: History, **counts: int) -> None:
    zero = {"queued": 0, "in_flight": 0, "nacked": 0, "unsent_acks": 0, "unacked": 0}
    history.add(r.STATISTICS, who=0, counts=zero | counts)


@pytest.mark.parametrize("name", ["queued", "in_flight", "nacked"])
def test_statistics_after_the_end_are_checked(name: str) -> None:
    history = History(messages=1)
    history.handled(0)
    history.wait(5)
    _says(history, **{name: 1, "unacked": 1})
    assert history.kinds() == {"statistics": 1}
    history = History(messages=1)
    history.handled(0)
    _says(history)
    assert history.kinds() == {}


def test_the_number_of_unacked_messages_is_checked() -> None:
    history = History(messages=1)
    history.handled(0)
    _says(history, unacked=3)
    assert history.kinds() == {"statistics": 1}


def test_a_consumer_may_settle_a_message_that_it_holds() -> None:
    history = History(messages=1)
    history.got(0)
    history.add(r.REFUSED, who=0, number=0, note="nack: MessageNotHeldError")
    history.acked(0)
    assert history.kinds() == {"refused": 1}
    history = History(messages=1)
    history.handled(0)
    history.add(r.REFUSED, who=0, number=0, note="nack: MessageNotHeldError")
    assert history.kinds() == {}


@pytest.mark.parametrize(
    ("kind", "after_s", "expected"),
    [
        ("Exclusive", 0.3, {}),  # the nack is due and took the message back
        ("Exclusive", 0.1, {"refused": 1}),  # not due yet
        ("Shared", 0.3, {"refused": 1}),  # a nack on Shared affects only its message
    ],
)
def test_a_nack_of_another_message_may_take_a_message_back(
    kind: str, after_s: float, expected: dict[str, int]
) -> None:
    history = History(kind, messages=2)
    history.got(0, 1)
    history.nacked(0, 0.4)
    history.wait(after_s)
    history.add(r.REFUSED, who=0, number=1, note="reconsume_later: MessageNotHeldError")
    history.wait(0.5)
    history.handled(0, 1)
    assert history.kinds() == expected


def test_a_failing_call_is_a_finding() -> None:
    history = History(messages=1)
    history.handled(0)
    history.add(r.FAILED, who=0, note="receive: TransportError")
    assert history.kinds() == {"failed": 1}


# Printed workloads


def test_a_printed_workload_can_be_parsed() -> None:
    from tests.harness.histories.fixed import FIXED
    from tests.harness.histories.generator import generate
    from tests.harness.histories.workload import loads

    for workload in [*FIXED.values(), *(generate(seed) for seed in range(200))]:
        assert loads(workload.dumps()) == workload


def test_a_seed_gives_one_workload_and_one_plan() -> None:
    from tests.harness.histories.generator import FAMILIES, generate
    from tests.harness.histories.workload import decide

    made = [generate(seed) for seed in range(300)]
    assert made == [generate(seed) for seed in range(300)]
    often = {name for name, (weight, _) in FAMILIES.items() if weight}
    assert {workload.name for workload in made} == often
    fewer = Workload(
        seed=made[0].seed, name="x", kind="Shared", segments=(), settling=Settling(nack=0.5)
    )
    more = Workload(
        seed=made[0].seed,
        name="x",
        kind="Shared",
        segments=(Segment(messages=9),),
        actions=(Action(do="pause"),),
        settling=Settling(nack=0.5),
    )
    plans = [[decide(each, n, 1) for n in range(50)] for each in (fewer, more)]
    assert plans[0] == plans[1]
    assert {decision.end for decision in plans[0]} == {"ack", "nack"}


# Acks of batch messages, with a client that reports them, and ack receipts


@pytest.mark.parametrize(("before_s", "expected"), [(1.0, {"acked again": 1}), (0.0, {})])
def test_a_message_acked_before_the_redelivery_of_a_sibling_is_not_redelivered_with_it(
    before_s: float, expected: dict[str, int]
) -> None:
    history = History(messages=2, batch=2, consumers=2)
    history.got(0, 1)
    if before_s:
        history.acked(1)
        history.wait(before_s)
    history.nacked(0, 0.0)
    if not before_s:
        history.acked(1)
    history.handled(0, 1, who=1)
    assert history.kinds() == {}
    assert history.kinds(exact=True) == expected


@pytest.mark.parametrize(("before_s", "expected"), [(0.6, {"acked again": 1}), (0.0, {})])
def test_a_confirmed_ack_is_not_lost_with_a_connection(
    before_s: float, expected: dict[str, int]
) -> None:
    history = History(messages=1, consumers=2)
    history.handled(0)
    history.wait(before_s)
    history.add(r.FAULT, who=0, note="cut")
    history.handled(0, who=1)
    assert history.kinds() == {}
    assert history.kinds(exact=True) == expected
