"""Fingerprints: equal for one entry on every transport, different for others."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pulsar_encore.core.fingerprint import NO_FINGERPRINT, differ, fingerprint_of, fuller


class StoredEntry(NamedTuple):
    published: int = 1_800_000_000_000
    producer: str = "standalone-0-1"
    number: int | None = 7

    def publish_timestamp(self) -> int:
        return self.published

    def producer_name(self) -> str:
        return self.producer

    def sequence_id(self) -> int | None:
        return self.number


class Unreadable(StoredEntry):
    def producer_name(self) -> str:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


@pytest.mark.parametrize(
    "other",
    [
        StoredEntry(published=1_800_000_000_001),
        StoredEntry(producer="standalone-0-2"),
        StoredEntry(number=8),
    ],
    ids=str,
)
def test_fingerprints_of_different_entries_differ(other: StoredEntry) -> None:
    assert differ(fingerprint_of(StoredEntry()), fingerprint_of(other))


def test_the_fingerprint_of_an_entry_equals_itself() -> None:
    assert fingerprint_of(StoredEntry()) == fingerprint_of(StoredEntry())
    assert fingerprint_of(StoredEntry()) < 2**64
    assert not differ(fingerprint_of(StoredEntry()), fingerprint_of(StoredEntry()))


@pytest.mark.parametrize("turned", [False, True])
def test_fingerprints_of_one_entry_by_both_transports_match(turned: bool) -> None:
    native, stock = fingerprint_of(StoredEntry()), fingerprint_of(StoredEntry(number=None))
    other = fingerprint_of(StoredEntry(published=1, number=None))
    pair = (stock, native) if turned else (native, stock)
    assert not differ(*pair)
    assert differ(native, other) and differ(other, native)
    assert fuller(*pair) == native


def test_an_unknown_fingerprint_matches_every_entry() -> None:
    assert fingerprint_of(Unreadable()) == NO_FINGERPRINT
    assert not differ(NO_FINGERPRINT, fingerprint_of(StoredEntry()))
    assert not differ(fingerprint_of(StoredEntry()), NO_FINGERPRINT)
    assert fuller(NO_FINGERPRINT, fingerprint_of(StoredEntry())) == fingerprint_of(StoredEntry())


@pytest.mark.parametrize("number", [0, 2**24 - 2, 2**24 - 1, 2**64 - 1])
def test_every_sequence_id_differs_from_an_absent_one_and_from_its_successor(number: int) -> None:
    assert fingerprint_of(StoredEntry(number=number)) & 0xFFFFFF
    assert differ(
        fingerprint_of(StoredEntry(number=number)), fingerprint_of(StoredEntry(number=number + 1))
    )
