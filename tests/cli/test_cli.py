"""The command line: arguments select the command, and an error is one line."""

from __future__ import annotations

import importlib
import io
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import pulsar_encore as encore
from pulsar_encore import __version__, cli
from pulsar_encore.cli import bench, broker_process
from pulsar_encore.errors import ConfigurationError, TransportError


def test_the_error_without_its_libraries_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cyclopts", None)
    monkeypatch.delitem(sys.modules, "pulsar_encore.cli.app", raising=False)
    assert cli.main(["demo"]) == 2
    assert 'pip install "pulsar-encore[cli]"' in capsys.readouterr().err


def _module(*words: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run `python -m pulsar_encore` after some other code."""
    code = f"{before}; import runpy; runpy.run_module('pulsar_encore', run_name='__main__')"
    command = [sys.executable, "-c", code] if before else [sys.executable, "-m", "pulsar_encore"]
    return subprocess.run([*command, *words], capture_output=True, text=True, timeout=30)


def test_the_package_runs_as_a_module() -> None:
    ran = _module("--version")
    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, __version__, "")
    ran = _module("--help")
    assert (ran.returncode, ran.stdout.split()[:2]) == (0, ["Usage:", "pulsar-encore"])
    ran = _module("broker", "--port", "many")
    assert (ran.returncode, "Traceback" in ran.stdout + ran.stderr) == (2, False)


@pytest.mark.parametrize("library", ["cyclopts", "rich"])
def test_the_error_of_the_module_without_the_extra_says_what_to_install(library: str) -> None:
    ran = _module("dlq", "ls", "--help", before=f"import sys; sys.modules[{library!r}] = None")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        f'pulsar-encore: the command line needs {library}: pip install "pulsar-encore[cli]"\n'
    )


def test_another_missing_module_is_not_reported_as_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pulsar_encore.cli.app", None)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["demo"])


def test_the_package_can_be_imported_without_either_library() -> None:
    source = Path(cli.__file__).read_text()
    assert "import cyclopts" not in source
    assert "import rich" not in source


@pytest.mark.parametrize("words", [["no-such-command"], ["broker", "--port", "many"]])
def test_an_invalid_command_line_is_an_error_without_a_traceback(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err


def test_a_setting_out_of_range_is_a_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["broker", "--port", "70000"]) == 2
    assert "port must be at most 65535" in capsys.readouterr().err


def test_broker_settings_reach_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []

    async def serve(settings: Any) -> None:
        served.append(settings)

    monkeypatch.setattr("pulsar_encore.cli.broker.serve", serve)
    words = "broker --port 0 --unacked-per-consumer 7 --tick 0.5 --any-namespace --partitions 3"
    assert cli.main(words.split()) == 0
    (settings,) = served
    assert settings.max_unacked_per_consumer == 7
    assert settings.delayed_tick_ms == 500
    assert settings.namespaces is None
    assert settings.auto_create_partitions == 3
    assert settings.host == "127.0.0.1"


def test_a_broker_in_a_process_listens_until_the_block_ends() -> None:
    with broker_process.broker_process() as url:
        port = int(url.rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


async def test_a_restarted_broker_gives_no_id_twice() -> None:
    """Otherwise a client that acked an id on the earlier broker would treat it as a redelivery."""
    ledgers = []
    for _ in range(2):
        with broker_process.broker_process() as url:
            async with encore.Client(url) as client, client.create_producer("t") as producer:
                ledgers.append((await producer.send(b"one")).ledger_id())
    assert ledgers[0] < ledgers[1]


def test_a_broker_process_ends_with_the_process_that_started_it() -> None:
    command = [sys.executable, "-m", "pulsar_encore.cli", "broker", "--port", "0", "--until-eof"]
    with broker_process.child(command) as process:
        broker_process.first_line(process)
        assert process.stdin is not None
        process.stdin.close()  # the system does this when the parent is killed
        assert process.wait(10) == 0


def test_a_broker_that_cannot_start_is_an_error() -> None:
    with (
        pytest.raises(TransportError, match=r"ended with code|printed nothing"),
        broker_process.broker_process(["--tick", "soon"]),
    ):
        pass


@dataclass
class _Row:
    """The attributes that `bench` reads of a benchmark's row."""

    what: str
    unit: str
    figure: float
    other: float | None
    bar: float | None

    @property
    def met(self) -> bool:
        return self.bar is None or self.figure <= self.bar


class _Benchmark:
    """A module with the one function that `bench` calls."""

    def __init__(self, met: bool = True, error: Exception | None = None) -> None:
        self.urls: list[str | None] = []
        self._met = met
        self._error = error

    def run(self, url: str | None = None) -> list[Any]:
        self.urls.append(url)
        if self._error is not None:
            raise self._error
        return [_Row(what="speed", unit="x", figure=3.0, other=1.5, bar=4.0 if self._met else 2.0)]


def _with(monkeypatch: pytest.MonkeyPatch, made: _Benchmark) -> Console:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    real = importlib.import_module

    def load(name: str) -> Any:
        return made if name == "integration.benchmarks.latency" else real(name)

    monkeypatch.setattr(importlib, "import_module", load)
    return Console(file=io.StringIO(), width=120)


def test_a_missed_bar_is_shown_and_sets_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = _Benchmark(met=False)
    console = _with(monkeypatch, made)
    out = tmp_path / "rows.json"
    assert bench.run_bench(["latency"], "pulsar://somewhere:6650", out, console=console) == 1
    assert made.urls == ["pulsar://somewhere:6650"]
    assert "MISSED" in console.file.getvalue()  # type: ignore[attr-defined]
    assert '"ratio": 2.0' in out.read_text()


def test_a_failed_benchmark_is_reported_and_sets_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = _Benchmark(error=TransportError("nobody listens there"))
    console = _with(monkeypatch, made)
    assert bench.run_bench(["latency"], None, None, console=console) == 1
    assert "nobody listens there" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_error_for_an_unknown_benchmark_lists_the_names() -> None:
    with pytest.raises(ConfigurationError, match="throughput, latency"):
        bench.run_bench(["speed"], None, None)


def test_every_listed_benchmark_exists() -> None:
    folder = bench.checkout() / "integration" / "benchmarks"
    assert all((folder / f"{name}.py").is_file() for name in bench.BENCHMARKS)


def test_the_error_outside_a_checkout_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = tmp_path / "site-packages" / "pulsar_encore" / "cli" / "bench.py"
    monkeypatch.setattr(bench, "__file__", str(installed))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="clone the repository"):
        bench.checkout()
