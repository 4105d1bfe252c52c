"""The demonstration: every figure is measured in the run, and failed measurements are reported."""

from __future__ import annotations

import asyncio
import io
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pulsar_encore import cli
from pulsar_encore.cli.demo import pending_memory, throughput, two_delays
from pulsar_encore.cli.demo import run as demo
from pulsar_encore.cli.demo.killed_nack import killed_after
from pulsar_encore.cli.demo.measurement import MeasurementError, measure
from pulsar_encore.cli.demo.scenario import SIDES, Scenario, all_sides, attempt, row_of, seconds
from pulsar_encore.cli.demo.workload import Figures, resident_mb
from pulsar_encore.devbroker import BrokerSettings, run_in_thread

COUNT = 20_000


class Fake:
    """Return measurements from a table. A measurement that the table lacks fails."""

    def __init__(self, answers: Mapping[tuple[str, str], Figures]) -> None:
        self.answers = answers

    async def __call__(
        self,
        side: str,
        name: str,
        *,
        within_s: float,
        transport: str = "stock",
        topic: str = "",
        **parameters: Any,
    ) -> Figures:
        try:
            return self.answers[side, transport]
        except KeyError:
            raise MeasurementError("the broker went away") from None


def _scenario(title: str = "what", **changes: Any) -> Scenario:
    settings: dict[str, Any] = {
        "labels": tuple(SIDES),
        "measure": all_sides("it", within_s=5),
        "cell": lambda figures, column: f"{figures[column]['it']:.0f}",
    }
    return Scenario(title=title, **{**settings, **changes})


async def test_a_row_contains_the_measured_figures() -> None:
    answers = {("stock", "stock"): 7.0, ("encore", "stock"): 8.0, ("encore", "native"): 9.0}
    scenario = _scenario()
    row = row_of(scenario, await scenario.measure(Fake({k: {"it": v} for k, v in answers.items()})))
    assert (row.stock, row.encore, row.native, row.missing) == ("7", "8", "9", ())


async def test_a_failed_measurement_replaces_only_its_own_figure() -> None:
    fake = Fake({("encore", "stock"): {"it": 8.0}})
    scenario = _scenario()
    row = row_of(scenario, await scenario.measure(fake))
    assert row.stock == "could not be measured: the broker went away"
    assert row.encore == "8"
    assert row.native == "could not be measured: the broker went away"
    assert row.missing == ("stock", "native")


async def test_throughput_measurements_alternate_and_the_median_is_reported() -> None:
    rates = iter([10.0, 100.0, 60.0, 200.0, 30.0, 90.0, 90.0, 300.0, 20.0, 110.0, 70.0, 250.0])
    order: list[tuple[str, str]] = []

    async def run(side: str, name: str, *, transport: str = "stock", **_: Any) -> Figures:
        if name == "fill":
            return {"seconds": 1.0}
        order.append((name.removeprefix("throughput"), transport))
        return {"per_s": next(rates), "cpu_us": 1.0}

    outcomes = await throughput.compare(run, rounds=3, messages=10, batch=5, topic="t")
    turn = [("_asyncio", "stock"), ("_sync", "stock"), ("", "stock"), ("", "native")]
    assert order == turn * 3
    medians = {"stock asyncio": 20.0, "stock sync": 100.0, "encore": 70.0, "native": 250.0}
    assert outcomes == {label: {"per_s": each, "cpu_us": 1.0} for label, each in medians.items()}
    row = row_of(throughput.SCENARIO, outcomes)
    assert "3.5 x asyncio, 0.7 x synchronous" in row.encore
    assert "12.5 x asyncio, 2.5 x synchronous" in row.native


async def test_without_messages_no_throughput_is_reported() -> None:
    row = row_of(
        throughput.SCENARIO,
        await throughput.compare(Fake({}), rounds=1, messages=10, batch=5, topic="t"),
    )
    assert row.missing == ("stock asyncio", "stock sync", "encore", "native")
    assert row.encore.startswith("could not be measured")


