"""Compare positions kept by runs with a plain dict, and check their memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.core.runs import Runs, append, cut, find, forget, new_runs, put

SIZE = 24
LAST = 2**13 - 1
positions = st.integers(0, SIZE - 1) | st.integers(LAST - 4, LAST)
WIDE = [2**18 - 2, 2**18 - 1, 2**18, 2**40]
numbers = st.integers(0, 3) | st.sampled_from(WIDE)
steps = st.lists(
    st.tuples(st.just("put"), positions, numbers)
    | st.tuples(st.just("append"), st.integers(1, 4), numbers)
    | st.tuples(st.just("forget"), positions, st.just(0))
    | st.tuples(st.just("cut"), positions, st.integers(0, SIZE) | st.just(LAST + 1)),
    max_size=40,
)


@given(steps, st.sampled_from([0, 70, 300]))
def test_stored_numbers_agree_with_a_dict(script: list[tuple[str, int, int]], others: int) -> None:
    """A stored number is found. A lookup of another key may return a neighbour's number."""
    runs: Runs = new_runs()
    model: dict[int, int] = {}
    top = -1
    for each in range(100, 100 + others):
        runs = put(runs, each, each)
        model[each] = each
    for what, first, second in script:
        if what == "put":
            runs = put(runs, first, second)
            model[first] = second
            top = max(top, first) if first < SIZE else SIZE
        elif what == "append" and not others and top + first < SIZE:
            runs = append(runs, top + 1, top + first, second)
            model.update(dict.fromkeys(range(top + 1, top + first + 1), second))
            top += first
        elif what == "forget":
            forget(runs, first)
            model.pop(first, None)
        elif what == "cut":
            removed = {model.pop(each) for each in range(first, second) if each in model}
            cut_numbers = cut(runs, first, max(first, second))
            assert removed <= cut_numbers <= {*range(4), *range(100, 400), *WIDE}
            assert all(find(runs, each) == -1 for each in range(first, second))
        assert {each: find(runs, each) for each in model} == model
        assert list(runs) == sorted(runs)
        assert len(runs) <= 2 * (SIZE + others + 5) * 5 // 4


def test_positions_without_a_stored_number_are_not_found() -> None:
    runs = new_runs()
    assert find(runs, 0) == -1
    for position in (3, 5, 9):
        runs = put(runs, position, position)
    assert [find(runs, each) for each in range(11)] == [-1, -1, -1, 3, -1, 5, -1, -1, -1, 9, -1]


def test_a_run_takes_eight_bytes_and_a_lone_position_four() -> None:
    runs = append(new_runs(), 0, 8000, 7)
    assert len(runs.tobytes()) == 8
    for position in range(8001, 8191, 2):
        runs = put(runs, position, position)
    assert len(runs.tobytes()) <= 8 + 4 * 95 * 5 / 4
