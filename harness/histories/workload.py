"""What a run does: a value that can be printed, made smaller, and run again.

Owns `Workload` and its parts, the JSON they are printed as, and `decide`: what the application
does with one look at one message. Every decision follows from the seed, the message's number and
how often it was looked at, so a workload with fewer messages decides the same for those it keeps.
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
    "close",  # a consumer closes in order, whatever it holds
    "crash",  # a consumer's connections end for ever and its application stops
    "cut",  # a consumer's connections end, and are refused for `seconds`
    "pause",  # a consumer does not receive for `seconds`
    "redeliver_all",  # a consumer asks for everything unacked
    "seek",  # a consumer seeks to the beginning, or after a message it has seen
    "unload",  # topic `who` is unloaded by its broker
    "delete",  # topic `who` of several is deleted and cannot be created again
    "stop",  # the broker ends in order and starts again
    "kill",  # the broker is killed and starts again
]

ORDERED: Final = ("Exclusive", "Failover")
BROKER_FAULTS: Final = ("stop", "kill")


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Messages published in one go.

    Args:
        messages: How many.
        batch: Messages an entry, 0 for plain ones.
        per_second: Pace; 0 for as fast as possible, before any consumer comes.
    """

    messages: int
    batch: int = 0
    per_second: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """Something that happens once `after` messages were received, or when nothing more comes.

    Args:
        do: What.
        after: Messages received by all consumers together.
        who: Consumer, or topic for `unload` and `delete`.
        seconds: How long it lasts.
    """

    do: Do
    after: int = 0
    who: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Settling:
    """What the application does with what it gets.

    Args:
        ack: One by one, in lists of `group`, or cumulatively each `group` messages.
        group: Messages of a list or between two cumulative acks.
        nack: Share of looks that end in a nack.
        nacked: Numbers that are nacked at their first look, whatever `nack` says.
        poison: Share of messages that always fail.
        looks: A healthy message is acked at its look of this number at the latest (1-based).
        delays: Of nacks, in s; one is chosen. None leaves it to the subscription.
        by_id: Share of nacks made by id.
        hold: Share of looks at which the message is held for `hold_s` s before it is settled.
        reconsume: Share of failing looks that end in `reconsume_later` instead of a nack.
        silent: Share of messages whose first look is never settled (needs an ack timeout).
        handler_s: Shortest and longest work on a message, in s.
        workers: Messages worked on at once by a consumer.
        rate: Messages a consumer takes in a second at most, 0 for no limit.
    """

    ack: Literal["each", "list", "cumulative"] = "each"
    group: int = 1
    nack: float = 0.0
    nacked: tuple[int, ...] = ()
    poison: float = 0.0
    looks: int = 3
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
        seed: Decides what `Settling` leaves open.
        name: Family of the generator, or of a fixed workload.
        kind: Subscription type.
        segments: What is published, in order.
        topics: Topics in the subscription; message n goes to topic n modulo this.
        partitions: Of each topic, 0 for a plain one.
        keys: Different keys, 0 for none.
        chunk: Bytes of a chunk; each message has two or three. 0 for no chunking.
        writers: Producers side by side; chunks of theirs interleave.
        consumers: Present from the start; the others come by `join`.
        queue: `receiver_queue_size`.
        batch_receive: Receive with `batch_receive`, of so many messages at most; 0 for `receive`.
        nack_delay: The subscription's delay of a nack, in s.
        backoff: Shortest and longest delay of `negative_ack_redelivery_backoff`, in s, or None.
        ack_timeout: In s, 0 for none.
        max_redeliver: Dead letters after so many redeliveries, 0 for none.
        retry: Read the retry-letter topic along.
        settling: What the application does.
        actions: What happens besides.
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
        """Published in all."""
        return sum(segment.messages for segment in self.segments)

    @property
    def ordered(self) -> bool:
        """Whether the broker gives one consumer all messages, in order."""
        return self.kind in ORDERED

    @property
    def batched(self) -> bool:
        """Whether any entry holds several messages."""
        return any(segment.batch > 1 for segment in self.segments)

    @property
    def members(self) -> int:
        """Consumers over the whole run."""
        joins = [action.who for action in self.actions if action.do == "join"]
        return max([self.consumers, *(who + 1 for who in joins)])

    @property
    def breaks_broker(self) -> bool:
        """Whether it needs a broker that no other run uses."""
        return any(action.do in BROKER_FAULTS for action in self.actions)

    def proxied(self, who: int) -> bool:
        """Whether a consumer's connections are to be cut."""
        return any(a.do in ("cut", "crash") and a.who == who for a in self.actions)

    def dumps(self) -> str:
        """JSON of what differs from the defaults; `loads` reads it back."""
        return json.dumps(_sparse(self), separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to one look.

    Args:
        end: How it ends.
        delay: Of a nack or reconsume, in s; None for the subscription's.
        by_id: A nack by id.
        hold: Seconds before it is settled, beside the handler's other work.
        work: Seconds of the handler.
    """

    end: Literal["ack", "nack", "reconsume", "nothing"]
    delay: float | None
    by_id: bool
    hold: float
    work: float


def decide(workload: Workload, number: int, look: int) -> Decision:
    """The application's decision for the look of this number (1-based) at a message."""
    rng = Random(f"{workload.seed}/{number}/{look}")
    of_message = Random(f"{workload.seed}/{number}")
    settling = workload.settling
    poison = of_message.random() < settling.poison
    silent = of_message.random() < settling.silent
    fails = rng.random() < settling.nack and look < settling.looks
    hold = settling.hold_s if rng.random() < settling.hold else 0.0
    work = rng.uniform(*settling.handler_s)
    delay = rng.choice(settling.delays)
    by_id = rng.random() < settling.by_id
    again = rng.random() < settling.reconsume
    if silent and look == 1 and workload.ack_timeout:
        return Decision("nothing", None, False, 0.0, work)
    if poison or fails or (look == 1 and number in settling.nacked):
        if again and workload.retry:
            return Decision("reconsume", delay or 0.0, False, hold, work)
        return Decision("nack", delay, by_id, hold, work)
    return Decision("ack", None, False, hold, work)


def loads(text: str) -> Workload:
    """Read what `Workload.dumps` wrote."""
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