async def test_one_failed_round_leaves_no_figure() -> None:
    calls = iter([True, False])

    async def run(side: str, name: str, *, transport: str = "stock", **_: Any) -> Figures:
        if transport == "native" and not next(calls):
            raise MeasurementError("crashed")
        return {"per_s": 1.0, "cpu_us": 1.0}

    outcomes = await throughput.compare(run, rounds=2, messages=10, batch=5, topic="t")
    row = row_of(throughput.SCENARIO, outcomes)
    assert row.missing == ("native",)
    assert row.stock == "asyncio 1/s, synchronous loop 1/s"


def _run(scenario: Scenario) -> tuple[int, str]:
    console = Console(file=io.StringIO(), width=240)
    code = demo.run_demo("pulsar://nowhere", scenarios=[scenario], console=console)
    return code, console.file.getvalue()  # type: ignore[attr-defined]


def _answering(outcomes: Mapping[str, Any]) -> Any:
    async def answer(_: Any) -> Mapping[str, Any]:
        return outcomes

    return answer


def test_the_table_is_printed_and_the_exit_code_is_0() -> None:
    outcomes = {"stock": {"it": 7.0}, "encore": {"it": 8.0}, "native": {"it": 9.0}}
    code, text = _run(_scenario("a [bold]question?", measure=_answering(outcomes)))
    assert code == 0
    assert "a [bold]question?" in text
    assert "Not measured" not in text


@pytest.mark.parametrize("alone", [True, False])
def test_a_missing_figure_is_reported_and_sets_the_exit_code(alone: bool) -> None:
    outcomes = {
        "stock": MeasurementError("no result in 5 s"),
        "encore": {"it": 8.0},
        "native": {"it": 9.0},
    }
    code, text = _run(_scenario("which", measure=_answering(outcomes), alone=alone))
    assert code == 1
    assert "no result in 5 s" in text
    assert "Not measured (stock): which" in text


@pytest.mark.parametrize(
    ("label", "lost", "calls"),
    [("stock", 1, 2), ("stock", 2, 2), ("encore", 1, 1), ("native", 1, 1)],
)
def test_a_crashed_stock_process_is_retried_and_the_retry_is_reported(
    monkeypatch: pytest.MonkeyPatch, label: str, lost: int, calls: int
) -> None:
    """Only processes of the stock transport are retried.

    A crash of ours is a defect and stays in the table.
    """
    asked: list[tuple[str, str]] = []

    async def measure_one(which: str, *_: Any, transport: str, **__: Any) -> Figures:
        asked.append((which, transport))
        if asked[-1] == SIDES[label] and asked.count(SIDES[label]) <= lost:
            raise MeasurementError("terminate called", lost=True)
        return {"it": 7.0}

    monkeypatch.setattr(demo, "measure", measure_one)
    code, text = _run(_scenario())
    assert asked.count(SIDES[label]) == calls
    assert (code == 0) is (lost < calls)
    assert "terminate called" in text
    assert ("(in two tries; the first: terminate called)" in text) is (label == "stock")
    assert ("could not be measured" in text) is (code == 1)


def test_a_wrong_measurement_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    async def measure_one(which: str, *_: Any, transport: str, **__: Any) -> Figures:
        asked.append((which, transport))
        raise MeasurementError("no such option")

    monkeypatch.setattr(demo, "measure", measure_one)
    code, text = _run(_scenario())
    assert (code, sorted(asked)) == (1, sorted(SIDES.values()))
    assert "two tries" not in text


