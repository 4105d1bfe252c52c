"""Check the record of a history. Pure, and without code of the package.

Every input ends in one of two ways: one output is visible and the input is acked, or neither. The
outcome that a transaction reported has to be true. `TransactionOutcomeUnknown` reports nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

Outcome: TypeAlias = Literal["committed", "aborted", "unknown"]


@dataclass(kw_only=True, slots=True)
class Attempt:
    """One transaction of one process.

    Attributes:
        number: Number of the attempt, which its outputs name.
        process: Process that began it.
        received: Time at which the process received each input of the group, in s.
        sent: Inputs whose outputs it sent.
        outcome: The report of the client. ``"unknown"`` if it had no answer, or was not asked.
        ended_s: Time from which on the application knew that the transaction has ended.
    """

    number: int
    process: int
    received: dict[int, float]
    sent: set[int] = field(default_factory=set)
    outcome: Outcome = "unknown"
    ended_s: float = math.inf

    def holds(self, number: int, when_s: float) -> bool:
        """True if an input was in this group at a time, and the end of it was not known."""
        received_s = self.received.get(number)
        return received_s is not None and received_s <= when_s <= self.ended_s


class Output(NamedTuple):
    """A visible output: its input, and the attempt that sent it."""

    number: int
    attempt: int


@dataclass(kw_only=True, slots=True)
class Record:
    """The record of a history.

    Attributes:
        inputs: Number of inputs. They are numbered from 0.
        keys: Number of keys: the key of an input is its number modulo this.
        ordered: The outputs of a key have the order of the inputs.
        finished: The history was run until every input should have been acked.
        attempts: All transactions.
        outputs: The messages that an ordinary reader finds at the end, in its order.
        left: Inputs that a new consumer of the subscription gets at the end.
        unloads: Unloads that were needed at the end. On Shared and Key_Shared the broker forgets
            who holds the entries of a refused ACK. If the answer is lost, the client does not know
            that, and only an unload brings the others again.
        problems: Errors of the run itself.
    """

    inputs: int
    keys: int = 1
    ordered: bool = False
    finished: bool = True
    attempts: list[Attempt] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    unloads: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation.

    Attributes:
        kind: Such as ``"doubled output"``.
        text: The details.
        number: The input; -1 if it concerns no single one.
    """

    kind: str
    text: str
    number: int = -1

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def check(record: Record) -> list[Finding]:
    """Return all violations."""
    findings = [Finding("run", problem) for problem in record.problems]
    findings += _counts(record)
    findings += _reports(record)
    if record.ordered:
        findings += _order(record)
    return findings


def _counts(record: Record) -> Iterator[Finding]:
    by_input: dict[int, list[int]] = {number: [] for number in range(record.inputs)}
    for output in record.outputs:
        if output.number not in by_input:
            yield Finding("foreign output", f"{output} has no input")
        else:
            by_input[output.number].append(output.attempt)
    left = Counter(record.left)
    for number, attempts in by_input.items():
        if len(attempts) > 1:
            text = f"input {number} has outputs of the attempts {attempts}"
            yield Finding("doubled output", text, number)
        if left[number] > 1:
            text = f"a new consumer gets input {number} {left[number]} times"
            yield Finding("doubled input", text, number)
        if attempts and left[number]:
            text = f"input {number} has an output of attempt {attempts[0]}, and is not acked"
            yield Finding("output without ack", text, number)
        elif not attempts and not left[number]:
            yield Finding("lost input", f"input {number} is acked, and has no output", number)
        elif not attempts and record.finished:
            text = f"input {number} is not acked, although the history was run to its end"
            yield Finding("input not done", text, number)


def _reports(record: Record) -> Iterator[Finding]:
    visible = {(output.attempt, output.number) for output in record.outputs}
    for attempt in record.attempts:
        for number in sorted(attempt.sent):
            seen = (attempt.number, number) in visible
            if attempt.outcome == "committed" and not seen:
                text = f"attempt {attempt.number} was committed, without its output of {number}"
                yield Finding("wrong report", text, number)
            if attempt.outcome == "aborted" and seen:
                text = f"attempt {attempt.number} was aborted, and its output of {number} is there"
                yield Finding("wrong report", text, number)


def _order(record: Record) -> Iterator[Finding]:
    """Yield outputs that come before those of earlier inputs of their key.

    This is allowed only if the earlier input was in another open transaction when the later one was
    received, because the broker delivers the inputs behind.
    """
    attempts = {attempt.number: attempt for attempt in record.attempts}
    by_key: dict[int, list[Output]] = {}
    for output in record.outputs:
        before = by_key.setdefault(output.number % record.keys, [])
        for later in before:
            if later.number <= output.number:
                continue
            own = attempts[later.attempt]
            when_s = own.received[later.number]
            if not any(
                each.holds(output.number, when_s) for each in record.attempts if each is not own
            ):
                text = (
                    f"the output of input {later.number} (attempt {later.attempt}) is before that "
                    f"of {output.number} (attempt {output.attempt})"
                )
                yield Finding("order", text, output.number)
        before.append(output)
