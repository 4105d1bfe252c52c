"""The choice of a broker: PULSAR_URL, else a container, else jars. Nothing is left running.

Replacements for `docker` and `podman` record their calls and start a program that answers like a
broker's admin API, so the choice is tested without an engine. test_container.py tests that an image
really starts.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import container_engine
import pulsar_image
import pytest
from container_engine import Engine
from pulsar_image import APACHE_IMAGE, OUR_IMAGE

from tests.harness import pulsar_server
from tests.harness.pulsar_server import NoBrokerError, StandaloneError, prefetch, running_server

FAKE_ENGINE = """#!{python}
import http.server, json, os, pathlib, signal, sys, time

here = pathlib.Path(sys.argv[0])
plan = json.loads(here.with_suffix(".plan").read_text())
with here.with_suffix(".calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
verb, arguments = sys.argv[1], sys.argv[2:]


class Admin(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'["public/default"]')


def refuse(words):
    sys.stderr.write(words)
    sys.exit(125)


if verb == "info":
    time.sleep(plan["slow"])
    sys.exit(0 if plan["answers"] else 1)
elif verb == "image":
    if arguments[-1] not in plan["images"]:
        refuse("no such image")
    print(plan["images"][arguments[-1]])
elif verb == "pull" and not plan["pulls"]:
    refuse("no registry\\nanswers")
elif verb == "build" and not plan["builds"]:
    refuse("no space left")
elif verb == "create":
    port = next(a.rpartition("=")[2] for a in arguments if "webServicePort" in a)
    here.with_suffix(".port").write_text(port)
elif verb == "start":
    if not plan["starts"]:
        refuse("this host has no cgroups")
    here.with_suffix(".pid").write_text(str(os.getpid()))
    port = int(here.with_suffix(".port").read_text())
    http.server.HTTPServer(("127.0.0.1", port), Admin).serve_forever()
elif verb == "kill":
    how = signal.Signals[arguments[0].partition("=")[2]]
    os.kill(int(here.with_suffix(".pid").read_text()), how)
"""

Install = Callable[..., Callable[[], list[str]]]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, with a shell and Java. No engine has been looked for yet."""
    for name in ("sh", "java"):
        found = shutil.which(name)
        if found is not None:
            (tmp_path / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("PULSAR_URL", "PULSAR_ADMIN_URL", "PULSAR_BROKER", "PULSAR_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    # The result of this run's search is kept for the other tests.
    monkeypatch.setattr(pulsar_server, "_container", cache(pulsar_server._container.__wrapped__))
    return tmp_path


@pytest.fixture
def install(programs: Path) -> Install:
    """Return a function that puts a replacement of an engine on PATH.

    It returns a function that lists the recorded verbs.

    Args:
        name: `docker` or `podman`.
        images: Its images with their digests.
    """

    def install(
        name: str,
        *,
        answers: bool = True,
        slow: float = 0,
        images: dict[str, str] | None = None,
        pulls: bool = False,
        builds: bool = False,
        starts: bool = True,
    ) -> Callable[[], list[str]]:
        plan = {"answers": answers, "slow": slow, "images": images or {}}
        plan |= {"pulls": pulls, "builds": builds, "starts": starts}
        program, read_calls = programs / name, programs / f"{name}.calls"
        program.write_text(FAKE_ENGINE.replace("{python}", sys.executable))
        program.chmod(0o755)
        (programs / f"{name}.plan").write_text(json.dumps(plan))
        read_calls.touch()
        pulsar_server._container.cache_clear()
        return lambda: [json.loads(line)[0] for line in read_calls.read_text().splitlines()]

    return install


def test_pulsar_url_is_used_unchanged(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    read_calls = install("docker")
    monkeypatch.setenv("PULSAR_URL", "pulsar://somewhere:7650")
    with running_server() as server:
        assert server.service_url == "pulsar://somewhere:7650"
        assert server.admin_url == "http://somewhere:8080"
    monkeypatch.setenv("PULSAR_ADMIN_URL", "http://elsewhere:9080")
    with running_server() as server:
        assert server.admin_url == "http://elsewhere:9080"
    prefetch()
    assert read_calls() == []


def test_docker_comes_first_and_its_container_is_removed(install: Install) -> None:
    docker = install("docker", images={APACHE_IMAGE: ""})
    podman = install("podman", images={APACHE_IMAGE: ""})
    with running_server() as server:
        assert server.origin == "container"
        assert "rm" not in docker()
    assert docker() == ["info", "image", "create", "start", "kill", "rm"]
    assert podman() == []


def test_podman_is_used_if_docker_does_not_answer(install: Install) -> None:
    docker = install("docker", answers=False)
    podman = install("podman", images={OUR_IMAGE: pulsar_image._digest()})
    with running_server() as server:
        assert server.origin == "container"
    assert docker() == ["info"]
    assert podman()[-3:] == ["start", "kill", "rm"]


def test_a_silent_engine_is_skipped_after_a_timeout(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_engine, "ANSWER_TIMEOUT", 0.5)
    install("docker", slow=60)
    began = time.monotonic()
    assert pulsar_server.container_here() is None
    assert time.monotonic() - began < 30


def test_a_missing_image_is_pulled(install: Install) -> None:
    docker = install("docker", pulls=True)
    found = pulsar_server.container_here()
    assert found is not None
    assert found.image == APACHE_IMAGE
    assert docker()[-1] == "pull"


def test_only_the_named_image_is_used(
    install: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PULSAR_IMAGE", "mine:1")
    install("docker", images={APACHE_IMAGE: "", "mine:1": ""})
    found = pulsar_server.container_here()
    assert found is not None
    assert found.image == "mine:1"
    install("docker", images={APACHE_IMAGE: ""})
    assert pulsar_server.container_here() is None
    assert "mine:1" in capsys.readouterr().err


def test_without_an_image_jars_are_used_and_one_line_says_why(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("podman")
    with running_server() as server:
        assert server.origin == "standalone"
    messages = [line for line in capsys.readouterr().err.splitlines() if "no container" in line]
    assert len(messages) == 1
    assert "podman answers" in messages[0]
    assert "no registry answers" in messages[0]
    assert "ours can't be built" in messages[0]


def test_a_requested_container_is_never_replaced_by_jars(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSAR_BROKER", "container")
    with pytest.raises(NoBrokerError, match=r"PULSAR_BROKER.*no container engine answers"):
        with running_server():
            pass
    install("podman")
    with pytest.raises(NoBrokerError, match=r"PULSAR_BROKER.*no registry answers.*can't be built"):
        with running_server():
            pass


def test_requested_jars_do_not_call_the_engine(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = install("docker", images={APACHE_IMAGE: ""})
    monkeypatch.setenv("PULSAR_BROKER", "standalone")
    prefetch()
    assert docker() == []
    monkeypatch.setenv("PULSAR_BROKER", "jar")
    with pytest.raises(NoBrokerError, match=r"'jar'.*container, standalone"):
        prefetch()


def test_a_container_that_does_not_start_raises_and_is_removed(install: Install) -> None:
    docker = install("docker", images={APACHE_IMAGE: ""}, starts=False)
    with pytest.raises(NoBrokerError, match=r"did not start.*exit code 125[^$]*no cgroups"):
        with running_server():
            pass
    assert docker()[-1] == "rm"


def test_our_image_is_rebuilt_only_if_it_would_differ(
    install: Install, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins = {
        "unshare": 'while test "$1" != debootstrap; do shift; done; exec "$@"',
        "debootstrap": f'echo x >> {tmp_path}/bases; for root in "$@"; do :; done; mkdir "$root"',
        "tar": 'while test "$1" != -cf; do shift; done; > "$2"',
    }
    for name, body in stand_ins.items():
        (programs / name).write_text(f"#!{shutil.which('sh')}\n{body}\n")
        (programs / name).chmod(0o755)
    (programs / "mkdir").symlink_to("/bin/mkdir")
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "pulsar-broker.jar").touch()
    monkeypatch.setattr(pulsar_image, "resolve_jars", lambda cache: tmp_path / "jars")
    monkeypatch.setattr(pulsar_image.os, "geteuid", lambda: 0)
    messages: list[str] = []

    docker = install("docker", images={OUR_IMAGE: "of another version"}, builds=True)
    for _ in range(2):
        assert pulsar_image.build_image(Engine("docker"), messages.append, tmp_path) == OUR_IMAGE
    assert docker().count("build") == 2
    assert (tmp_path / "bases").read_text().count("x") == 1

    docker = install("docker", images={OUR_IMAGE: pulsar_image._digest()})
    before = docker()
    pulsar_image.build_image(Engine("docker"), messages.append, tmp_path)
    assert docker()[len(before) :] == ["image"]

    (programs / "debootstrap").write_text("#!/bin/sh\necho mirror unreachable; exit 1\n")
    next(tmp_path.glob("base-*.tar")).unlink()
    install("docker")
    with pytest.raises(StandaloneError, match="mirror unreachable"):
        pulsar_image.build_image(Engine("docker"), messages.append, tmp_path)
    assert not list(tmp_path.glob("base-*"))
