"""A sample of the cases on the development broker; `make faults` plays a thousand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_encore.testing import run
from pulsar_encore.transport.interface import Delivery
from pulsar_encore.transport.native.consumer.topic_events import TopicEvents
from tests.harness.faults.__main__ import failure, in_memory, main
from tests.harness.faults.cases import generate
from tests.harness.faults.networks import Memory
from tests.harness.faults.play import Patience, play

SAMPLE = range(1, 41)
SHORT = Patience(stuck=100.0, closing=100.0)


@pytest.mark.parametrize("seed", SAMPLE)
def test_no_connection_fault_loses_a_message(seed: int) -> None:
    verdict = in_memory(seed)
    if verdict.findings:
        pytest.fail(failure(verdict, "dev"), pytrace=False)


def test_a_client_that_loses_a_message_has_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = next(
        case
        for case in map(generate, range(1, 200))
        if case.kind == "Shared" and not (case.letters or case.second or case.seek or case.rewind)
    )
    deliver = TopicEvents.on_deliveries
    lost: list[Delivery] = []

    def lossy(self: TopicEvents, deliveries: list[Delivery]) -> None:
        if not lost and len(deliveries) > 1:
            lost.append(deliveries.pop())
        deliver(self, deliveries)

    monkeypatch.setattr(TopicEvents, "on_deliveries", lossy)

    async def lose() -> list[str]:
        verdict = await play(replace(plain, faults=()), Memory(), "lossy", SHORT)
        return verdict.findings

    findings = run(lose())
    assert lost
    assert findings[0].startswith("stuck: ")


def test_the_command_plays_the_given_cases_and_reports_their_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--cases", "1-2,5", "--at-once", "1"]) == 0
    assert "3 cases" in capsys.readouterr().out


def test_invalid_cases_are_a_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cases", "abc"]) == 2
    assert "--cases abc is not a list of cases" in capsys.readouterr().err
