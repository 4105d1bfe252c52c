"""The cases of test_beside_java, with the reports of both clients and the truth."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Final

from .transaction_cases import (
    Play,
    abort_lost_and_acks_by_id,
    abort_with_five,
    acked_twice,
    answer_lost_until_the_timeout,
    around,
    batch_acked_again,
    batch_in_two_transactions,
    commit_lost_until_the_timeout,
    commit_twice,
    conflict,
    cumulative_abort,
    ended_by_id,
    held_send,
    hidden_by_another,
    late_ack,
    late_send,
    timeout_passes,
    unloaded,
)

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True)
class Result:
    """How a case ended.

    Attributes:
        reports: The calls that did not return "ok", and each end, such as "commit: ok".
        visible: The values that another client reads from the output topic. "hidden" stands for
            messages behind them that stay invisible.
        again: The input values that another consumer of the subscription gets.
        delivered: The values that the client delivered after an abort, if the case asks for them.
    """

    reports: tuple[str, ...]
    visible: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    delivered: tuple[str, ...] = ()

    @property
    def claim(self) -> str:
        """The outcome that the first end reports to the caller."""
        ends = [each for each in self.reports if each.startswith(("commit: ", "abort: "))]
        if not ends:
            return ABORTED  # it has not begun
        call, _, report = ends[0].partition(": ")
        if report in ("TransactionOutcomeUnknown", "TimeoutException"):
            return UNKNOWN
        if report == "TransactionStateError":
            return COMMITTED if call == "abort" else UNKNOWN
        return COMMITTED if call == "commit" and report == "ok" else ABORTED

    def in_words(self, case: Case) -> str:
        """Return a cell of the table."""
        told = ", ".join(f"`{each}`" for each in self.reports)
        if self.delivered:
            told += f"; then it delivers {' '.join(self.delivered)}"
        visible = " ".join(self.visible) or "nothing"
        again = " ".join(self.again) or "nothing"
        false = "" if agrees(case, self) else " **False.**"
        return f"{told}. Visible: {visible}. Comes again: {again}.{false}"


@dataclass(frozen=True)
class Case:
    """A case, and its results with both clients.

    Attributes:
        name: In plain English, for the table.
        why: The reason of the difference, for the table.
        kind: The type of the subscription.
        deduplicates: The output topic deduplicates.
        alone: It disturbs other cases, so it runs after them.
        sent: The values that the transaction of the first end sends.
        acked: The input that it acks.
        swept: Another ack is committed before the input is looked at.
        limit: Our report is known to be false.
    """

    name: str
    play: Play
    java: Result
    ours: Result
    why: str
    kind: str = "Shared"
    deduplicates: bool = False
    alone: bool = False
    sent: tuple[str, ...] = ("x",)
    acked: tuple[str, ...] = ("in",)
    swept: bool = False
    limit: bool = False


def agrees(case: Case, result: Result) -> bool:
    """Return True if the report of the first end is the truth, or does not claim to know it.

    A message that is there twice is never true.
    """
    visible, again = Counter(result.visible), set(result.again)
    if any(visible[each] > 1 for each in case.sent):
        return False
    if result.claim == COMMITTED:
        return all(visible[each] == 1 for each in case.sent) and not again.intersection(case.acked)
    if result.claim == ABORTED:
        return not any(visible[each] for each in case.sent) and again.issuperset(case.acked)
    return True


def result(*reports: str, visible: str = "", again: str = "", delivered: str = "") -> Result:
    return Result(reports, tuple(visible.split()), tuple(again.split()), tuple(delivered.split()))


_DONE: Final = result("commit: ok", visible="x")
_NOT_FOUND: Final = "commit: TransactionNotFoundException"
_JAVA_FAILED: Final = "commit: TransactionHasOperationFailedException"
_ABORTED: Final = "commit: TransactionAbortedError"
_UNKNOWN: Final = "commit: TransactionOutcomeUnknown"
_FIVE: Final = "a b c d e"
_SAME: Final = "no difference"

# docs/notes/transactions-beside-java.md#lost-commands-and-answers
LOST: Final = [
    *(
        Case(
            f"{command} is lost, {when}",
            around(command, loss),
            _DONE,
            _DONE,
            "no difference: both send it again",
        )
        for command in ("NEW_TXN", "ADD_PARTITION_TO_TXN", "ADD_SUBSCRIPTION_TO_TXN")
        for loss, when in (("before", "before it arrives"), ("after", "with its answer"))
    ),
    Case(
        "NEW_TXN is not answered",
        around("NEW_TXN", "swallow"),
        result("begin: TimeoutException", again="in"),
        result("begin: TransportTimeout", again="in"),
        "no difference: nothing has begun for the caller",
        sent=(),
    ),
    Case(
        "ADD_PARTITION_TO_TXN is not answered",
        around("ADD_PARTITION_TO_TXN", "swallow"),
        result("send: TimeoutException", _JAVA_FAILED, again="in"),
        result("send: TransportTimeout", _ABORTED, again="in"),
        _SAME,
    ),
    Case(
        "ADD_SUBSCRIPTION_TO_TXN is not answered",
        around("ADD_SUBSCRIPTION_TO_TXN", "swallow"),
        result("ack: TimeoutException", _JAVA_FAILED, again="in"),
        result("ack: TransportTimeout", _ABORTED, again="in"),
        _SAME,
    ),
    Case(
        "SEND is lost before it arrives",
        around("SEND", "before"),
        _DONE,
        result("send: NotConnected", _ABORTED, again="in"),
        "nobody knows that it has not arrived, so ours does not send it again",
    ),
    Case(
        "SEND arrives, and its receipt is lost",
        around("SEND", "after"),
        result("commit: ok", visible="x x"),
        result("send: NotConnected", _ABORTED, again="in"),
        "Java sends it again, so the transaction has it twice",
    ),
    Case(
        "the same, on a topic that deduplicates",
        around("SEND", "after"),
        _DONE,
        _DONE,
        "no difference: the broker drops the second one",
        deduplicates=True,
    ),
    Case(
        "the first SEND of a producer is lost before it arrives, on a topic that deduplicates",
        around("SEND", "before"),
        _DONE,
        result("send: NotConnected", _ABORTED, again="in"),
        "the broker tells that a topic deduplicates only when it has a message of the producer",
        deduplicates=True,
    ),
    Case(
        "SEND is not answered",
        around("SEND", "swallow"),
        result("send: TimeoutException", _JAVA_FAILED, again="in"),
        result("send: TransportTimeout", _ABORTED, again="in"),
        _SAME,
    ),
    *(
        Case(
            f"ACK is lost, {when}",
            around("ACK", loss),
            result("ack: ConnectException", _JAVA_FAILED, again="in"),
            result("ack: NotConnected", _ABORTED, again="in"),
            "no difference: a second ACK could be a conflict with the first one",
        )
        for loss, when in (("before", "before it arrives"), ("after", "with its answer"))
    ),
    Case(
        "ACK is not answered",
        around("ACK", "swallow"),
        result("ack: TimeoutException", _JAVA_FAILED, again="in"),
        result("ack: TransportTimeout", _ABORTED, again="in"),
        _SAME,
    ),
    Case(
        "COMMIT is lost before it arrives",
        around("END_TXN", "before"),
        _DONE,
        _DONE,
        "no difference: both send it again",
    ),
    Case(
        "COMMIT arrives, and its answer is lost",
        around("END_TXN", "after"),
        result(_NOT_FOUND, visible="x"),
        _DONE,
        "the coordinator has forgotten the transaction; ours finds its message in the topic",
    ),
    Case(
        "the same, with acks only",
        around("END_TXN", "after", output=False),
        result(_NOT_FOUND),
        result("commit: ok"),
        "before the timeout only a commit can have removed it",
        sent=(),
    ),
    Case(
        "COMMIT is not answered, and commit() is called again",
        commit_twice,
        result("commit: TimeoutException", _NOT_FOUND, visible="x"),
        result("commit: ok", "commit: ok", visible="x"),
        "ours asks until the transaction's timeout, and then the topic",
    ),
    Case(
        "no COMMIT is answered until the transaction's timeout",
        partial(answer_lost_until_the_timeout, output=True),
        result("commit: TimeoutException", visible="x"),
        _DONE,
        "the topic tells",
    ),
    Case(
        "the same, with acks only",
        partial(answer_lost_until_the_timeout, output=False),
        result("commit: TimeoutException"),
        result(_UNKNOWN),
        "nobody can tell: `TransactionOutcomeUnknown` says so",
        sent=(),
    ),
    Case(
        "COMMIT does not arrive before the transaction's timeout",
        partial(commit_lost_until_the_timeout, output=True),
        result("commit: TimeoutException", visible="plain", again="in"),
        result(_ABORTED, visible="plain", again="in"),
        "the topic tells, because another message follows",
    ),
    Case(
        "the same, with acks only",
        partial(commit_lost_until_the_timeout, output=False),
        result("commit: TimeoutException", again="in"),
        result(_UNKNOWN, again="in"),
        "nobody can tell",
        sent=(),
    ),
    Case(
        "the answer to COMMIT is lost, and a stranger's older transaction hides the topic",
        hidden_by_another,
        result(_NOT_FOUND, visible="older x"),
        result(_UNKNOWN, visible="older x"),
        "the topic does not tell while the older one is open",
    ),
    Case(
        "ABORT is lost before it arrives",
        around("END_TXN", "before", "abort"),
        result("abort: ok", again="in"),
        result("abort: ok", again="in"),
        _SAME,
    ),
    Case(
        "ABORT arrives, and its answer is lost",
        around("END_TXN", "after", "abort"),
        result("abort: TransactionNotFoundException", again="in"),
        result("abort: ok", again="in"),
        "an abort that finds no transaction after a lost answer has done its work",
    ),
    Case(
        "ABORT is not answered",
        around("END_TXN", "swallow", "abort"),
        result("abort: TimeoutException", again="in"),
        result("abort: ok", again="in"),
        "ours asks again",
    ),
]

# docs/notes/transactions-beside-java.md#aborts
ABORTS: Final = [
    *(
        Case(
            f"two of five messages are acked and aborted on {kind}",
            abort_with_five,
            result("abort: ok", again=_FIVE, delivered=f"c d e {_FIVE}"),
            result("abort: ok", again=_FIVE, delivered=_FIVE),
            "the broker delivers all unacked messages behind the queue; ours clears its queue",
            kind=kind,
            sent=(),
            acked=("a", "b"),
        )
        for kind in ("Exclusive", "Failover")
    ),
    *(
        Case(
            f"two of five messages are acked and aborted on {kind}",
            abort_with_five,
            result("abort: ok", again=_FIVE, delivered=_FIVE),
            result("abort: ok", again=_FIVE, delivered=_FIVE),
            "no difference, in any order",
            kind=kind,
            sent=(),
            acked=("a", "b"),
        )
        for kind in ("Shared", "Key_Shared")
    ),
    *(
        Case(
            f"a cumulative ack of a b c is aborted on {kind}, and the next message is acked",
            cumulative_abort,
            result("abort: ok", "commit: ok", again="e", delivered="d"),
            result("abort: ok", "commit: ok", again="b c d e", delivered="a"),
            "the broker does not deliver them again by itself, so Java loses them; ours asks",
            kind=kind,
            sent=(),
            acked=("b", "c"),
        )
        for kind in ("Exclusive", "Failover")
    ),
]

# docs/notes/transactions-beside-java.md#late-messages-and-ends-by-id
BY_ID: Final = [
    Case(
        "it is committed by its id, then by its owner; no acks",
        ended_by_id("commit", "commit", acks=False),
        result(_NOT_FOUND, visible="x plain", again="in"),
        result("commit: ok", visible="x plain", again="in"),
        "the topic tells",
        acked=(),
    ),
    Case(
        "the same, with an ack",
        ended_by_id("commit", "commit"),
        result(_NOT_FOUND, visible="x plain"),
        result(_UNKNOWN, visible="x plain"),
        "nobody can tell if an ack came before the commit",
    ),
    Case(
        "it is committed by its id, and aborted by its owner",
        ended_by_id("commit", "abort"),
        result("abort: TransactionNotFoundException", visible="x plain"),
        result("abort: TransactionStateError", visible="x plain"),
        "the text of our error says that it was committed",
    ),
    Case(
        "it is aborted by its id, and committed by its owner",
        ended_by_id("abort", "commit"),
        result(_NOT_FOUND, visible="plain", again="in"),
        result(_ABORTED, visible="plain", again="in"),
        "the topic tells",
    ),
    Case(
        "the same, and nothing follows in the topic",
        ended_by_id("abort", "commit", behind=False),
        result(_NOT_FOUND, again="in"),
        result(_UNKNOWN, again="in"),
        "the topic does not tell",
    ),
    Case(
        "it is aborted by its id, and by its owner",
        ended_by_id("abort", "abort"),
        result("abort: TransactionNotFoundException", visible="plain", again="in"),
        result("abort: ok", visible="plain", again="in"),
        "the topic tells",
    ),
    *(
        Case(
            f"it is committed by its id, {what}",
            play,
            result(_NOT_FOUND, visible="x plain hidden", again="in"),
            result(_UNKNOWN, visible="x plain hidden", again="in"),
            "the broker stores the message and hides the topic behind it; ours looks for the last "
            "message too",
            sent=("x", "late"),
            acked=(),
        )
        for what, play in (
            ("and then its owner sends", late_send("commit")),
            ("while a message is on its way", held_send("commit")),
        )
    ),
    *(
        Case(
            f"it is aborted by its id, {what}",
            play,
            result(_NOT_FOUND, visible="plain", again="in"),
            result(_ABORTED, visible="plain", again="in"),
            "the broker drops the message; the topic tells",
            sent=("x", "late"),
            acked=(),
        )
        for what, play in (
            ("and then its owner sends", late_send("abort")),
            ("while a message is on its way", held_send("abort")),
        )
    ),
    Case(
        "it is committed by its id, and then its owner acks",
        late_ack,
        result(_NOT_FOUND, visible="x", again="late"),
        result(_UNKNOWN, visible="x", again="late"),
        "the late ack is pending until the next commit on the subscription, and is dropped then",
        acked=("in", "late"),
        swept=True,
    ),
    Case(
        "it only acks; COMMIT is lost before it arrives, and another client aborts it by its id",
        abort_lost_and_acks_by_id,
        result(_NOT_FOUND, again="in"),
        result("commit: ok", again="in"),
        "ours takes its own lost COMMIT for the reason; the message comes again, and nothing is "
        "lost. Do not end such transactions by their ids",
        sent=(),
        limit=True,
    ),
]

# docs/notes/transactions-beside-java.md#conflicts-time-and-moves
OTHERS: Final = [
    Case(
        "two transactions ack one message, and the second one also sends",
        conflict,
        result("ack 2: TransactionConflictException", _JAVA_FAILED, "commit: ok"),
        result("ack 2: TransactionConflict", "commit: ok", "commit: ok", visible="x"),
        "Java can only abort the second one; ours leaves it to the caller, who has seen the error",
        acked=(),
    ),
    Case(
        "one transaction acks a message twice",
        acked_twice,
        result("ack: TransactionConflictException", _JAVA_FAILED, again="in"),
        _DONE,
        "ours remembers the first ack",
    ),
    Case(
        "a batch is pending in two transactions, and a third one acks one message of it again",
        batch_acked_again,
        result("commit: ok", "commit: ok", "commit: ok", visible="x"),
        result(
            *("ack again: TransactionConflict", "commit: ok", "commit: ok", "commit: ok"),
            visible="x",
        ),
        "the broker misses the conflict, so Java handles the message twice; ours refuses the ack",
        sent=(),
        acked=("a",),
    ),
    Case(
        "of two transactions that ack parts of a batch, the first one is aborted",
        batch_in_two_transactions,
        result("abort: ok", "commit: ok", again="a"),
        result("abort: ok", "commit: ok", again="a"),
        _SAME,
        sent=(),
        acked=("a",),
    ),
    Case(
        "the timeout passes, and its owner goes on",
        timeout_passes,
        result("late send: PulsarClientException", "commit: InvalidTxnStatusException", again="in"),
        result("late send: TransactionStateError", _ABORTED, again="in"),
        "no difference: both refuse without asking",
    ),
    Case(
        "both topics are unloaded before the commit",
        unloaded("output", "input"),
        _DONE,
        _DONE,
        _SAME,
    ),
    Case(
        "the coordinator is unloaded before the commit",
        unloaded("coordinator"),
        _DONE,
        _DONE,
        _SAME,
        alone=True,
    ),
]

TABLES: Final = {
    "Lost commands and answers": LOST,
    "Aborts": ABORTS,
    "Late messages and ends by id": BY_ID,
    "Conflicts, time and moves": OTHERS,
}
CASES: Final = [case for cases in TABLES.values() for case in cases]


def table(cases: list[Case]) -> str:
    """Return the table of some cases in Markdown."""
    rows = ["| case | Java's client | ours | why |", "|---|---|---|---|"]
    for case in cases:
        cells = (case.name, case.java.in_words(case), case.ours.in_words(case), case.why)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