@pytest.mark.parametrize("url", ["127.0.0.1", "pulsar://127.0.0.1:port", None])
def test_an_invalid_or_silent_address_is_a_one_line_error(
    url: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # no server listens at this port
        address = url or f"pulsar://127.0.0.1:{silent.getsockname()[1]}"
        assert cli.main(["demo", "--url", address]) == 2
    out, problems = capsys.readouterr()
    assert out == ""
    assert address in problems
    assert problems.count("\n") == 1


def test_an_event_that_never_occurred_has_no_number() -> None:
    assert seconds(None) == "not while we waited"
    assert seconds(1.26) == "1.3 s"


def test_memory_of_this_process_is_measured() -> None:
    before = resident_mb()
    block = bytearray(50_000_000)
    # memory is resident once written, and no second copy exists
    for page in range(0, len(block), 4096):
        block[page] = 1
    assert resident_mb() - before == pytest.approx(50, abs=15)
    assert len(block) == 50_000_000


def test_scenarios_contain_no_fixed_figures() -> None:
    """Cells are text around measured values. Without measurements they contain no figure."""
    for scenario in demo.SCENARIOS:
        row = row_of(scenario, {})
        assert row.missing == scenario.labels
        assert row.native.startswith("could not be measured")
        # a part without a measurement has no figure in its text
        for cell in (row.stock, row.encore):
            assert cell.startswith("could not be measured") or scenario.labels == ("native",)
            assert not any(letter.isdigit() for letter in cell)


def test_only_the_stock_side_imports_the_stock_client() -> None:
    folder = Path(demo.__file__).parent
    importing = {
        path.name
        for path in folder.glob("*.py")
        if any(
            line.startswith(("import pulsar\n", "import pulsar.", "from pulsar "))
            for line in path.read_text().splitlines(keepends=True)
        )
    }
    assert importing == {"stock_side.py"}


async def test_a_process_is_killed_for_real() -> None:
    with run_in_thread(BrokerSettings(record=False)) as broker:
        sides = [("stock", "stock", False), ("encore", "native", True), ("encore", "native", False)]
        stock, kept, bare = await asyncio.gather(
            *(
                measure(
                    *(side, "killed_nack", broker.url, f"killed-{side}-{keep}"),
                    within_s=60,
                    transport=transport,
                    delay_s=4.0,
                    keep=keep,
                )
                for side, transport, keep in sides
            )
        )
    assert kept["back_s"] is not None and kept["back_s"] > 3  # counted from the kill
    assert kept["attempt"] == 2
    for lost in (stock, bare):
        assert lost["back_s"] is not None and lost["back_s"] < 2


def test_a_process_that_ends_before_the_kill_is_an_error() -> None:
    def fail() -> None:
        os._exit(3)

    with pytest.raises(RuntimeError, match="ended by itself"):
        killed_after(fail)


async def test_all_sides_can_be_measured() -> None:
    """The measurements are small, but use real processes, a broker and all clients."""
    with run_in_thread(BrokerSettings(record=False)) as broker:
        delays = {"short_s": 0.4, "long_s": 1.0}
        memory = {"count": COUNT, "delay_s": 60.0}
        sides = SIDES.items()
        work = [
            attempt(
                measure(
                    *(side, name, broker.url, f"{name}-{label}"),
                    within_s=30,
                    transport=transport,
                    **parameters,
                )
            )
            for name, parameters in (("two_delays", delays), ("pending_memory", memory))
            for label, (side, transport) in sides
        ]
        results: list[Any] = await asyncio.gather(*work)
    assert not [each for each in results if isinstance(each, Exception)], results
    results_by_side = dict(zip(SIDES, results[:3], strict=True))
    weights = dict(zip(SIDES, results[3:], strict=True))
    for label in ("encore", "native"):
        assert results_by_side[label]["short_s"] >= delays["short_s"]
        assert results_by_side[label]["long_s"] >= delays["long_s"]
        assert weights["stock"]["mb"] > 3 * max(weights[label]["mb"], 1.0)
    # This shows the defect: the longer delay is not possible.
    assert results_by_side["stock"]["long_s"] - results_by_side["stock"]["short_s"] < 0.3
    assert row_of(two_delays.SCENARIO, results_by_side).missing == ()
    assert row_of(pending_memory.SCENARIO, weights).stock.endswith("bytes each)")


async def test_a_failed_measurement_gives_its_reason() -> None:
    with pytest.raises(MeasurementError, match="missing_at_that_side"):
        await measure("encore", "missing_at_that_side", "pulsar://nowhere", "t", within_s=20)


async def test_a_hanging_measurement_is_ended() -> None:
    with pytest.raises(MeasurementError, match=r"no result in 0\.01 s") as caught:
        await measure("encore", "pending_memory", "pulsar://nowhere", "t", within_s=0.01)
    assert caught.value.lost
