"""Workloads written by hand, one for each kind of loss found before random histories existed.

Each is small and named after its subject. The seeds only decide details.
"""

from __future__ import annotations

from typing import Final

from .workload import Action, Segment, Settling, Workload

_EACH = (
    Workload(
        seed=1,
        name="one-nack",
        kind="Exclusive",
        segments=(Segment(messages=3000),),
        settling=Settling(nacked=(100,), delays=(0.2,), rate=5000),
    ),
    Workload(
        seed=1,
        name="redeliver-all",
        kind="Exclusive",
        segments=(Segment(messages=3000),),
        settling=Settling(ack="cumulative", group=100, rate=5000),
        actions=(Action(do="redeliver_all", after=1050),),
    ),
    Workload(
        seed=1,
        name="swallowed-nack",
        kind="Shared",
        segments=(Segment(messages=200, batch=10),),
        consumers=2,
        queue=100,
        settling=Settling(
            nack=0.5, attempts=4, delays=(0.1, 0.3), handler_s=(0.1, 3.0), workers=200
        ),
    ),
    Workload(
        seed=1,
        name="held",
        kind="Shared",
        segments=(Segment(messages=20),),
        consumers=2,
        queue=10,
        settling=Settling(nack=0.9, attempts=3, delays=(0.2,), hold=0.6, hold_s=2.5),
        actions=(Action(do="cut", after=20, who=0, seconds=0.3),),
    ),
    Workload(
        seed=1,
        name="gone",
        kind="Shared",
        segments=(Segment(messages=1600),),
        topics=2,
        settling=Settling(handler_s=(0.001, 0.002), workers=4),
        actions=(Action(do="delete", after=400, who=1),),
    ),
    Workload(
        seed=1,
        name="chunked",
        kind="Shared",
        segments=(Segment(messages=100),),
        chunk=10_000,
        settling=Settling(
            nack=0.8, attempts=4, delays=(0.2, 0.5, 0.7), handler_s=(0.0, 0.3), workers=50
        ),
    ),
    Workload(
        seed=1,
        name="interleaved",
        kind="Shared",
        segments=(Segment(messages=60),),
        chunk=10_000,
        writers=3,
        settling=Settling(nack=0.3, attempts=2, delays=(0.5,)),
    ),
    Workload(
        seed=1,
        name="batch-receive",
        kind="Shared",
        segments=(Segment(messages=2000, batch=1000),),
        batch_receive=300,
    ),
)

FIXED: Final = {workload.name: workload for workload in _EACH}
