"""The names of letter properties."""

from __future__ import annotations

from pulsar_encore import letters


def test_each_name_has_one_meaning() -> None:
    values = [
        value for name, value in vars(letters).items() if name.isupper() and isinstance(value, str)
    ]
    assert len(values) == len(set(values))
    assert set(values) == letters.RESERVED
    assert letters.COUNTERS <= letters.RESERVED
    assert letters.EVIDENCE <= letters.RESERVED
