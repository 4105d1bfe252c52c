"""`import pulsar_encore` loads little: the rest is imported at its first use.

Each program runs in a process of its own, because modules that were imported stay imported. The
time that the import takes is a benchmark (`integration/benchmarks/import_time.py`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import pulsar_encore as encore

SDK = Path(__file__).resolve().parents[1] / "sdk"

#: Parts of the package that `import pulsar_encore` leaves out.
LATER = (
    "admin",
    "asyncio",
    "authentication.athenz",
    "authentication.oauth2_credentials",
    "authentication.oauth2_issuer",
    "authentication.oauth2",
    "cli",
    "codecs.auto_consume",
    "codecs.json_codec",
    "codecs.key_value",
    "consumer",
    "core",
    "deadletters",
    "devbroker",
    "evacuation",
    "health",
    "letters",
    "observability",
    "otel",
    "producer",
    "prometheus",
    "reader",
    "spark",
    "state",
    "testing",
    "transport.native",
    "transport.stock",
    "wire",
    "worker",
)
#: Libraries and slow modules of Python that it leaves out.
LIBRARIES = (
    "_pulsar",
    "certifi",
    "cramjam",
    "fastcrc",
    "google",
    "http.server",
    "httpx2",
    "importlib.metadata",
    "opentelemetry",
    "prometheus_client",
    "pulsar",
    "pyroaring",
    "pyspark",
    "rocksdict",
    "sortedcontainers",
    "uuid",
)


def loaded_by(program: str) -> set[str]:
    """Return the names of all modules that are loaded after `program` has run."""
    shown = f"{program}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", shown],
        env={"PYTHONPATH": str(SDK)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def of_package(loaded: set[str], *parts: str) -> list[str]:
    names = [f"pulsar_encore.{part}" for part in parts]
    return [each for each in loaded if any(f"{each}.".startswith(f"{name}.") for name in names)]


@pytest.mark.parametrize("part", LATER)
def test_every_lazy_part_exists(part: str) -> None:
    assert find_spec(f"pulsar_encore.{part}") is not None


def test_the_import_loads_no_part_that_a_client_may_not_need() -> None:
    loaded = loaded_by("import pulsar_encore")
    assert "pulsar_encore.client" in loaded
    assert of_package(loaded, *LATER) == []
    assert loaded.isdisjoint(LIBRARIES)


def test_a_program_that_only_publishes_loads_no_consumer_and_no_state() -> None:
    loaded = loaded_by(
        """
import asyncio, pulsar_encore as encore
from pulsar_encore import testing

async def main():
    async with encore.Client("memory://", transport=testing.MemoryTransport()) as client:
        async with client.create_producer("jobs") as producer:
            await producer.send(b"one")

testing.run(main())
"""
    )
    assert "pulsar_encore.producer" in loaded
    assert of_package(loaded, "consumer.consumer", "state", "reader") == []


def test_a_consumer_without_state_loads_no_module_of_state() -> None:
    loaded = loaded_by(
        """
import asyncio, pulsar_encore as encore
from pulsar_encore import testing

async def main():
    transport = testing.MemoryTransport()
    async with encore.Client("memory://", transport=transport) as client:
        consumer = await client.subscribe("jobs", "worker", encore.ConsumerType.Shared)
        transport.put("jobs", b"one")
        await consumer.acknowledge(await consumer.receive())
        assert consumer.statistics().store is None

testing.run(main())
"""
    )
    assert "pulsar_encore.consumer.consumer" in loaded
    assert of_package(loaded, "state", "consumer.state_writer", "consumer.nack_disk_index") == []


def test_json_of_a_dataclass_loads_neither_pydantic_nor_msgspec() -> None:
    """Both are optional, and so is the C++ client for a program on the native transport."""
    loaded = loaded_by(
        """
from dataclasses import dataclass
import pulsar_encore as encore

@dataclass
class Order:
    id: int

codec = encore.KeyValue(encore.Json(str), encore.Json(Order))
assert codec.decode(codec.encode(("k", Order(1)))) == ("k", Order(1))
codec.schema_info()
"""
    )
    assert loaded.isdisjoint({"pydantic", "msgspec", "fastavro", "pulsar", "_pulsar"})


@pytest.mark.parametrize("name", encore.__all__)
def test_every_public_name_exists_and_is_listed_by_dir(name: str) -> None:
    assert getattr(encore, name) is not None
    assert name in dir(encore)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Consummer'"):
        encore.Consummer  # type: ignore[attr-defined]  # noqa: B018


def test_a_star_import_binds_every_public_name() -> None:
    program = "from pulsar_encore import *\nimport pulsar_encore as e\n"
    loaded_by(program + "assert all(name in globals() for name in e.__all__)")
