"""The entries that a rewind owes, rule by rule."""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_encore.core.rewind_check import Admission, Rewind

ADMIT, DROP, REWIND = Admission.ADMIT, Admission.DROP, Admission.REWIND


def judged(rewind: Rewind, numbers: Iterable[int]) -> list[Admission]:
    """Admissions on plain entries of one ledger, one after the other."""
    verdicts = []
    for number in numbers:
        verdicts.append(rewind.judge((1, number), 0))
        rewind._check()
    return verdicts


def rewound(numbers: Iterable[int]) -> Rewind:
    """Return the rewind of a topic that received some entries and released all of them."""
    rewind = Rewind()
    numbers = list(numbers)
    assert set(judged(rewind, numbers)) <= {ADMIT}
    rewind.begin(((1, number), 0) for number in numbers)
    return rewind


def test_a_second_rewind_for_a_hole_redelivers_the_entries_that_the_first_skipped() -> None:
    """Also when all before the hole was acked meanwhile, so that it comes first."""
    rewind = rewound(range(3))
    assert judged(rewind, [0]) == [ADMIT]
    rewind.settled((1, 0))
    assert judged(rewind, [2]) == [REWIND]
    assert judged(rewind, [1, 2]) == [ADMIT, ADMIT]
    assert rewind.outstanding == 0


def test_without_a_rewind_every_entry_is_admitted() -> None:
    rewind = Rewind()
    assert set(judged(rewind, [0, 1, 5, 4, 4, 9])) == {ADMIT}, "nobody waits for anything"


def test_leftovers_are_dropped_until_the_stream_goes_back() -> None:
    rewind = rewound(range(3))
    assert judged(rewind, [3, 4]) == [DROP, DROP], "queued somewhere before the rewind"
    assert judged(rewind, range(6)) == [ADMIT] * 6
    assert rewind.outstanding == 0


def test_a_dropped_leftover_is_owed_as_well() -> None:
    rewind = rewound(range(2))
    assert judged(rewind, [2]) == [DROP]
    assert judged(rewind, [0, 1, 3]) == [ADMIT, ADMIT, REWIND]
    assert judged(rewind, [0, 1, 2, 3]) == [ADMIT] * 4


def test_no_entry_is_admitted_past_an_owed_one() -> None:
    rewind = rewound(range(4))
    assert judged(rewind, [0, 2, 3]) == [ADMIT, REWIND, DROP]
    assert rewind.outstanding == 3
    assert judged(rewind, [0, 1, 2, 3]) == [ADMIT] * 4


def test_a_rewind_may_begin_before_the_first_owed_entry() -> None:
    """Messages that are held and were not returned are redelivered too."""
    rewind = Rewind()
    judged(rewind, range(3))
    rewind.begin([((1, 2), 0)])
    assert judged(rewind, [0, 1, 2, 3]) == [ADMIT] * 4


def test_a_rewind_that_begins_past_the_last_delivery_is_not_mistaken_for_leftovers() -> None:
    rewind = rewound(range(5))
    assert judged(rewind, [0, 1]) == [ADMIT, ADMIT]
    rewind.begin()
    rewind.settled_through((1, 1))
    assert judged(rewind, [2, 3, 4]) == [ADMIT] * 3


def test_a_hole_past_the_edge_is_suspect_after_a_rewind() -> None:
    rewind = rewound(range(2))
    assert judged(rewind, [0, 1, 5]) == [ADMIT, ADMIT, REWIND]
    assert judged(rewind, range(6)) == [ADMIT] * 6


def test_a_hole_between_leftovers_is_suspect_too() -> None:
    """An earlier rewind's skip: the next one may skip the same."""
    rewind = rewound(range(2))
    assert judged(rewind, [4]) == [DROP]
    assert judged(rewind, [0, 1, 4]) == [ADMIT, ADMIT, REWIND]
    assert judged(rewind, range(5)) == [ADMIT] * 5


def test_entries_may_be_missing_at_the_end_of_a_ledger() -> None:
    """The number of its entries is unknown, so it gets two rewinds, as every hole does."""
    rewind = rewound(range(2))
    assert judged(rewind, range(2)) == [ADMIT, ADMIT]
    assert rewind.judge((2, 1), 0) is REWIND
    assert judged(rewind, [2]) == [ADMIT], "it had one more"
    assert [rewind.judge((2, number), 0) for number in range(2)] == [ADMIT, ADMIT]
    assert rewind.judge((3, 0), 0) is REWIND
    assert rewind.judge((3, 0), 0) is REWIND
    assert rewind.judge((3, 0), 0) is ADMIT
    assert rewind.judge((3, 2), 0) is REWIND, "a ledger's end says nothing of holes inside"


def test_a_topic_with_three_permanent_holes_is_trusted_from_then_on() -> None:
    """Markers and compaction: two rewinds for each of three, and none for the holes that follow."""
    rewind = rewound(range(2))
    assert judged(rewind, [0, 1, 5]) == [ADMIT, ADMIT, REWIND]
    assert judged(rewind, [0, 1, 5]) == [ADMIT, ADMIT, REWIND]
    assert judged(rewind, [0, 1, 5, 9]) == [ADMIT, ADMIT, ADMIT, REWIND]
    assert judged(rewind, [9]) == [REWIND]
    assert judged(rewind, [9, 20]) == [ADMIT, REWIND], "one hole does not hide the next"
    assert judged(rewind, [20]) == [REWIND]
    assert judged(rewind, [20, 30]) == [ADMIT, ADMIT]
    rewind.begin([((1, 30), 0)])
    assert judged(rewind, [30, 40, 50]) == [ADMIT] * 3


