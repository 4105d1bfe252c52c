"""Discards in virtual time: letters that are acked, letters that stay, and a second run."""

from __future__ import annotations

import pytest
from letters_kit import DEAD, write_letters

import pulsar_encore as encore
from pulsar_encore.deadletters import (
    DeadLetters,
    DiscardReport,
    NoLettersError,
    NothingSelectedError,
    Selection,
)
from pulsar_encore.errors import ConfigurationError
from pulsar_encore.testing import MemoryTransport

EVERYTHING = Selection()


async def test_selected_letters_are_acked_and_the_others_can_be_replayed(
    transport: MemoryTransport, dead: DeadLetters
) -> None:
    write_letters(transport, b"1", b"2", fingerprint="aaaaaaaaaaaa")
    write_letters(transport, b"3", fingerprint="bbbbbbbbbbbb")
    report = await dead.discard(Selection(fingerprints=["aaaaaaaaaaaa"]))
    assert (report.discarded, report.passed) == (2, 1)
    assert report.fingerprints == {"aaaaaaaaaaaa": 2}
    assert (await dead.replay()).replayed == 1
    with pytest.raises(NothingSelectedError, match="replayed"):
        await dead.discard(EVERYTHING)


async def test_a_dry_run_acks_nothing_and_makes_no_subscription(
    transport: MemoryTransport, dead: DeadLetters
) -> None:
    write_letters(transport, b"1", b"2")
    report = await dead.discard(EVERYTHING, dry_run=True)
    assert (report.discarded, report.dry_run) == (2, True)
    assert not any(each.details.durable for each in transport.recorded("SUBSCRIBE"))
    assert (await dead.discard(EVERYTHING)).discarded == 2


async def test_a_discard_that_is_interrupted_leaves_the_rest(
    transport: MemoryTransport, client: encore.Client, dead: DeadLetters
) -> None:
    write_letters(transport, *(b"%d" % each for each in range(5)))

    def stop(report: DiscardReport) -> None:
        if report.discarded == 2:
            raise KeyError("killed")

    with pytest.raises(KeyError):
        await dead.discard(EVERYTHING, on_progress=stop)
    assert (await DeadLetters(client, DEAD).discard(EVERYTHING)).discarded == 3


async def test_a_limit_stops_a_discard(transport: MemoryTransport, dead: DeadLetters) -> None:
    write_letters(transport, b"1", b"2", b"3")
    report = await dead.discard(EVERYTHING, limit=2)
    assert (report.discarded, report.at_limit) == (2, True)


async def test_an_empty_topic_gets_no_subscription(
    transport: MemoryTransport, dead: DeadLetters
) -> None:
    with pytest.raises(NoLettersError):
        await dead.discard(EVERYTHING)
    assert not any(each.details.durable for each in transport.recorded("SUBSCRIBE"))


async def test_bad_arguments_are_refused(dead: DeadLetters) -> None:
    with pytest.raises(ConfigurationError, match="selection"):
        await dead.discard("all")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="quiet"):
        await dead.discard(EVERYTHING, quiet=0)
