"""The description of a run: a value that can be printed, made smaller, and repeated.

`decide` returns the application's decision for one delivery of a message. It depends on the seed,
the message's number and the delivery attempt only, so a workload with fewer messages decides the
same for the messages that it keeps.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Literal

Kind = Literal["Exclusive", "Failover", "Shared", "KeyShared"]
Do = Literal[
    "join",  # a consumer subscribes
    "close",  # a consumer closes in order and may hold messages
    "crash",  # a consumer's connections end for ever and its application stops
    "cut",  # a consumer's connections end, and are refused for `seconds`
    "pause",  # a consumer does not receive for `seconds`
    "redeliver_all",  # a consumer requests all unacked messages
    "seek",  # a consumer seeks to the beginning, or after a message it has seen
    "unload",  # topic `who` is unloaded by its broker
    "delete",  # topic `who` of several is deleted and cannot be created again
    "stop",  # the broker stops in order and restarts
    "kill",  # the broker is killed and restarts
]

ORDERED: Final = ("Exclusive", "Failover")
BROKER_FAULTS: Final = ("stop", "kill")


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Messages published together.

    Args:
        messages: Number of messages.
        batch: Messages in an entry, 0 for unbatched ones.
        per_second: Rate; 0 publishes as fast as possible, before any consumer subscribes.
    """

    messages: int
    batch: int = 0
    per_second: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """An action after `after` deliveries, or when no more messages arrive.

    Args:
        do: Kind of action.
        after: Deliveries to all consumers together.
        who: Consumer, or topic for `unload` and `delete`.
        seconds: Duration, in s.
    """

    do: Do
    after: int = 0
    who: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Settling:
    """How the application settles messages.

    Args:
        ack: One by one, in lists of `group`, or cumulatively after each `group` messages.
        group: Messages in a list or between two cumulative acks.
        nack: Share of deliveries that end in a nack.
        nacked: Numbers that are nacked at their first delivery, regardless of `nack`.
        poison: Share of messages that always fail.
        attempts: A healthy message is acked at this delivery attempt at the latest (from 1).
        delays: Delays of nacks, in s; one is chosen. None leaves the delay to the subscription.
        by_id: Share of nacks made by id.
        hold: Share of deliveries in which the message is held for `hold_s` s before it is settled.
        reconsume: Share of failing deliveries that end in `reconsume_later` instead of a nack.
        silent: Share of messages whose first delivery is never settled (needs an ack timeout).
        handler_s: Shortest and longest work on a message, in s.
        workers: Messages that a consumer works on at once.
        rate: Most messages that a consumer receives in a second, 0 for no limit.
    """

    ack: Literal["each", "list", "cumulative"] = "each"
    group: int = 1
    nack: float = 0.0
    nacked: tuple[int, ...] = ()
    poison: float = 0.0
    attempts: int = 3
    delays: tuple[float | None, ...] = (0.5,)
    by_id: float = 0.0
    hold: float = 0.0
    hold_s: float = 1.0
    reconsume: float = 0.0
    silent: float = 0.0
    handler_s: tuple[float, float] = (0.0, 0.0)
    workers: int = 1
    rate: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A run.

    Args:
        seed: Decides everything that `Settling` leaves open.
        name: Family of the generator, or name of a fixed workload.
        kind: Subscription type.
        segments: Messages to publish, in order.
        topics: Topics in the subscription; message n goes to topic n modulo this.
        partitions: Partitions of each topic, 0 for an unpartitioned one.
        keys: Number of keys, 0 for none.
        chunk: Bytes of a chunk; each message has two or three. 0 for no chunking.
        writers: Concurrent producers, whose chunks interleave.
        consumers: Consumers from the start; the others join later.
        queue: `receiver_queue_size`.
        batch_receive: Most messages in one `batch_receive`; 0 for `receive`.
        nack_delay: The subscription's delay of a nack, in s.
        backoff: Shortest and longest delay of `negative_ack_redelivery_backoff`, in s, or None.
        ack_timeout: Ack timeout in s, 0 for none.
        max_redeliver: Redeliveries before a dead letter, 0 for no dead letters.
        retry: Read the retry letter topic as well.
        settling: How the application settles messages.
        actions: Other actions during the run.
    """

    seed: int
    name: str
    kind: Kind
    segments: tuple[Segment, ...]
    topics: int = 1
    partitions: int = 0
    keys: int = 0
    chunk: int = 0
    writers: int = 1
    consumers: int = 1
    queue: int = 1000
    batch_receive: int = 0
    nack_delay: float = 1.0
    backoff: tuple[float, float] | None = None
    ack_timeout: float = 0.0
    max_redeliver: int = 0
    retry: bool = False
    settling: Settling = field(default_factory=Settling)
    actions: tuple[Action, ...] = ()

    @property
    def messages(self) -> int:
        """Number of published messages."""
        return sum(segment.messages for segment in self.segments)

    @property
    def ordered(self) -> bool:
        """True if the broker sends all messages to one consumer, in order."""
        return self.kind in ORDERED

    @property
    def batched(self) -> bool:
        """True if any entry holds several messages."""
        return any(segment.batch > 1 for segment in self.segments)

    @property
    def members(self) -> int:
        """Number of consumers over the whole run."""
        joins = [action.who for action in self.actions if action.do == "join"]
        return max([self.consumers, *(who + 1 for who in joins)])

    @property
    def breaks_broker(self) -> bool:
        """True if the run needs a broker that no other run uses."""
        return any(action.do in BROKER_FAULTS for action in self.actions)

    def proxied(self, who: int) -> bool:
        """True if an action cuts this consumer's connections."""
        return any(a.do in ("cut", "crash") and a.who == who for a in self.actions)

    def dumps(self) -> str:
        """Return JSON of the values that differ from the defaults; `loads` reads it."""
        return json.dumps(_sparse(self), separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Decision:
    """The settlement of one delivery.

    Args:
        end: How the delivery ends.
        delay: Delay of a nack or reconsume, in s; None for the subscription's.
        by_id: True for a nack by id.
        hold: Seconds before the settlement, in addition to `work`.
        work: Seconds of work in the handler.
    """

    end: Literal["ack", "nack", "reconsume", "nothing"]
    delay: float | None
    by_id: bool
    hold: float
    work: float


def decide(workload: Workload, number: int, attempt: int) -> Decision:
    """Return the application's decision for delivery attempt `attempt` (from 1) of a message."""
    rng = Random(f"{workload.seed}/{number}/{attempt}")
    of_message = Random(f"{workload.seed}/{number}")
    settling = workload.settling
    poison = of_message.random() < settling.poison
    silent = of_message.random() < settling.silent
    fails = rng.random() < settling.nack and attempt < settling.attempts
    hold = settling.hold_s if rng.random() < settling.hold else 0.0
    work = rng.uniform(*settling.handler_s)
    delay = rng.choice(settling.delays)
    by_id = rng.random() < settling.by_id
    again = rng.random() < settling.reconsume
    if silent and attempt == 1 and workload.ack_timeout:
        return Decision("nothing", None, False, 0.0, work)
    if poison or fails or (attempt == 1 and number in settling.nacked):
        if again and workload.retry:
            return Decision("reconsume", delay or 0.0, False, hold, work)
        return Decision("nack", delay, by_id, hold, work)
    return Decision("ack", None, False, hold, work)


def loads(text: str) -> Workload:
    """Read the output of `Workload.dumps`."""
    raw: dict[str, Any] = json.loads(text)
    raw["segments"] = tuple(Segment(**each) for each in raw["segments"])
    raw["actions"] = tuple(Action(**each) for each in raw.get("actions", ()))
    settling = raw.get("settling", {})
    for name in ("nacked", "delays", "handler_s"):
        if name in settling:
            settling[name] = tuple(settling[name])
    raw["settling"] = Settling(**settling)
    if raw.get("backoff") is not None:
        raw["backoff"] = tuple(raw["backoff"])
    return Workload(**raw)


def _sparse(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {}
        for each in dataclasses.fields(value):
            now = getattr(value, each.name)
            if each.default is not dataclasses.MISSING and now == each.default:
                continue
            found[each.name] = _sparse(now)
        return found
    if isinstance(value, tuple):
        return [_sparse(each) for each in value]
    return value
