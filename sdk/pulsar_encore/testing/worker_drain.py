"""Run a worker in virtual time until nothing is left to do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from ..client import transport_of
from ..consumer.consumer import Consumer
from ..errors import ConfigurationError
from ..worker.outcome import Outcome
from ..worker.worker import Worker
from .memory_transport import MemoryTransport

_POLL_S = 1.0
_SETTLED_S = 2.0
_REJECTING_S = 3600.0


@dataclass(frozen=True, slots=True)
class Drained:
    """The handler calls of a worker until nothing was left.

    Attributes:
        outcomes: One for each handler call, in the order in which the calls ended.
        elapsed: Seconds of virtual time from the start to the end of the last call.
    """

    outcomes: tuple[Outcome, ...]
    elapsed: float


async def drain(worker: Worker[Any], *, longest: float = 30 * 86_400.0) -> Drained:
    """Run a worker until no message is due, queued or held, and stop it.

    Use it in virtual time, with a client on a `MemoryTransport`.

    Args:
        worker: A worker that has not run.
        longest: Seconds of virtual time after which messages that are left are an error.

    Raises:
        ConfigurationError: if the client of the worker is not in memory, or if the subscription is
            new and begins after messages that were stored before.
        TimeoutError: if messages are left after `longest`, or an hour after the worker has reached
            its `reject_limit`. The text has the worker's health.

    Example:
        ::

            @pytest.mark.pulsar_virtual_time
            async def test_a_failing_order_is_dead_lettered_after_two_hours(pulsar_memory):
                pulsar_memory.transport.put("orders", b"one")
                worker = encore.Worker(pulsar_memory.client, "orders", "billing", fail, ...)
                drained = await testing.drain(worker)
                assert [each.settlement for each in drained.outcomes][-1] == "dead letter"
                assert drained.elapsed >= 7200
    """
    transport = transport_of(worker.client)
    if not isinstance(transport, MemoryTransport):
        raise ConfigurationError(
            "drain needs a worker whose client is in memory: Client('memory://', "
            "transport=testing.MemoryTransport()), or the fixture pulsar_memory"
        )
    loop = asyncio.get_running_loop()
    began_s, outcomes = loop.time(), list[tuple[float, Outcome]]()
    worker.watch_outcomes(lambda outcome: outcomes.append((loop.time(), outcome)))
    before = {
        name: set(state.subscriptions)
        for name, state in transport.catalogue.topics.items()
        if state.log.end > state.log.base
    }
    async with worker:
        _check_nothing_was_skipped(worker.consumer.subscription_name(), transport, before)
        empty_since: float | None = None
        rejecting_since: float | None = None
        while empty_since is None or loop.time() - empty_since < _SETTLED_S:
            await asyncio.sleep(_POLL_S)
            if loop.time() - began_s > longest:
                raise TimeoutError(
                    f"worker {worker.name} still has messages after {longest:g} s: "
                    f"{worker.health()}"
                )
            if not worker.is_reject_limit_reached:
                rejecting_since = None
            elif rejecting_since is None:
                rejecting_since = loop.time()
            elif loop.time() - rejecting_since > _REJECTING_S:
                raise TimeoutError(
                    f"worker {worker.name} has only rejected messages for {_REJECTING_S:g} s: "
                    f"{worker.health()}"
                )
            if _is_empty(worker, transport):
                empty_since = loop.time() if empty_since is None else empty_since
            else:
                empty_since = None
    # Whole ms: a sum of delays must not be 7199.999999999999 because of its binary form.
    elapsed = round(outcomes[-1][0] - began_s, 3) if outcomes else 0.0
    return Drained(tuple(outcome for _, outcome in outcomes), elapsed)


def _check_nothing_was_skipped(
    subscription: str, transport: MemoryTransport, before: dict[str, set[str]]
) -> None:
    """Raise if the worker has just made a subscription that skips stored messages.

    Without this check, a test without `initial_position` would pass without a handler call.

    Args:
        before: The subscriptions of each topic that had messages when the worker started.
    """
    for name, earlier in before.items():
        if (
            subscription not in earlier
            and subscription in transport.catalogue.topics[name].subscriptions
            and transport.backlog(name, subscription) == 0
        ):
            raise ConfigurationError(
                f"the messages of {name} were stored before the worker made its subscription "
                f"{subscription!r}, which begins at the latest message and skips them: give the "
                "worker initial_position=InitialPosition.Earliest"
            )


def _is_empty(worker: Worker[Any], transport: MemoryTransport) -> bool:
    consumer: Consumer[Any] = worker.consumer
    counts = consumer.statistics()
    if counts.unacked or counts.queued or counts.unsent_acks or worker.held:
        return False
    subscription = consumer.subscription_name()
    return all(
        transport.backlog(name, subscription) == 0
        for name, state in transport.catalogue.topics.items()
        if subscription in state.subscriptions
    )
