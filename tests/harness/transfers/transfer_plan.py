"""Generate the plan of a history from a seed. Pure: the same seed gives the same steps."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final, Literal, TypeAlias, get_args

from pulsar_encore.testing import Fault

Kind: TypeAlias = Literal["Exclusive", "Failover", "Shared", "KeyShared"]
Sends: TypeAlias = Literal["one by one", "at once", "not awaited"]
Moment: TypeAlias = Literal["never", "before", "after"]
Acks: TypeAlias = Literal["single", "list", "cumulative"]
End: TypeAlias = Literal[
    "commit",
    "abort",
    "timeout",
    "cancel",
    "close",  # the client is closed during the turn, and the process starts again
    "kill",  # the process ends without a word, and starts again
    "isolate",  # the host is cut off and the process replaced, and the turn goes on later
]
Action: TypeAlias = Literal[
    "cut",  # the connections of one process
    "outage",  # of the network
    "kill broker",  # an outage that also loses the state that is only in memory
    "unload input",
    "unload output",
    "unload coordinator",
]

ORDERED: Final = ("Exclusive", "Failover")
#: Commands of a transaction, each with about how often it comes in a history.
_REQUESTS: Final = {
    "NEW_TXN": 12,
    "ADD_PARTITION_TO_TXN": 12,
    "SEND": 40,
    "ADD_SUBSCRIPTION_TO_TXN": 12,
    "ACK": 20,
    "END_TXN": 12,
}
_ANSWERS: Final = {
    "NEW_TXN_RESPONSE": 12,
    "ADD_PARTITION_TO_TXN_RESPONSE": 12,
    "SEND_RECEIPT": 40,
    "ADD_SUBSCRIPTION_TO_TXN_RESPONSE": 12,
    "ACK_RESPONSE": 20,
    "END_TXN_RESPONSE": 12,
}
_OTHERS: Final = {
    "SUBSCRIBE": 3,
    "PRODUCER": 3,
    "FLOW": 10,
    "MESSAGE": 40,
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": 4,
    "LOOKUP": 4,
}
_WHERE: Final = {**_REQUESTS, **_ANSWERS, **_OTHERS}
_CUTS: Final = ("close_before", "close_after", "outage")


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One group of inputs and its transaction.

    Args:
        take: Most inputs of the group.
        linger_s: How long to wait for each input after the first.
        sends: How the outputs are sent.
        acks: How the inputs are acked.
        acks_first: Ack before the outputs are sent.
        acks_awaited: Wait for the answer to the acks before going on.
        by_id: Ack message ids instead of messages.
        left_out: Inputs at the end of the group that are given back without an output.
        nacks: Nack one of the inputs before or after the acks.
        redelivers: Request all unacked messages before or after the acks.
        pauses_s: Seconds of work before the sends, between sends and acks, and before the end.
        end: How the transaction ends.
        passes: For the last four ends: passes of the event loop until then.
        seconds: The same, in addition, in s.
        keeps: Put inputs that are still held after a failure into the next group, instead of giving
            them back.
        nack_delay_s: Delay of nacks on Shared and Key_Shared.
        timeout_s: Timeout of the transaction.
        isolated_s: How long an isolated process is cut off.
        restart_s: Time until a process starts again.
    """

    take: int = 5
    linger_s: float = 0.1
    sends: Sends = "at once"
    acks: Acks = "list"
    acks_first: bool = False
    acks_awaited: bool = True
    by_id: bool = False
    left_out: int = 0
    nacks: Moment = "never"
    redelivers: Moment = "never"
    pauses_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    end: End = "commit"
    passes: int = 0
    seconds: float = 0.0
    keeps: bool = False
    nack_delay_s: float = 0.1
    timeout_s: float = 20.0
    isolated_s: float = 1.0
    restart_s: float = 1.0


