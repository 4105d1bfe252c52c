"""The command line: arguments select the command, and an error is one line."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import __version__, cli
from pulsar_encore.cli import broker_process, lag
from pulsar_encore.cli.app import app
from pulsar_encore.consumer.lag import TopicLag
from pulsar_encore.errors import TransportError


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


@pytest.mark.parametrize(
    ("redirection", "code"), [(">&-", 0), (">/dev/full", 2)], ids=["closed", "full"]
)
def test_output_that_cannot_be_written_is_no_traceback(redirection: str, code: int) -> None:
    command = f"{sys.executable} -m pulsar_encore dlq --help {redirection}"
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=30)
    assert (ran.returncode, "Traceback" in ran.stderr) == (code, False), ran.stderr
    assert ("cannot write the output: No space left" in ran.stderr) == (code == 2)


@pytest.mark.parametrize(
    "words",
    [
        *("lag", "tail", "explain", "dlq ls", "dlq show", "dlq replay", "dlq discard"),
        *("txn ls", "txn show", "txn explain", "txn abort", "txn commit"),
    ],
)
def test_the_help_has_an_example_that_the_command_accepts(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main([*words.split(), "--help"])
    [example] = [
        each.removeprefix("Example: pulsar-encore ").strip()
        for each in capsys.readouterr().out.splitlines()
        if each.startswith("Example: ")
    ]
    assert example.startswith(f"{words} ")
    app.parse_args(shlex.split(example), exit_on_error=False)


def test_lag_lists_partitions_in_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ask(*_: object) -> list[TopicLag]:
        return [TopicLag(f"t-partition-{each}", 1, 1.0, exact=True) for each in (10, 2, 0)]

    monkeypatch.setattr(lag, "_ask", ask)
    assert cli.main(["lag", "t", "s", "--admin-url", "http://localhost:8080"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [each.split()[0].rpartition("-")[2] for each in lines] == ["0", "2", "10", "sum"]


def test_a_refused_login_does_not_offer_an_estimate_that_the_command_has_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Refusing:
        async def partitions(self, topic: str) -> int:
            raise encore.AuthorizationError("HTTP 403")

        def close(self) -> None: ...

    monkeypatch.setattr(lag, "web_service", lambda *_: Refusing())
    assert cli.main(["lag", "t", "s", "--admin-url", "http://localhost:8080"]) == 2
    assert capsys.readouterr().err == "pulsar-encore: HTTP 403\n"


def test_ctrl_c_while_the_libraries_are_imported_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "pulsar_encore.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "pulsar_encore.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert cli.main(["demo"]) == 130


@pytest.mark.parametrize("words", [["no-such-command"], ["broker", "--port", "many"]])
def test_an_invalid_command_line_is_an_error_without_a_traceback(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err


def test_a_web_service_that_is_away_names_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # not listening: connections are refused
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert cli.main(["lag", "orders", "billing", "--admin-url", url]) == 2
    assert "check --admin-url (PULSAR_ADMIN_URL)" in capsys.readouterr().err


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