def test_gaps_are_no_holes_without_consecutive_ids() -> None:
    rewind = Rewind(contiguous=False)
    judged(rewind, range(2))
    rewind.begin([((1, 1), 0)])
    assert judged(rewind, [1, 5]) == [ADMIT, ADMIT]
    rewind.begin([((1, 5), 0)])
    rewind.trust_holes()
    assert judged(rewind, [5, 9]) == [ADMIT, ADMIT]


def test_holes_far_behind_the_rewind_are_not_suspect() -> None:
    """The race reaches a few broker reads past the last entry sent."""
    rewind = rewound([0])
    assert set(judged(rewind, range(10_000))) == {ADMIT}
    assert judged(rewind, [10_005]) == [ADMIT]


def test_a_missing_entry_is_given_up_after_two_more_rewinds() -> None:
    """The entry was trimmed, or another consumer acked it. Only entries before it are given up."""
    rewind = rewound(range(5))
    assert judged(rewind, [2]) == [REWIND]
    assert judged(rewind, [2]) == [REWIND]
    assert judged(rewind, [2, 3, 4]) == [ADMIT] * 3
    assert rewind.outstanding == 0


def test_each_missing_entry_has_its_own_rewinds() -> None:
    rewind = rewound(range(6))
    assert judged(rewind, [0, 2]) == [ADMIT, REWIND]
    assert judged(rewind, [0, 2]) == [ADMIT, REWIND]
    assert judged(rewind, [0, 1, 2, 4]) == [ADMIT] * 3 + [REWIND]
    assert judged(rewind, [0, 1, 2, 4]) == [ADMIT] * 3 + [REWIND]
    assert judged(rewind, range(6)) == [ADMIT] * 6


def test_a_rewind_does_not_wait_for_acked_entries() -> None:
    rewind = rewound(range(6))
    rewind.settled((1, 0))
    rewind.settled((1, 3))
    assert judged(rewind, [1, 2, 4, 5]) == [ADMIT] * 4

    rewind = rewound(range(6))
    rewind.settled_through((1, 3))
    assert judged(rewind, [4, 5]) == [ADMIT, ADMIT]

    rewind = rewound(range(2))
    rewind.settled_through((1, 1))
    assert judged(rewind, [2, 3]) == [ADMIT, ADMIT], "nothing owed, nothing waited for"


def test_the_tail_of_a_batch_waits_for_its_head() -> None:
    """Some transports deliver a batch in parts, and a rewind may come between them."""
    rewind = Rewind()
    assert rewind.judge((1, 0), 0) is ADMIT
    rewind.begin([((1, 0), 0)])
    assert rewind.judge((1, 0), 3) is DROP
    assert rewind.judge((1, 0), 0) is ADMIT
    assert rewind.judge((1, 0), 3) is ADMIT


def test_a_redelivered_batch_may_begin_after_its_acked_messages() -> None:
    rewind = Rewind()
    assert rewind.judge((1, 0), 0) is ADMIT
    rewind.begin([((1, 0), 0)])
    rewind.settled_part((1, 0), 2)
    assert rewind.judge((1, 0), 2) is ADMIT
    rewind.settled_part((1, 7), 2)
    assert rewind.outstanding == 0, "only what is owed changes"


def test_entries_of_a_first_rewind_are_dropped_when_a_second_begins() -> None:
    rewind = rewound(range(3))
    assert judged(rewind, [0, 1]) == [ADMIT, ADMIT]
    rewind.begin([((1, 0), 0), ((1, 1), 0)])
    assert judged(rewind, [2, 3]) == [DROP, DROP], "the first one going on"
    assert judged(rewind, range(5)) == [ADMIT] * 5


def test_a_new_subscription_owes_no_entry() -> None:
    rewind = rewound(range(3))
    rewind.forget()
    assert rewind.outstanding == 0
    assert judged(rewind, [5, 9, 2]) == [ADMIT] * 3


def test_an_entry_that_was_given_up_is_no_longer_awaited() -> None:
    rewind = rewound(range(3))
    assert rewind.give_up() == 3
    assert judged(rewind, [3, 4]) == [ADMIT, ADMIT]


def test_progress_counts_owed_entries_that_arrived() -> None:
    rewind = rewound(range(3))
    assert rewind.owed_arrived == 0
    judged(rewind, [3])
    assert rewind.owed_arrived == 0
    judged(rewind, [0, 1])
    assert rewind.owed_arrived == 2


def test_an_entry_missing_only_from_the_last_rewind_is_not_given_up() -> None:
    """1 is gone from the topic; the third rewind brings neither 2 nor 3, and they are there."""
    rewind = rewound(range(5))
    assert judged(rewind, [0, 2, 3]) == [ADMIT, REWIND, DROP]
    assert judged(rewind, [0, 2]) == [ADMIT, REWIND]
    assert judged(rewind, [0, 4]) == [ADMIT, REWIND]
    assert judged(rewind, [0, 2, 3, 4]) == [ADMIT] * 4
