"""Answers of the web service about transactions, as Pulsar 4.2.4 gave them."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_encore.admin import (
    AckedSubscription,
    CoordinatorStats,
    ProducedTopic,
    WebService,
)
from pulsar_encore.admin.transactions import (
    coordinator_numbers,
    coordinator_stats,
    transaction_list,
    transaction_metadata,
)
from pulsar_encore.errors import (
    LookupError,
    TransactionNotEnabledError,
    TransactionNotFound,
    TransportError,
    exception_of_result,
)
from pulsar_encore.options import ClientOptions
from pulsar_encore.transport.native.lookup.http_lookup import HttpLookup
from pulsar_encore.transport.native.lookup.http_refusal import refusal
from pulsar_encore.values.transaction_id import TxnId

METADATA: dict[str, Any] = {
    "txnId": "(0,1)",
    "status": "OPEN",
    "openTimestamp": 1795863742677,
    "timeoutAt": 120000,
    "producedPartitions": {
        "persistent://public/default/out": {"startPosition": "5:0", "aborted": False},
        "persistent://public/default/idle": {"aborted": False},
    },
    "ackedPartitions": {
        "persistent://public/default/in": {"single": {}, "all": {"cumulativeAckPosition": "8:0"}}
    },
}
#: With a topic that was deleted; the trace is cut.
SERVER_ERROR = (
    rb'{"reason":"\n --- An unexpected error occurred in the server ---\n\nMessage: Topic not '
    rb"found persistent://public/default/idle\n\nStacktrace:\n\norg.apache.pulsar.client.admin."
    rb'PulsarAdminException$NotFoundException: Topic not found"}'
)


def test_a_transaction_has_its_topics_and_subscriptions_in_order() -> None:
    found = transaction_metadata(METADATA)
    assert (found.id, found.status, found.owner) == (TxnId(0, 1), "OPEN", None)
    assert found.topics == (
        ProducedTopic("persistent://public/default/idle", None),
        ProducedTopic("persistent://public/default/out", (5, 0)),
    )
    assert found.subscriptions == (
        AckedSubscription("persistent://public/default/in", "all", "8:0"),
        AckedSubscription("persistent://public/default/in", "single", None),
    )


def test_timeout_at_is_a_duration() -> None:
    found = transaction_metadata(METADATA)
    assert found.timeout_ms == 120_000
    assert found.deadline_ms == 1795863862677


def test_a_topic_without_an_answer_of_its_own_is_listed() -> None:
    topic = "persistent://public/default/out"
    found = transaction_metadata({**METADATA, "producedPartitions": {topic: None}})
    assert found.topics == (ProducedTopic(topic, None),)
    found = transaction_metadata({"txnId": "(1,2)", "ackedPartitions": 5})
    assert (found.topics, found.subscriptions) == ((), ())


def test_transactions_are_listed_with_the_oldest_first() -> None:
    younger = {**METADATA, "txnId": "(0,9)"}
    older = {**METADATA, "txnId": "(1,4)", "openTimestamp": METADATA["openTimestamp"] - 1}
    answer = {each["txnId"]: each for each in (younger, METADATA, older)}
    assert [each.id for each in transaction_list(answer)] == [(1, 4), (0, 1), (0, 9)]
    assert transaction_list({}) == ()


@pytest.mark.parametrize("answer", [{}, {"txnId": "soon"}])
def test_an_answer_without_an_id_is_refused(answer: dict[str, object]) -> None:
    with pytest.raises((KeyError, ValueError)):
        transaction_metadata(answer)


def test_coordinators_have_numbers_and_counters() -> None:
    listed = [{"id": 1, "brokerServiceUrl": "pulsar://b:6650"}, {"id": 0}]
    assert coordinator_numbers(listed) == (0, 1)
    stats = {
        "state": "Ready",
        "leastSigBits": 2,
        "lowWaterMark": 0,
        "ongoingTxnSize": 2,
        "recoverStartTime": 1795863742430,
        "recoverEndTime": 1795863742479,
    }
    assert coordinator_stats(stats) == CoordinatorStats("Ready", last=2, ended=0, open=2)
    assert coordinator_stats({"leastSigBits": -1}).last == -1
    with pytest.raises(TypeError):
        coordinator_numbers({})


class Answers:
    """Replaces the HTTP client: notes each request, and answers with an object or an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []

        async def get(_: HttpLookup, path: str, query: Any, *__: object) -> object:
            self.asked.append((path, dict(query)))
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(HttpLookup, "get", get)


@pytest.fixture
async def web() -> Any:
    service = WebService(ClientOptions(service_url="pulsar://localhost"), "http://localhost:8080")
    yield service
    service.close()


async def test_the_number_in_the_path_never_hides_a_transaction(
    web: WebService, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The broker compares it with the timeouts of transactions, not with their ages.
    http = Answers(monkeypatch, {"(0,1)": METADATA})
    [found] = await web.open_transactions(0)
    assert found.id == TxnId(0, 1)
    assert http.asked == [("/admin/v3/transactions/slowTransactions/0", {"coordinatorId": "0"})]


async def test_an_unknown_id_is_a_transaction_not_found(
    web: WebService, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = b'{"reason":"The transaction with this txdID `(0,99)`not found "}'
    http = Answers(monkeypatch, refusal(404, answer, "transaction (0,99)", "none"))
    with pytest.raises(TransactionNotFound, match=r"\(0,99\)"):
        await web.transaction(TxnId(0, 99))
    assert http.asked == [("/admin/v3/transactions/transactionMetadata/0/99", {})]


@pytest.mark.parametrize("txn_id", [TxnId(1 << 31, 0), TxnId(0, 1 << 63)])
async def test_an_id_that_java_cannot_have_is_not_asked_for(
    web: WebService, monkeypatch: pytest.MonkeyPatch, txn_id: TxnId
) -> None:
    http = Answers(monkeypatch, {})
    with pytest.raises(TransactionNotFound, match="no coordinator gives such an id"):
        await web.transaction(txn_id)
    assert http.asked == []


async def test_a_broker_without_transactions_is_named(
    web: WebService, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = b'{"reason":"This Broker is not configured with transactionCoordinatorEnabled=true."}'
    Answers(monkeypatch, refusal(503, answer, "transaction coordinators", "none"))
    with pytest.raises(TransactionNotEnabledError, match=r"set transactionCoordinatorEnabled=true"):
        await web.coordinators()


async def test_the_trace_of_an_error_of_the_server_is_left_out(
    web: WebService, monkeypatch: pytest.MonkeyPatch
) -> None:
    Answers(monkeypatch, refusal(500, SERVER_ERROR, "transaction (0,1)", "none"))
    with pytest.raises(LookupError) as raised:
        await web.transaction(TxnId(0, 1))
    text = "transaction (0,1): HTTP 500: Topic not found persistent://public/default/idle"
    assert str(raised.value) == text


async def test_another_refusal_stays_as_it_is(
    web: WebService, monkeypatch: pytest.MonkeyPatch
) -> None:
    Answers(monkeypatch, exception_of_result("ServiceNotReady", "HTTP 503: starting"))
    with pytest.raises(TransportError, match="starting") as raised:
        await web.coordinator_stats(0)
    assert not isinstance(raised.value, TransactionNotFound)
