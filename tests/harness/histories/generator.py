"""Generate a workload from a seed.

Families have a higher weight where losses were found. Within a family, everything that can vary
does. The same seed gives the same workload on any machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Final

from .workload import BROKER_FAULTS, Action, Do, Kind, Segment, Settling, Workload

_QUEUES: Final = (1, 2, 5, 10, 50, 100, 500, 1000)
_BATCHES: Final = (0, 0, 2, 3, 10, 100, 500)


def generate(seed: int, only: str | None = None) -> Workload:
    """Return the workload of a seed; `only` names a family."""
    rng = Random(seed)
    names, weights = zip(*((name, weight) for name, (weight, _) in FAMILIES.items()), strict=True)
    [name] = rng.choices(names, weights)
    if only is not None:
        name = only
    made = FAMILIES[name][1](rng, seed)
    if any(action.do in ("unload", "delete", *BROKER_FAULTS) for action in made.actions):
        # A producer that lost its topic sends messages again. Those copies would look like
        # duplicates of the consumer, so everything is published before.
        before = tuple(dataclasses.replace(each, per_second=0) for each in made.segments)
        made = dataclasses.replace(made, segments=before)
    return made


def _handlers(rng: Random, most: float = 0.5) -> tuple[float, float]:
    if rng.random() < 0.4:
        return (0.0, 0.0)
    longest = rng.choice((0.01, 0.1, most))
    return (longest * rng.choice((0.0, 0.2, 0.5)), longest)


def _delays(rng: Random) -> tuple[float | None, ...]:
    few: list[float | None] = [round(rng.uniform(0.15, 1.5), 2) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.2:
        few.append(0.0)
    if rng.random() < 0.3:
        few.append(None)
    return tuple(few)


def _segments(rng: Random, messages: int) -> tuple[Segment, ...]:
    if rng.random() < 0.6:
        return (Segment(messages=messages, batch=rng.choice(_BATCHES)),)
    cut = rng.randint(1, messages - 1)
    pace = rng.choice((0, 0, 500, 2000))
    return (
        Segment(messages=cut, batch=rng.choice(_BATCHES)),
        Segment(messages=messages - cut, batch=rng.choice(_BATCHES), per_second=pace),
    )


def _random_actions(
    rng: Random, kinds: tuple[Do, ...], messages: int, members: int
) -> tuple[Action, ...]:
    """Return up to three random actions."""
    chosen = [
        Action(
            do=rng.choice(kinds),
            after=rng.randint(1, messages),
            who=rng.randrange(members),
            seconds=round(rng.uniform(0.1, 1.0), 2),
        )
        for _ in range(rng.choice((0, 1, 1, 2, 3)))
    ]
    return tuple(chosen)


def _backlog(rng: Random, seed: int) -> Workload:
    messages = rng.choice((300, 1000, 2000, 3000))
    kind: Kind = rng.choice(("Exclusive", "Exclusive", "Failover"))
    nacked = tuple(sorted(rng.sample(range(messages), rng.choice((1, 1, 2, 5)))))
    partitions = rng.choice((0, 0, 0, 2, 3))
    return Workload(
        seed=seed,
        name="backlog",
        kind=kind,
        segments=_segments(rng, messages),
        partitions=partitions,
        keys=rng.choice((0, 7)) if partitions else 0,
        queue=rng.choice(_QUEUES),
        nack_delay=0.6,
        settling=Settling(
            nacked=nacked, delays=_delays(rng), by_id=rng.choice((0.0, 0.5)), attempts=2
        ),
        actions=_random_actions(rng, ("redeliver_all", "pause", "unload", "cut"), messages, 1),
    )


def _cumulative(rng: Random, seed: int) -> Workload:
    messages = rng.choice((300, 1000, 2000, 3000))
    kind: Kind = rng.choice(("Exclusive", "Failover"))
    nacked = tuple(sorted(rng.sample(range(messages), rng.choice((0, 1, 2)))))
    actions = _random_actions(rng, ("redeliver_all", "pause", "unload", "cut"), messages, 1)
    actions += (Action(do="redeliver_all", after=rng.randint(1, messages)),)
    return Workload(
        seed=seed,
        name="cumulative",
        kind=kind,
        segments=_segments(rng, messages),
        partitions=rng.choice((0, 0, 0, 2)),
        queue=rng.choice(_QUEUES),
        nack_delay=0.6,
        settling=Settling(
            ack="cumulative", group=rng.choice((1, 10, 100)), nacked=nacked, delays=_delays(rng)
        ),
        actions=actions,
    )


def _shared(rng: Random, seed: int) -> Workload:
    messages = rng.choice((40, 200, 500, 1500))
    consumers = rng.choice((1, 2, 2, 3))
    hold = rng.choice((0.0, 0.0, 0.05))
    return Workload(
        seed=seed,
        name="shared",
        kind="Shared",
        segments=_segments(rng, messages),
        partitions=rng.choice((0, 0, 2)),
        consumers=consumers,
        queue=rng.choice(_QUEUES),
        nack_delay=rng.choice((0.2, 1.0)),
        backoff=rng.choice((None, None, (0.2, 1.0))),
        settling=Settling(
            ack=rng.choice(("each", "each", "list")),
            group=rng.choice((2, 10, 100)),
            nack=rng.choice((0.01, 0.1, 0.3)),
            attempts=rng.choice((2, 3)),
            delays=_delays(rng),
            by_id=rng.choice((0.0, 0.5, 1.0)),
            hold=hold,
            hold_s=round(rng.uniform(0.5, 2.0), 2),
            handler_s=_handlers(rng, 1.0 if messages < 1000 else 0.2),
            workers=rng.choice((20, 50, 200)),
        ),
        actions=_random_actions(rng, ("pause", "redeliver_all", "unload"), messages, consumers),
    )


def _slow(rng: Random, seed: int) -> Workload:
    """Batches whose messages are settled at very different times, by several consumers."""
    return Workload(
        seed=seed,
        name="slow",
        kind="Shared",
        segments=(Segment(messages=rng.choice((40, 100, 200)), batch=rng.choice((2, 5, 10, 20))),),
        consumers=rng.choice((2, 2, 3)),
        queue=rng.choice((5, 20, 100)),
        settling=Settling(
            nack=rng.choice((0.2, 0.5)),
            attempts=rng.choice((3, 4)),
            delays=(0.1, 0.3, round(rng.uniform(0.2, 1.5), 2)),
            by_id=rng.choice((0.0, 0.5)),
            handler_s=(0.05, rng.choice((1.0, 2.0, 3.0))),
            workers=200,
        ),
    )


def _held(rng: Random, seed: int) -> Workload:
    messages = rng.choice((10, 20, 100, 300))
    consumers = rng.choice((2, 2, 3))
    cuts = tuple(
        Action(
            do="cut",
            after=rng.randint(1, messages),
            who=rng.randrange(consumers),
            seconds=round(rng.uniform(0.05, 1.0), 2),
        )
        for _ in range(rng.choice((1, 1, 2)))
    )
    return Workload(
        seed=seed,
        name="held",
        kind=rng.choice(("Shared", "Shared", "KeyShared")),
        segments=(Segment(messages=messages, batch=rng.choice((0, 0, 2, 10))),),
        keys=rng.choice((5, 50)),
        consumers=consumers,
        queue=rng.choice((1, 5, 20, 100)),
        settling=Settling(
            nack=rng.choice((0.3, 0.6, 0.9)),
            attempts=rng.choice((3, 4)),
            delays=(0.2, round(rng.uniform(0.2, 1.0), 2)),
            hold=rng.choice((0.3, 0.6)),
            hold_s=round(rng.uniform(1.0, 3.0), 2),
        ),
        actions=cuts,
    )


def _deleted_topics(rng: Random, seed: int) -> Workload:
    messages = rng.choice((300, 1600))
    topics = rng.choice((2, 3))
    return Workload(
        seed=seed,
        name="gone",
        kind=rng.choice(("Shared", "Exclusive", "Failover")),
        segments=_segments(rng, messages),
        topics=topics,
        queue=rng.choice((10, 100, 1000)),
        settling=Settling(
            nack=rng.choice((0.0, 0.02)),
            attempts=2,
            delays=_delays(rng),
            handler_s=(0.0, 0.005),
            workers=4,
        ),
        actions=(
            Action(do="delete", after=rng.randint(1, messages // 2), who=rng.randrange(topics)),
        ),
    )


def _chunked(rng: Random, seed: int) -> Workload:
    return _chunk_workload(rng, seed, "chunked", ("pause",))


def _torn(rng: Random, seed: int) -> Workload:
    """Chunked messages and lost connections. Runs only with `--only torn`.

    After a connection is lost within a chunked message, the broker stops sending on Shared although
    it has permits. The stock client is affected as well (docs/broker-limits.md).
    """
    return _chunk_workload(rng, seed, "torn", ("pause", "cut", "unload"))


def _chunk_workload(rng: Random, seed: int, name: str, kinds: tuple[Do, ...]) -> Workload:
    messages = rng.choice((10, 40, 100))
    return Workload(
        seed=seed,
        name=name,
        kind=rng.choice(("Shared", "Shared", "Exclusive")),
        segments=(Segment(messages=messages),),
        chunk=10_000,
        writers=rng.choice((1, 1, 2, 3)),
        queue=rng.choice((10, 100, 1000)),
        settling=Settling(nack=rng.choice((0.1, 0.5, 0.9)), attempts=2, delays=_delays(rng)),
        actions=_random_actions(rng, kinds, messages, 1),
    )


def _batch_receive(rng: Random, seed: int) -> Workload:
    messages = rng.choice((505, 1000, 3000))
    consumers = rng.choice((1, 1, 2))
    return Workload(
        seed=seed,
        name="batch-receive",
        kind=rng.choice(("Shared", "Exclusive")) if consumers == 1 else "Shared",
        segments=_segments(rng, messages),
        consumers=consumers,
        queue=rng.choice((10, 100, 500, 1000)),
        batch_receive=rng.choice((1, 10, 100, 300, 1000)),
        settling=Settling(
            ack=rng.choice(("each", "list")),
            group=rng.choice((10, 100)),
            nack=rng.choice((0.0, 0.02)),
            attempts=2,
            delays=_delays(rng),
        ),
        actions=_random_actions(rng, ("pause", "redeliver_all"), messages, consumers),
    )


def _letters(rng: Random, seed: int) -> Workload:
    messages = rng.choice((20, 100, 300))
    consumers = rng.choice((1, 1, 2, 3))
    kind: Kind = "Shared" if consumers > 1 else rng.choice(("Shared", "Exclusive", "KeyShared"))
    retry = rng.random() < 0.6
    return Workload(
        seed=seed,
        name="letters",
        kind=kind,
        segments=(Segment(messages=messages, batch=rng.choice((0, 0, 3, 10))),),
        keys=rng.choice((5, 50)),
        consumers=consumers,
        queue=rng.choice((5, 50, 500)),
        backoff=rng.choice((None, (0.15, 0.6))),
        nack_delay=0.3,
        max_redeliver=rng.choice((1, 2, 3)),
        retry=retry,
        settling=Settling(
            poison=rng.choice((0.05, 0.2)),
            nack=rng.choice((0.0, 0.2)),
            attempts=2,
            delays=(0.2, None) if kind != "Exclusive" else (0.3,),
            reconsume=rng.choice((0.3, 1.0)) if retry else 0.0,
            handler_s=_handlers(rng),
            workers=50,
        ),
        actions=_random_actions(rng, ("pause", "cut", "unload"), messages, consumers),
    )


def _keyed(rng: Random, seed: int) -> Workload:
    messages = rng.choice((300, 1000, 3000))
    partitions = rng.choice((0, 0, 2))
    actions: list[Action] = []
    for who in (1, 2):
        if rng.random() < 0.8:
            after = rng.randint(1, messages)
            actions.append(Action(do="join", after=after, who=who))
            if rng.random() < 0.7:
                do: Do = rng.choice(("close", "close", "crash"))
                actions.append(Action(do=do, after=rng.randint(after, messages), who=who))
    return Workload(
        seed=seed,
        name="keyed",
        kind="KeyShared",
        segments=_segments(rng, messages),
        partitions=partitions,
        keys=rng.choice((3, 20, 300)),
        queue=rng.choice(_QUEUES),
        settling=Settling(
            nack=rng.choice((0.0, 0.0, 0.05)),
            attempts=2,
            delays=_delays(rng),
            handler_s=(0.0, rng.choice((0.002, 0.02))),
            workers=rng.choice((1, 10, 50)),
        ),
        actions=tuple(actions),
    )


def _coming(rng: Random, seed: int) -> Workload:
    messages = rng.choice((100, 500, 2000))
    kind: Kind = rng.choice(("Shared", "Failover", "Failover"))
    actions: list[Action] = []
    for who in (0, 1, 2):
        start = 0
        if who:
            start = rng.randint(1, messages)
            actions.append(Action(do="join", after=start, who=who))
        if who < 2 and rng.random() < 0.7:
            ending: Do = rng.choice(("close", "crash", "cut"))
            actions.append(
                Action(do=ending, after=rng.randint(start, messages), who=who, seconds=0.3)
            )
    return Workload(
        seed=seed,
        name="coming",
        kind=kind,
        segments=_segments(rng, messages),
        partitions=rng.choice((0, 0, 2)),
        queue=rng.choice(_QUEUES),
        settling=Settling(
            ack=rng.choice(("each", "each", "list")),
            group=rng.choice((2, 20)),
            nack=rng.choice((0.0, 0.01)),
            attempts=2,
            delays=_delays(rng),
            handler_s=(0.0, 0.004),
            workers=1 if kind == "Failover" else 20,
        ),
        actions=tuple(actions),
    )


def _timeouts(rng: Random, seed: int) -> Workload:
    messages = rng.choice((20, 100, 300))
    consumers = rng.choice((1, 2))
    return Workload(
        seed=seed,
        name="timeouts",
        kind="Shared" if consumers > 1 else rng.choice(("Shared", "Exclusive", "KeyShared")),
        segments=(Segment(messages=messages, batch=rng.choice((0, 0, 5))),),
        keys=10,
        consumers=consumers,
        queue=rng.choice((5, 50, 500)),
        ack_timeout=rng.choice((1.0, 1.5)),
        settling=Settling(
            silent=rng.choice((0.05, 0.3)),
            nack=rng.choice((0.0, 0.1)),
            attempts=3,
            delays=(0.3, 0.7),
            handler_s=_handlers(rng, 0.3),
            workers=20,
        ),
    )


def _seeking(rng: Random, seed: int) -> Workload:
    messages = rng.choice((50, 300, 1000))
    return Workload(
        seed=seed,
        name="seeking",
        kind=rng.choice(("Exclusive", "Shared", "Failover")),
        segments=_segments(rng, messages),
        queue=rng.choice(_QUEUES),
        settling=Settling(nack=rng.choice((0.0, 0.02)), attempts=2, delays=_delays(rng)),
        actions=(Action(do="seek", after=rng.randint(1, messages)),),
    )


def _broken(rng: Random, seed: int) -> Workload:
    messages = rng.choice((200, 1000))
    consumers = rng.choice((1, 2))
    kind: Kind = (
        rng.choice(("Shared", "KeyShared"))
        if consumers > 1
        else rng.choice(("Shared", "Exclusive", "Failover", "KeyShared"))
    )
    return Workload(
        seed=seed,
        name="broken",
        kind=kind,
        segments=(Segment(messages=messages, batch=rng.choice((0, 0, 10))),),
        keys=20,
        consumers=consumers,
        queue=rng.choice((10, 100, 1000)),
        settling=Settling(
            nack=rng.choice((0.0, 0.05)),
            attempts=2,
            delays=_delays(rng),
            handler_s=(0.0, 0.01),
            workers=10,
        ),
        actions=(
            Action(
                do=rng.choice(("stop", "kill")),
                after=rng.randint(1, messages),
                seconds=round(rng.uniform(0.0, 1.0), 2),
            ),
        ),
    )


FAMILIES: Final[dict[str, tuple[int, Callable[[Random, int], Workload]]]] = {
    "backlog": (14, _backlog),
    "cumulative": (12, _cumulative),
    "shared": (16, _shared),
    "slow": (8, _slow),
    "held": (10, _held),
    "gone": (5, _deleted_topics),
    "chunked": (6, _chunked),
    "torn": (0, _torn),
    "batch-receive": (6, _batch_receive),
    "letters": (9, _letters),
    "keyed": (7, _keyed),
    "coming": (8, _coming),
    "timeouts": (4, _timeouts),
    "seeking": (4, _seeking),
    "broken": (2, _broken),
}
