"""Containers on a real engine: a container ends with its owner, and compose.yaml works."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import uuid

import pytest
from broker_child import Ports, choose_ports, is_ready
from container_engine import Engine
from pulsar_container import Container
from pulsar_image import OUR_IMAGE

from pulsar_encore import Client, TxnState
from tests.harness.admin import Admin
from tests.harness.pulsar_server import ContainerChoice, StandaloneError

from .test_server import DOCKER, drain, eventually, listening, produce

OWNER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from container_engine import Engine
from pulsar_container import Container
choice = {"engine": Engine(sys.argv[2]), "image": sys.argv[3], "port": int(sys.argv[4])}
with Container(**choice) as broker:
    print(broker.service_url, flush=True)
    time.sleep(600)
"""


def container_exists(container: ContainerChoice, ports: Ports) -> bool:
    """True if the engine has a container, running or not, for these ports."""
    shown = container.engine.call("ps", "--all", "--format={{.Ports}}", timeout=60)
    return f":{ports.service}->" in shown


def test_a_container_ends_when_its_owner_is_killed(container: ContainerChoice) -> None:
    ports = choose_ports()
    owner_arguments = [container.engine.name, container.image, str(ports.service)]
    command = [sys.executable, "-c", OWNER, str(DOCKER), *owner_arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().decode().strip()
        assert container_exists(container, ports)
        produce(url, "t", b"a")
        owner.send_signal(signal.SIGKILL)
        owner.communicate(timeout=30)
    assert eventually(lambda: not container_exists(container, ports), 60)
    assert not listening(ports.service)


def test_an_interrupted_start_leaves_no_container(container: ContainerChoice) -> None:
    ports = choose_ports()
    broker = Container(
        engine=container.engine, image=container.image, port=ports.service, start_timeout=0
    )
    with pytest.raises(StandaloneError, match="not ready after 0 s"), broker:
        pass
    assert not container_exists(container, ports)
    assert not listening(ports.service)


def test_compose_starts_and_stops_a_broker(
    container: ContainerChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = choose_ports()
    monkeypatch.setenv("PULSAR_PORT", str(ports.service))
    monkeypatch.setenv("PULSAR_ADMIN_PORT", str(ports.admin))
    monkeypatch.setenv("PULSAR_IMAGE", container.image)  # the image of the first profile
    monkeypatch.setenv("PULSAR_TRANSACTIONS", "true")
    for profile in ["apache", "ours"] if container.image == OUR_IMAGE else ["apache"]:
        command = [*compose(container.engine), f"--profile={profile}"]
        command += [f"--project-name=encore-{uuid.uuid4().hex[:8]}"]
        command += [f"--file={DOCKER / 'compose.yaml'}"]
        try:
            run([*command, "up", "--detach"])
            assert eventually(lambda: is_ready(ports), 120)
            assert container_exists(container, ports)
            produce(f"pulsar://127.0.0.1:{ports.service}", "t", b"a", b"b")
            assert drain(f"pulsar://127.0.0.1:{ports.service}", "t", 2) == [b"a", b"b"]
            config = Admin(f"http://127.0.0.1:{ports.admin}")
            found = config.call("GET", "/brokers/configuration/runtime")
            assert found["acknowledgmentAtBatchIndexLevelEnabled"] == "true"
            assert asyncio.run(committed(ports.service)) is TxnState.COMMITTED
        finally:
            run([*command, "down", "--volumes"])
        assert not container_exists(container, ports)


async def committed(port: int) -> TxnState:
    """Send a message in a transaction, and return the state of it after the commit."""
    async with Client(f"pulsar://127.0.0.1:{port}") as client:
        async with client.create_producer("committed") as producer:
            async with client.transaction() as txn:
                await producer.send(b"c", txn=txn)
            return txn.state


def compose(engine: Engine) -> list[str]:
    """Return the engine's compose command, with the options of every call of the engine."""
    if engine.name == "docker":
        return ["docker", "compose"]
    with_options = " ".join(engine.command()[1:])
    return [sys.executable, "-m", "podman_compose", f"--podman-args={with_options}"]


def run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, f"{' '.join(command)}:\n{result.stdout}\n{result.stderr}"
