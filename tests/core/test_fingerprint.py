"""Fingerprints: equal for one entry on every transport, different for others."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pulsar_encore.core.fingerprint import NO_FINGERPRINT, differ, fingerprint_of, fuller


class Came(NamedTuple):
    published: int = 1_800_000_000_000
    producer: str = "standalone-0-1"
    number: int | None = 7

    def publish_timestamp(self) -> int:
        return self.published

    def producer_name(self) -> str:
        return self.producer

    def sequence_id(self) -> int | None:
        return self.number


class Unreadable(Came):
    def producer_name(self) -> str:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


@pytest.mark.parametrize(
    "other",
    [Came(published=1_800_000_000_001), Came(producer="standalone-0-2"), Came(number=8)],
    ids=str,
)
def test_other_entries_differ(other: Came) -> None:
    assert differ(fingerprint_of(Came()), fingerprint_of(other))


def test_an_entry_does_not_differ_from_itself() -> None:
    assert fingerprint_of(Came()) == fingerprint_of(Came())
    assert fingerprint_of(Came()) < 2**64
    assert not differ(fingerprint_of(Came()), fingerprint_of(Came()))


@pytest.mark.parametrize("turned", [False, True])
def test_a_directory_can_move_between_transports(turned: bool) -> None:
    native, stock = fingerprint_of(Came()), fingerprint_of(Came(number=None))
    other = fingerprint_of(Came(published=1, number=None))
    pair = (stock, native) if turned else (native, stock)
    assert not differ(*pair)
    assert differ(native, other) and differ(other, native)
    assert fuller(*pair) == native


def test_an_unknown_fingerprint_differs_from_none() -> None:
    assert fingerprint_of(Unreadable()) == NO_FINGERPRINT
    assert not differ(NO_FINGERPRINT, fingerprint_of(Came()))
    assert not differ(fingerprint_of(Came()), NO_FINGERPRINT)
    assert fuller(NO_FINGERPRINT, fingerprint_of(Came())) == fingerprint_of(Came())


@pytest.mark.parametrize("number", [0, 2**24 - 2, 2**24 - 1, 2**64 - 1])
def test_any_sequence_id_is_told_from_none(number: int) -> None:
    assert fingerprint_of(Came(number=number)) & 0xFFFFFF
    assert differ(fingerprint_of(Came(number=number)), fingerprint_of(Came(number=number + 1)))
