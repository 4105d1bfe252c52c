"""The meaning of a coordinator's refusal to end a transaction."""

from __future__ import annotations

import pytest

from pulsar_encore.transport.native.transactions.coordinators import EndAnswer, answer_of_status
from pulsar_encore.wire import pulsar_pb2 as pb

COMMIT, ABORT = pb.TxnAction.COMMIT, pb.TxnAction.ABORT


@pytest.mark.parametrize(
    ("action", "status", "answer"),
    [
        (COMMIT, "COMMITTED", EndAnswer.DONE),
        (COMMIT, "COMMITTING", EndAnswer.DONE),
        (COMMIT, "ABORTING", EndAnswer.OTHER_WAY),
        (ABORT, "ABORTED", EndAnswer.DONE),
        (ABORT, "ABORTING", EndAnswer.DONE),
        (ABORT, "COMMITTING", EndAnswer.OTHER_WAY),
    ],
)
def test_the_status_in_the_text_decides(
    action: pb.TxnAction.ValueType, status: str, answer: EndAnswer
) -> None:
    text = f"InvalidTxnStatus (broker: Expect Txn `(0,48)` to be in X status but it is in {status}"
    assert answer_of_status(text + " status)", action) is answer


def test_a_text_without_a_status_is_taken_for_the_other_way() -> None:
    assert answer_of_status("InvalidTxnStatus", COMMIT) is EndAnswer.OTHER_WAY
