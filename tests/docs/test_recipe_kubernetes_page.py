"""The manifests of `docs/recipes/kubernetes.md` agree with their program and with each other."""

from __future__ import annotations

import asyncio
import inspect
import time
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

import pulsar_encore as encore
from pulsar_encore import testing
from tests.harness.pages import blocks_of, text_of
from tests.harness.recipes import EXAMPLES, RecipeProcess

FOLDER = EXAMPLES / "kubernetes"
FILES = {path.name: yaml.safe_load(path.read_text("utf-8")) for path in FOLDER.glob("*.yaml")}
PODS = ["deployment.yaml", "statefulset.yaml"]
DRAIN_S = inspect.signature(encore.Worker).parameters["drain"].default
LIMIT_S = 40
DELAY_S = 6
#: The program with a shorter delay, which prints the time at which it begins.
SHORT_DELAY = """
import asyncio, sys, time
import recipe_state as recipe

class Retry(recipe.encore.Retry):
    def __init__(self, delay):
        super().__init__({delay})
        print("delayed", time.time(), flush=True)

recipe.encore.Retry = Retry
asyncio.run(recipe.main(*sys.argv[1:]))
"""


def container_of(name: str) -> dict[str, Any]:
    (container,) = FILES[name]["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_the_page_names_every_manifest() -> None:
    page = text_of("recipes/kubernetes.md")
    assert [name for name in FILES if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", FILES)
def test_a_manifest_has_the_fields_that_every_object_needs(name: str) -> None:
    assert {"apiVersion", "kind", "metadata", "spec"} == FILES[name].keys()
    assert FILES[name]["metadata"]["name"] == "billing"


@pytest.mark.parametrize("name", PODS)
def test_the_pod_outlasts_the_drain(name: str) -> None:
    pod = FILES[name]["spec"]["template"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > DRAIN_S + 1
    assert FILES[name]["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]


@pytest.mark.parametrize("name", PODS)
def test_the_probes_ask_the_port_of_the_program(name: str) -> None:
    container = container_of(name)
    (port,) = container["ports"]
    _, program, _, argument, *_ = container["command"]
    assert (EXAMPLES / program).exists()
    assert port["containerPort"] == int(argument)
    for probe, path in (("readinessProbe", "/ready"), ("livenessProbe", "/live")):
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
        assert container[probe]["timeoutSeconds"] > 0.5  # an answer waits so long for the loop


def test_the_state_is_below_the_mount_of_the_volume() -> None:
    (claim,) = FILES["statefulset.yaml"]["spec"]["volumeClaimTemplates"]
    container = container_of("statefulset.yaml")
    (mount,) = container["volumeMounts"]
    assert mount["name"] == claim["metadata"]["name"]
    # The root of a volume can have a "lost+found", and a state refuses other content.
    assert PurePosixPath(mount["mountPath"]) in PurePosixPath(container["command"][-1]).parents


def test_each_pod_of_the_stateful_set_reads_a_partition_of_its_own() -> None:
    container = container_of("statefulset.yaml")
    (variable,) = container["env"]
    assert "pod-index" in variable["valueFrom"]["fieldRef"]["fieldPath"]
    assert container["command"][-2] == f"orders-partition-$({variable['name']})"


@pytest.mark.parametrize("version", ["1.28", "1.37"])
@pytest.mark.parametrize("name", [*PODS, "tutorial.md"])
def test_a_manifest_fits_the_schema_of_kubernetes(name: str, version: str) -> None:
    """Unknown fields are errors. `pod-index` needs Kubernetes 1.28."""
    import kubernetes_validate as validator

    manifest = FILES.get(name)
    if manifest is None:
        (block,) = blocks_of(name, "yaml")
        manifest = yaml.safe_load(block.code)
    assert validator.validate(manifest, version, strict=True) == version
    manifest["spec"]["template"]["spec"]["gracePeriod"] = 30
    with pytest.raises(validator.ValidationError, match="gracePeriod"):
        validator.validate(manifest, version, strict=True)
    del manifest["spec"]["template"]["spec"]["gracePeriod"]


def test_the_fields_of_the_scaled_object_are_those_of_keda() -> None:
    """Fields by hand, from KEDA's definition of ScaledObject and its scaler for Pulsar."""
    assert FILES["scaledobject.yaml"]["apiVersion"] == "keda.sh/v1alpha1"
    spec = FILES["scaledobject.yaml"]["spec"]
    numbers = {"pollingInterval", "cooldownPeriod", "minReplicaCount", "maxReplicaCount"}
    assert spec.keys() <= {"scaleTargetRef", "triggers"} | numbers
    assert all(type(spec[name]) is int for name in numbers & spec.keys())
    assert spec["scaleTargetRef"].keys() <= {"name", "kind", "apiVersion", "envSourceContainerName"}
    (trigger,) = spec["triggers"]
    assert trigger.keys() == {"type", "metadata"}
    needed = {"adminURL", "topic", "subscription"}
    optional = {"msgBacklogThreshold", "activationMsgBacklogThreshold", "isPartitionedTopic"}
    assert needed <= trigger["metadata"].keys() <= needed | optional
    # Numbers and booleans in quotes: the values of a trigger are strings.
    assert all(type(value) is str for value in trigger["metadata"].values())
    assert int(trigger["metadata"]["msgBacklogThreshold"]) > 0


def test_keda_scales_the_deployment_by_the_subscription_of_the_program() -> None:
    scaled = FILES["scaledobject.yaml"]["spec"]
    assert scaled["scaleTargetRef"]["name"] == FILES["deployment.yaml"]["metadata"]["name"]
    (trigger,) = scaled["triggers"]
    program = (EXAMPLES / "production_worker.py").read_text("utf-8")
    topic = trigger["metadata"]["topic"].rpartition("/")[2]
    assert f'"{topic}", "{trigger["metadata"]["subscription"]}"' in program


async def test_a_killed_process_keeps_due_times_and_attempts(tmp_path: Path) -> None:
    output, directory = tmp_path / "output", tmp_path / "volume" / "state"
    code = SHORT_DELAY.format(delay=DELAY_S)
    async with testing.broker() as url, encore.Client(url) as client:
        producer = await client.create_producer("orders")
        await producer.send(b"later")
        arguments = (url, "0", "orders", str(directory))
        first = RecipeProcess("state", *arguments, output=output, code=code)
        try:
            await until(output, "delayed")
            await producer.send(b"now")
            await until(output, "billed now at attempt 1")
            async with asyncio.timeout(LIMIT_S):
                while url.broker.backlog("persistent://public/default/orders", "billing") > 1:
                    await asyncio.sleep(0.05)  # until the ack has been sent
        finally:
            first.kill()
        assert "billed later" not in output.read_text()
        second = RecipeProcess("state", *arguments, output=output, code=code)
        try:
            await until(output, "billed later")
        finally:
            await asyncio.to_thread(second.end)
    delayed, *billed = output.read_text().splitlines()
    assert time.time() - float(delayed.split()[1]) > DELAY_S
    assert billed == ["billed now at attempt 1", "billed later at attempt 2"]


async def until(output: Path, text: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not output.exists() or text not in output.read_text():
            await asyncio.sleep(0.05)
