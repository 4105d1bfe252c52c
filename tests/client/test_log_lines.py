"""The log of the C++ client: parsing its records, and matching broker reasons to calls."""

from __future__ import annotations

import logging

from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.transport.stock.cpp_log_lines import LogLine, Refusals, lines

HEAD = "2026-11-22 04:21:34.885 WARN  [140303244617408] ClientConnection:1731 | "
CONNECTION = "[127.0.0.1:57274 -> 127.0.0.1:16650] "


def refused(result: str, reason: str, request: int = 1) -> str:
    return (
        f"{CONNECTION}Received error response from server: {result} ({reason}) -- req_id: {request}"
    )


def refusals_of(*texts: str) -> Refusals:
    refusals = Refusals()
    for at, text in enumerate(texts):
        refusals.add(LogLine(at, text))
    return refusals


def test_a_log_line_has_its_level_file_and_line_number() -> None:
    data = f"{HEAD}it broke\n2026-11-22 04:21:35.001 ERROR [17] ConsumerImpl:383 | again\n"
    first, second = lines(data.encode(), 1000)
    assert first == LogLine(
        1000,
        "it broke",
        logging.WARNING,
        "ClientConnection",
        1731,
    )
    assert second == LogLine(
        1000 + len(HEAD) + len("it broke\n"),
        "again",
        logging.ERROR,
        "ConsumerImpl",
        383,
    )


def test_a_text_of_several_lines_is_one_record() -> None:
    schema = '{\n  "type" : "record"\n}'
    (line,) = lines(f"{HEAD}{refused('IncompatibleSchema', schema)}\n".encode(), 0)
    assert line.text.endswith(f"IncompatibleSchema ({schema}) -- req_id: 1")


def test_a_torn_log_line_is_a_warning_and_affects_no_other() -> None:
    torn, whole = lines(f"61 -- mess\n{HEAD}whole\n".encode() + b"\xff\n", 5)
    assert (torn.at, torn.text, torn.level) == (5, "61 -- mess", logging.WARNING)
    assert whole.text == "whole\n\N{REPLACEMENT CHARACTER}"


@given(st.lists(st.text(alphabet="ab |\n[]é", max_size=20), max_size=6))
def test_log_lines_are_split_without_losing_or_adding_text(texts: list[str]) -> None:
    data = "".join(f"{HEAD}{text}\n" for text in texts).encode()
    read = list(lines(data, 0))
    assert [line.text for line in read] == texts
    assert all(data[line.at :].startswith(HEAD.encode()) for line in read)


def test_reasons_of_refused_requests_and_lookups_are_found() -> None:
    refusals = refusals_of(
        refused("ConsumerBusy", "Exclusive consumer is already connected"),
        f"{CONNECTION}Failed partition-metadata lookup req_id: 14 error: TopicNotFound "
        "msg: Namespace not found",
        f"{CONNECTION}Failed lookup req_id: 3 error: AuthorizationError msg: no (such) permission",
        refused("ResultNotAllowedError", "not here (really)"),
    )
    assert refusals.take("ConsumerBusy", 0) == "Exclusive consumer is already connected"
    assert refusals.take("TopicNotFound", 0) == "Namespace not found"
    assert refusals.take("AuthorizationError", 0) == "no (such) permission"
    assert refusals.take("NotAllowedError", 0) == "not here (really)"


def test_an_error_of_the_clients_authentication_is_the_reason_of_all_its_calls() -> None:
    reason = (
        "Failed to create Connect command: RuntimeError: vault is sealed\n\nAt:\n  f.py(4): f\n"
    )
    refusals = refusals_of(f"{CONNECTION}{reason}")
    assert refusals.take("AuthenticationError", 0).startswith("Failed to create Connect command: R")
    assert "vault is sealed" in refusals.take("AuthenticationError", 0)
    assert refusals.take("ConnectError", 0) == ""


def test_a_reason_from_before_the_call_or_of_another_result_is_not_taken() -> None:
    refusals = refusals_of(
        refused("ConsumerBusy", "an older one"), refused("ProducerBusy", "another")
    )
    assert refusals.take("ConsumerBusy", 1) == ""
    assert refusals.take("TopicNotFound", 0) == ""


def test_a_log_line_without_a_reason_gives_none() -> None:
    refusals = refusals_of(
        f"{CONNECTION}Received error response from server: ConsumerBusy -- req_id: 1",
        refused("ConsumerBusy", ""),
        "Failed to create consumer: ConsumerBusy",
    )
    assert refusals.take("ConsumerBusy", 0) == ""


def test_calls_that_fail_one_after_the_other_get_their_own_reasons() -> None:
    refusals = refusals_of(refused("ConsumerBusy", "first"))
    assert refusals.take("ConsumerBusy", 0) == "first"
    refusals.add(LogLine(7, refused("ConsumerBusy", "second")))
    assert refusals.take("ConsumerBusy", 0) == "second"


def test_calls_with_different_reasons_get_no_reason() -> None:
    refusals = refusals_of(refused("ConsumerBusy", "one"), refused("ConsumerBusy", "two"))
    assert refusals.take("ConsumerBusy", 0) == ""
    assert refusals.take("ConsumerBusy", 0) == ""


def test_calls_with_the_same_reason_each_get_it() -> None:
    refusals = refusals_of(*[refused("ConsumerBusy", "taken", n) for n in range(3)])
    assert [refusals.take("ConsumerBusy", 0) for _ in range(4)] == ["taken"] * 3 + [""]


def test_equal_lookups_share_one_log_line_and_each_gets_its_reason() -> None:
    lookup = f"{CONNECTION}Failed partition-metadata lookup req_id: 1 error: TopicNotFound msg: "
    refusals = refusals_of(f"{lookup}no namespace")
    assert [refusals.take("TopicNotFound", 0) for _ in range(2)] == ["no namespace"] * 2
    refusals.add(LogLine(7, f"{lookup}no topic"))
    assert refusals.take("TopicNotFound", 0) == "no topic"
    assert refusals.take("TopicNotFound", 0) == ""  # the two lookups cannot be told apart
    assert refusals.take("TopicNotFound", 7) == "no topic"


def test_a_forgotten_reason_is_not_given_to_another_call() -> None:
    refusals = refusals_of(
        refused("IncompatibleSchema", "the producer's"),
        refused("IncompatibleSchema", "the consumer's"),
    )
    refusals.forget("IncompatibleSchema", "the producer's")
    assert refusals.take("IncompatibleSchema", 0) == "the consumer's"
    refusals.forget("IncompatibleSchema", "never logged")


def test_the_number_of_unused_refusals_is_bounded() -> None:
    refusals = refusals_of(*[refused("ConsumerBusy", str(n)) for n in range(1000)])
    assert refusals.take("ConsumerBusy", 999) == "999"
    assert refusals.take("ConsumerBusy", 0) == ""
