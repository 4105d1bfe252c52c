"""The names of letter properties."""

from __future__ import annotations

from pulsar_encore import letters


def test_each_letter_property_has_its_own_reserved_name() -> None:
    values = [
        value for name, value in vars(letters).items() if name.isupper() and isinstance(value, str)
    ]
    assert len(values) == len(set(values))
    assert set(values) == letters.RESERVED
    assert letters.COUNTERS <= letters.RESERVED
    assert letters.EVIDENCE <= letters.RESERVED
