"""The command that runs histories: errors are one line, and a missing broker is no finding."""

from __future__ import annotations

import socket

import pytest

from tests.harness.histories.__main__ import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "abc"], "'abc' is no seed; write 7, 1-500"),
        (["--seeds", "1,,2"], "'' is no seed"),
        (["--seeds", "-3"], "'-3' is no seed"),
        (["--seeds", "3-"], "'3-' is no seed"),
        (["--seeds", "5-1"], "the lower number is first"),
        (["--only", "nope"], "the families are "),
        (["--fixed", "nope"], "there are all, "),
        (["--workload", "{}"], "is not a workload's JSON"),
        (["--workload", "nope"], "is not a workload's JSON"),
    ],
)
def test_an_invalid_option_is_a_one_line_error(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # Option and value are one word, because argparse takes "-3" for an option otherwise.
    assert main(["--broker", "dev", "=".join(words)]) == 2
    out, problems = capsys.readouterr()
    assert out == ""
    assert message in problems
    assert problems.count("\n") == 1


def test_help_names_both_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    help_text = capsys.readouterr().out
    assert "PULSAR_URL" in help_text
    assert "PULSAR_ADMIN_URL" in help_text


def test_a_missing_broker_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # no server listens here
        open_port, closed_port = listening.getsockname()[1], silent.getsockname()[1]
        for port, message in (
            (closed_port, "PULSAR_URL names it"),
            (open_port, "PULSAR_ADMIN_URL names it"),
        ):
            monkeypatch.setenv("PULSAR_URL", f"pulsar://127.0.0.1:{port}")
            monkeypatch.setenv("PULSAR_ADMIN_URL", f"http://127.0.0.1:{closed_port}")
            assert main(["--seeds", "1"]) == 2
            out, problems = capsys.readouterr()
            assert out == ""
            assert message in problems
            assert problems.count("\n") == 1
