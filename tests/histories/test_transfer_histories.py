"""Histories with transactions on the development broker: `make transfers` plays many more."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from pulsar_encore import Consumer, Producer
from tests.harness.transfers.__main__ import main
from tests.harness.transfers.transfer_checker import Finding, Record
from tests.harness.transfers.transfer_plan import Action, End, Kind, Plan, generate
from tests.harness.transfers.transfer_player import play
from tests.harness.transfers.transfer_report import Verdict, full, play_seed

SEEDS = range(1, 31)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_input_has_one_output_or_comes_again(seed: int) -> None:
    verdict = play_seed(seed)
    if verdict.findings:
        pytest.fail(full(verdict, generate(seed)), pytrace=False)


def test_a_seed_plays_the_same_history_each_time() -> None:
    assert play(generate(7)) == play(generate(7))


@pytest.mark.parametrize(
    ("owner", "call", "expected"),
    [
        (Consumer, "acknowledge", "lost input"),
        (Producer, "send", "doubled output"),
        (Producer, "send_async", "doubled output"),
    ],
)
def test_a_client_whose_calls_are_not_in_the_transaction_is_found(
    owner: type, call: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(owner, call)

    def outside(*args: Any, txn: object = None, **options: Any) -> Any:
        return original(*args, **options)

    monkeypatch.setattr(owner, call, outside)
    kinds = {finding.kind for seed in range(2, 8) for finding in play_seed(seed).findings}
    assert expected in kinds


def _features(plan: Plan) -> set[str]:
    found: set[str] = {plan.kind, *(each.do for each in plan.actions)}
    found |= {turn.end for turns in plan.turns for turn in turns}
    named = {
        "batches": plan.batch > 0,
        "cumulative acks": plan.cumulative,
        "partitions": plan.partitions > 0,
        "three processes": len(plan.turns) > 2,
        "ack timeouts": plan.ack_timeout_s > 0,
        "fences": plan.fences,
        "early stops": plan.stops_early,
    }
    return found | {name for name, is_there in named.items() if is_there}


def test_the_seeds_contain_each_kind_of_history() -> None:
    found = set[str]().union(*(_features(generate(seed)) for seed in SEEDS))
    assert found == {
        *get_args(Kind),
        *get_args(End),
        *get_args(Action),
        "batches",
        "cumulative acks",
        "partitions",
        "three processes",
        "ack timeouts",
        "fences",
        "early stops",
    }


def test_the_plans_cut_each_command_of_a_transaction_on_both_sides() -> None:
    faults = {
        (fault.command, fault.kind) for seed in range(1, 501) for fault in generate(seed).faults
    }
    for request in ("NEW_TXN", "ADD_PARTITION_TO_TXN", "ADD_SUBSCRIPTION_TO_TXN", "ACK", "END_TXN"):
        answer = f"{request}_RESPONSE"
        assert {(request, "close_before"), (request, "close_after"), (answer, "drop")} <= faults
        assert (answer, "close_before") in faults
    assert {("SEND", "close_before"), ("SEND_RECEIPT", "close_before")} <= faults


def test_batches_and_cumulative_acks_have_one_consumer() -> None:
    for seed in range(1, 501):
        plan = generate(seed)
        if plan.batch or plan.cumulative:
            assert len(plan.turns) == 1
            assert "isolate" not in {turn.end for turn in plan.turns[0]}


def test_a_failing_history_names_its_seed_and_the_command() -> None:
    verdict = Verdict(9, [Finding("lost input", "input 3 is acked", 3)], Record(inputs=4))
    text = full(verdict, generate(9))
    assert text.startswith("seed 9: 4 inputs")
    assert "lost input: input 3 is acked" in text
    assert text.endswith("python -m tests.harness.transfers --show --seeds 9")


@pytest.mark.parametrize("seeds", ["abc", "1,,2", "5-1", "3-"])
def test_invalid_seeds_are_a_one_line_error(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--seeds={seeds}"]) == 2
    out, problems = capsys.readouterr()
    assert out == ""
    assert problems.count("\n") == 1


def test_the_command_plays_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--at-once", "1"]) == 0
    assert "1 histories: " in capsys.readouterr().out
