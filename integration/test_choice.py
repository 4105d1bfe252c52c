"""Which broker a run uses: PULSAR_URL, else Docker, else jars; and that it is left as found.

A stand-in for `docker` writes down how it is called, so that the choice is tested without an
engine. What it cannot show is that the image starts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .pulsar_server import NoBrokerError, prefetch, running_server

FAKE_DOCKER = """#!/bin/sh
here=$(dirname "$0")
echo "$*" >> "$here/calls"
case "$*" in
    *" ps "*) cat "$here/running" ;;
    *" up "*) test ! -e "$here/broken" || { echo "port is already allocated" >&2; exit 1; } ;;
esac
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a stand-in for Docker, first on PATH; no PULSAR_URL."""
    program = tmp_path / "docker"
    program.write_text(FAKE_DOCKER)
    program.chmod(0o755)
    (tmp_path / "running").touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name in ("PULSAR_URL", "PULSAR_ADMIN_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def compose_calls(docker: Path) -> list[str]:
    """The word after the compose file, of each call that had one."""
    calls = (line.split() for line in (docker / "calls").read_text().splitlines())
    return [call[3] for call in calls if call[1:2] == ["-f"]]


def test_pulsar_url_is_used_as_it_is(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSAR_URL", "pulsar://somewhere:7650")
    with running_server() as server:
        assert server.service_url == "pulsar://somewhere:7650"
        assert server.admin_url == "http://somewhere:8080"
    monkeypatch.setenv("PULSAR_ADMIN_URL", "http://elsewhere:9080")
    with running_server() as server:
        assert server.admin_url == "http://elsewhere:9080"
    prefetch()
    assert not (docker / "calls").exists()


def test_docker_is_started_and_taken_down(docker: Path) -> None:
    prefetch()
    with running_server() as server:
        assert server.origin == "docker"
        assert "down" not in compose_calls(docker)
    assert compose_calls(docker) == ["pull", "ps", "up", "down"]


def test_a_compose_broker_that_ran_before_is_left_running(docker: Path) -> None:
    (docker / "running").write_text("0123456789ab\n")
    with running_server():
        pass
    assert compose_calls(docker) == ["ps", "up"]


def test_docker_that_fails_is_an_error_and_is_cleaned_up(docker: Path) -> None:
    (docker / "broken").touch()
    with pytest.raises(NoBrokerError, match=r"compose up failed.*already allocated"):
        with running_server():
            pass
    assert compose_calls(docker)[-1] == "down"
