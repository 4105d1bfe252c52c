"""Play a seed, and report its history: one line, or in full with the command that repeats it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields

from .transfer_checker import Attempt, Finding, Record, check
from .transfer_plan import Plan, Turn, generate
from .transfer_player import play

_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings and the record of one history."""

    seed: int
    findings: list[Finding]
    record: Record

    def counts(self) -> dict[str, int]:
        """Return numbers for a summary."""
        record = self.record
        outcomes = Counter(attempt.outcome for attempt in record.attempts)
        return {
            "inputs": record.inputs,
            "outputs": len(record.outputs),
            "committed": outcomes["committed"],
            "aborted": outcomes["aborted"],
            "unknown": outcomes["unknown"],
            "needed unloads": record.unloads,
            "findings": len(self.findings),
        }


def play_seed(seed: int) -> Verdict:
    """Play the history of a seed, and check it."""
    record = play(generate(seed))
    return Verdict(seed, check(record), record)


def line(verdict: Verdict) -> str:
    """Return a history in one line."""
    counts = ", ".join(f"{number} {name}" for name, number in verdict.counts().items())
    return f"seed {verdict.seed}: {counts}"


def full(verdict: Verdict, plan: Plan) -> str:
    """Return a history with its plan, its findings, the attempts that they concern, and the
    command that repeats it.
    """
    numbers = {finding.number for finding in verdict.findings[:_SHOWN]}
    lines = [line(verdict)]
    lines += [
        f"  {each.name}: {getattr(plan, each.name)}"
        for each in fields(plan)
        if each.name not in ("seed", "turns")
    ]
    for who, turns in enumerate(plan.turns):
        lines.append(f"  turns of process {who}:")
        lines += [f"    {_turn(each)}" for each in turns]
    lines += [f"  {finding}" for finding in verdict.findings[:_SHOWN]]
    if len(verdict.findings) > _SHOWN:
        lines.append(f"  and {len(verdict.findings) - _SHOWN} more")
    lines += [
        f"  {_attempt(each)}"
        for each in verdict.record.attempts
        if not verdict.findings or not numbers.isdisjoint(each.received) or numbers == {-1}
    ]
    lines.append(f"  again: python -m tests.harness.transfers --show --seeds {verdict.seed}")
    return "\n".join(lines)


def _turn(turn: Turn) -> str:
    """Return the fields that differ from the default turn."""
    changed = [
        f"{each.name}={getattr(turn, each.name)!r}"
        for each in fields(turn)
        if getattr(turn, each.name) != each.default
    ]
    return ", ".join(changed) or "default"


def _attempt(attempt: Attempt) -> str:
    received = ", ".join(f"{each} at {when_s:.3f}" for each, when_s in attempt.received.items())
    return (
        f"attempt {attempt.number} of process {attempt.process}: received {received}; "
        f"sent {sorted(attempt.sent)}; {attempt.outcome}, ended {attempt.ended_s:.3f}"
    )
