"""What a rewind owes, rule by rule."""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_encore.core.rewind import Rewind, Verdict

ADMIT, DROP, REWIND = Verdict.ADMIT, Verdict.DROP, Verdict.REWIND


def judged(rewind: Rewind, numbers: Iterable[int]) -> list[Verdict]:
    """Verdicts on plain entries of one ledger, one after the other."""
    verdicts = []
    for number in numbers:
        verdicts.append(rewind.judge((1, number), 0))
        rewind._check()
    return verdicts


def rewound(numbers: Iterable[int]) -> Rewind:
    """A source that was delivered some entries and gave all of them back."""
    rewind = Rewind()
    numbers = list(numbers)
    assert set(judged(rewind, numbers)) <= {ADMIT}
    rewind.begin(((1, number), 0) for number in numbers)
    return rewind


def test_a_second_rewind_for_a_hole_brings_what_the_first_had_skipped() -> None:
    """Also when all before the hole was acked meanwhile, so that it comes first."""
    rewind = rewound(range(3))
    assert judged(rewind, [0]) == [ADMIT]
    rewind.settled((1, 0))
    assert judged(rewind, [2]) == [REWIND]
    assert judged(rewind, [1, 2]) == [ADMIT, ADMIT]
    assert rewind.owed == 0
