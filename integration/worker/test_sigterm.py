"""SIGTERM at worker processes: no message is lost or processed again, and each process ends in
time.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.harness.pulsar_server import Server

from ..conftest import OwnPulsar
from .fleet import DRAIN_S
from .sigterm import BREAKS, FORMS, GRACE_S, end_again_and_again, end_without_broker

# looptime's plugin requests a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)


@pytest.mark.parametrize("batch", [1, 50])
async def test_processed_messages_are_not_processed_again_after_a_signal(
    pulsar: Server, batch: int
) -> None:
    outcome = await end_again_and_again(pulsar.service_url, rounds=5, batch=batch)
    assert not outcome.lost
    assert not outcome.again
    assert outcome.codes == {0}
    assert outcome.longest < DRAIN_S + GRACE_S


async def test_a_drain_ends_batches_because_the_broker_keeps_no_acks_of_single_messages(
    own_pulsar: OwnPulsar,
) -> None:
    broker = own_pulsar(acknowledgmentAtBatchIndexLevelEnabled="false")
    # Each process ends up to three batches, and the next one needs messages, too.
    outcome = await end_again_and_again(broker.service_url, rounds=4, messages=600, batch=200)
    assert not outcome.lost
    assert not outcome.again
    assert outcome.codes == {0}
    assert outcome.longest < DRAIN_S + GRACE_S


@pytest.mark.parametrize("form", ["long handlers", "ignored cancellation", "threads"])
async def test_a_handler_that_does_not_end_is_left_behind(pulsar: Server, form: str) -> None:
    outcome = await end_again_and_again(pulsar.service_url, rounds=2, batch=20, **FORMS[form])
    assert not outcome.lost
    assert not outcome.again
    assert outcome.codes == {0}
    assert outcome.longest < DRAIN_S + GRACE_S


async def test_a_process_whose_event_loop_is_blocked_ends_by_force(pulsar: Server) -> None:
    """Its last acks are lost with it, so their messages are processed again."""
    outcome = await end_again_and_again(
        pulsar.service_url, rounds=1, batch=1, **FORMS["blocked loop"]
    )
    assert not outcome.lost
    assert outcome.codes == {128 + 15}
    assert outcome.longest < DRAIN_S + GRACE_S
    assert "time.sleep" in outcome.exits[0].output, "the log has no stack of the event loop"


# A killed broker takes half a minute to start again: `python -m integration.worker.sigterm`.
@pytest.mark.parametrize("way", [each for each in BREAKS if each != "killed broker"])
async def test_a_process_ends_in_time_while_the_broker_is_away(pulsar: Server, way: str) -> None:
    """Acks that the broker did not get are lost, so their messages are processed again."""
    outcome = await end_without_broker(pulsar.service_url, way)
    assert not outcome.lost
    assert outcome.codes == {0}
    assert outcome.longest < DRAIN_S + GRACE_S