@dataclass(frozen=True, slots=True)
class TimedAction:
    """A fault at a time.

    Args:
        at_s: Seconds after the start.
        do: The fault.
        who: Number of the process for ``"cut"``.
        seconds: Length of an outage, or until the coordinator is loaded again.
    """

    at_s: float
    do: Action
    who: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The plan of one history.

    Args:
        seed: Determines the whole plan.
        kind: Subscription type.
        inputs: Number of inputs.
        batch: Inputs in an entry; 0 if they are not batched.
        partitions: Partitions of the input topic, 0 for none.
        keys: Number of keys.
        queue: Receiver queue size.
        ack_timeout_s: `unacked_messages_timeout_ms` in s; 0 for none.
        batch_index_acks: `batch_index_ack_enabled`.
        rewinds_overtaken: `BrokerSettings.rewind_overtaken`.
        operation_timeout_s: Of the clients.
        batched_outputs: `batching_enabled` of the output producers.
        fences: A process that starts again first aborts the transaction of its previous life by
            its id.
        turns: Turns of each process. Later ones are `Turn()`.
        faults: Faults of commands.
        actions: Faults at times, in their order.
        faulty_s: Faults end after this time.
        stops_early: The history stops when the faults end, and is not run to its end.
    """

    seed: int
    kind: Kind
    inputs: int
    batch: int
    partitions: int
    keys: int
    queue: int
    ack_timeout_s: float
    batch_index_acks: bool
    rewinds_overtaken: float
    operation_timeout_s: float
    batched_outputs: bool
    fences: bool
    turns: tuple[tuple[Turn, ...], ...]
    faults: tuple[Fault, ...]
    actions: tuple[TimedAction, ...]
    faulty_s: float
    stops_early: bool

    @property
    def ordered(self) -> bool:
        return self.kind in ORDERED

    @property
    def cumulative(self) -> bool:
        return any(turn.acks == "cumulative" for turns in self.turns for turn in turns)


def generate(seed: int) -> Plan:
    """Return the plan of a seed."""
    rng = Random(f"transfer {seed}")
    kind: Kind = rng.choice(get_args(Kind))
    ordered = kind in ORDERED
    batch = rng.choice((0, 0, 2, 5, 12))
    cumulative = ordered and rng.random() < 0.3
    # Several consumers of batches may commit one message twice, and a cumulative ack covers the
    # messages that another consumer has handled meanwhile (docs/transactions.md).
    alone = batch > 0 or cumulative
    processes = 1 if alone or kind == "Exclusive" else rng.choice((1, 2, 3, 4))
    faulty_s = rng.choice((5.0, 20.0, 60.0))
    # An unload loses the acks of parts of a batch. Only the consumer that acked knows them then.
    unloads = not batch
    kills = rng.random() < 0.6
    if batch and rng.random() < 0.4:
        kills, unloads = False, True
    ends: list[End] = ["commit", "commit", "commit", "abort", "timeout", "cancel", "cancel"]
    if kills and batch:
        # A successor that has not acked in a transaction yet acks the whole batch, and so the
        # messages that were pending at the kill (docs/transactions.md#several-consumers). With
        # kills, about one seed in 500 loses messages so, such as seed 146.
        ends += ["close", "abort", "abort"]
    elif kills:
        ends += ["close", "kill", "kill"] if alone else ["close", "kill", "kill", "isolate"]
    turns = tuple(
        tuple(_turn(rng, not ordered, cumulative, ends) for _ in range(rng.randrange(4, 22)))
        for _ in range(processes)
    )
    return Plan(
        seed=seed,
        kind=kind,
        inputs=rng.randrange(12, 100),
        batch=batch,
        partitions=rng.choice((0, 0, 0, 2, 3)),
        keys=rng.choice((1, 3, 8)),
        queue=rng.choice((1, 5, 100)),
        ack_timeout_s=rng.choice((0.0, 0.0, 10.0)),
        batch_index_acks=rng.random() < 0.5,
        rewinds_overtaken=rng.choice((0.0, 0.5)),
        operation_timeout_s=rng.choice((3.0, 30.0)),
        batched_outputs=rng.random() < 0.5,
        fences=rng.random() < 0.5,
        turns=turns,
        faults=tuple(_fault(rng) for _ in range(rng.choice((0, 1, 1, 2, 3, 5)))),
        actions=_actions(rng, faulty_s, processes, unloads),
        faulty_s=faulty_s,
        stops_early=rng.random() < 0.2,
    )


def _turn(rng: Random, shared: bool, cumulative: bool, ends: list[End]) -> Turn:
    acks: list[Acks] = ["cumulative"] if cumulative else ["single", "list", "list"]
    return Turn(
        take=rng.randrange(1, 9),
        linger_s=rng.choice((0.0, 0.1, 1.0)),
        sends=rng.choice(get_args(Sends)),
        acks=rng.choice(acks),
        acks_first=rng.random() < 0.3,
        acks_awaited=rng.random() < 0.5,
        by_id=rng.random() < 0.2,
        left_out=0 if cumulative else rng.choice((0, 0, 0, 1, 3)),
        # A nack of a message that is not acked would let later ones of its key pass.
        nacks=rng.choice(
            ("never", "never", "never", "never", "after", "before" if shared else "after")
        ),
        redelivers=rng.choice((*["never"] * 8, "before", "after")),
        pauses_s=(_pause(rng), _pause(rng), _pause(rng)),
        end=rng.choice(ends),
        passes=rng.randrange(60),
        seconds=rng.choice((0.0, 0.0, 0.0, 0.1, 0.5, 3.0)),
        keeps=rng.random() < 0.3,
        nack_delay_s=rng.choice((0.0, 0.1, 3.0)),
        timeout_s=rng.choice((1.5, 5.0, 30.0)),
        isolated_s=rng.choice((0.5, 3.0, 12.0)),
        restart_s=rng.choice((0.01, 0.5, 4.0)),
    )


def _pause(rng: Random) -> float:
    return 12.0 if rng.random() < 0.03 else rng.choice((0.0, 0.0, 0.001, 0.3, 2.0))


def _fault(rng: Random) -> Fault:
    # A command of a transaction fails more often than the others.
    commands = [*_REQUESTS, *_ANSWERS] if rng.random() < 0.85 else [*_OTHERS]
    command = rng.choice(commands)
    kinds = [*_CUTS]
    # A connection keeps its order, so the answers to sends are lost with it only.
    if command in _ANSWERS and command != "SEND_RECEIPT":
        kinds += ["drop", "delay"]
    return Fault(
        kind=rng.choice(kinds),  # type: ignore[arg-type]
        command=command,
        nth=rng.randrange(1, _WHERE[command] + 1),
        times=rng.choice((1, 1, 1, 2)),
        delay_ms=rng.choice((10, 500, 4_000, 40_000)),
        outage_s=rng.choice((0.01, 1.0, 10.0)),
    )


def _actions(
    rng: Random, faulty_s: float, processes: int, unloads: bool
) -> tuple[TimedAction, ...]:
    kinds: list[Action] = ["cut", "cut", "outage", "unload output", "unload coordinator"]
    if unloads:
        kinds += ["kill broker", "unload input"]
    times = sorted(rng.uniform(0.0, faulty_s) for _ in range(rng.choice((0, 0, 1, 2, 4))))
    return tuple(
        TimedAction(at_s, rng.choice(kinds), rng.randrange(processes), rng.choice((0.01, 1.0, 8.0)))
        for at_s in times
    )
