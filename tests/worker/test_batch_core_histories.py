"""Random histories of `BatchCore` keep every message, its order and its attempts."""

from __future__ import annotations

import pytest
from batch_world import BatchWorld, Plan

from pulsar_encore.worker.worker_core import Order

_HISTORIES = 25
_RATES = {
    "own": 3,
    "shared": 4,
    "reject": 1,
    "retry": 1,
    "undecodable": 1,
    "unstarted": 1,
    "remove": 1,
    "pause": 1,
    "unacked": 3,
}

PLANS = {
    "no failures": {"waits": True},
    "failures": {"waits": True, "rates": {"own": 3, "shared": 4, "undecodable": 1}},
    "everything": {"rates": {**_RATES, "settled": 1}},
    "no dead letters": {"discards": True, "rates": {"own": 3, "reject": 2}},
    "an outage": {"failures": 3, "rates": {**_RATES, "outage": 1}},
    "only an outage": {"failures": 2, "attempts": 1, "outages": 1, "rates": {"outage": 1}},
    "rejections": {"reject_limit": 2, "rates": {"own": 2, "reject": 4}},
    "small lists": {"max_messages": 2, "concurrency": 3, "prefetch": 4, "rates": _RATES},
    "one message": {"max_messages": 1, "prefetch": 1, "rates": _RATES},
    "large lists": {"max_messages": 30, "prefetch": 30, "messages": 120, "rates": _RATES},
    "few bytes": {"max_bytes": 60, "rates": _RATES},
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("order", [Order.NONE, Order.PARTITION])
def test_random_histories(order: Order, name: str) -> None:
    for seed in range(_HISTORIES):
        world = BatchWorld(Plan(order=order, **PLANS[name]), seed)  # type: ignore[arg-type]
        try:
            world.run()
        except AssertionError as error:
            error.add_note("\n  ".join((f"seed {seed}, the last events:", *world.history[-25:])))
            raise
        if name == "only an outage":
            assert {item.end for item in world.items} == {"acked"}, f"seed {seed}"
