"""Every order of events of a small world, breadth first; a state that was seen is not seen again.

Owns `search`. A consumer cannot be copied, so each state is reached again from the beginning by
its events. From every state the world is also left alone: all of it must be settled in the end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from small_world import Event, Plan, Violation, World, sentence

# Left alone, a world of a few messages is at rest long before this many events.
_PATIENCE = 300
_QUIETS = 20


class Found(AssertionError):
    """A violation, with the shortest events that lead to it."""

    def __init__(self, why: str, events: tuple[Event, ...], alone: list[Event], world: World):
        self.events = events
        self.alone = alone
        lines = [why, "", "events:", *(f"  {sentence(each)}" for each in events)]
        if alone:
            lines += ["then left alone:", *(f"  {sentence(each)}" for each in alone)]
        lines += ["where everything is:", world.report()]
        super().__init__("\n".join(lines))


class _Ahead(NamedTuple):
    """A state to continue from: the events that lead to it, the possible next events, its apps."""

    events: tuple[Event, ...]
    following: list[Event]
    frozen: dict[str, int]


@dataclass
class Walked:
    """How far a search went.

    Attributes:
        states: Different ones.
        steps: Events that were tried.
        depth: Events to the farthest state.
        whole: Every order was tried, not only those up to a number of events.
    """

    states: int = 0
    steps: int = 0
    depth: int = 0
    whole: bool = True


def search(plan: Plan, *, deepest: int | None = None) -> Walked:
    """Try every order of events.

    Args:
        plan: The world.
        deepest: Events after `plan.start`, after which it goes no farther; None to go on until
            there are no more.

    Raises:
        Found: Something is wrong.
    """
    try:
        return _walk(plan, deepest, alone=True)
    except Found as found:
        if found.alone:  # a world left alone may fail after fewer events
            events = len(found.events) - len(plan.start) + len(found.alone)
            _walk(plan, min(events - 1, deepest or events), alone=False)
        raise


def _walk(plan: Plan, deepest: int | None, *, alone: bool) -> Walked:
    walked = Walked()
    seen: set[int] = set()
    good: dict[bool, set[int]] = {False: set(), True: set()}
    ahead: deque[_Ahead] = deque()

    def visit(events: tuple[Event, ...], world: World) -> None:
        state = hash(world.freeze())
        if state in seen:
            return
        seen.add(state)
        walked.states += 1
        walked.depth = len(events)
        try:
            world.check()
        except AssertionError as error:
            raise Found(str(error), plan.start + events, [], world) from error
        ahead.append(_Ahead(events, list(world.events()), dict(world.frozen)))
        for nacks in (False, True) if plan.budget.get("nack") else (False,):
            if alone and state not in good[nacks]:
                leave_alone(events, reached(plan, events) if nacks else world, nacks, good[nacks])

    def leave_alone(events: tuple[Event, ...], world: World, nacks: bool, good: set[int]) -> None:
        happened: list[Event] = []
        passed = []
        quiets = 0
        try:
            while len(happened) < _PATIENCE:
                event = world.next_alone(nacks=nacks)
                if event is None:
                    if world.ends_well():
                        world.check_the_end()
                        break
                    if not world.has_timers() or quiets == _QUIETS:
                        raise Violation("nothing more happens, and not everything is settled")
                    quiets += 1
                    event = ("quiet", "all")
                happened.append(event)
                world.apply(event, counted=event[0] == "nack")
                state = hash(world.freeze())
                if state in good:
                    break
                passed.append(state)
            else:
                raise Violation("it goes on and on")
        except AssertionError as error:
            raise Found(str(error), plan.start + events, happened, world) from error
        good.update(passed)

    visit((), World(plan))
    while ahead:
        events, following, frozen = ahead.popleft()
        if deepest is not None and len(events) >= deepest:
            walked.whole = False
            break
        for event in following:
            world = reached(plan, events)
            world.frozen = dict(frozen)
            walked.steps += 1
            try:
                world.apply(event)
            except AssertionError as error:
                raise Found(str(error), (*plan.start, *events, event), [], world) from error
            visit((*events, event), world)
    return walked


def reached(plan: Plan, events: tuple[Event, ...]) -> World:
    world = World(plan)
    for event in events:
        world.apply(event)
    return world
