"""The Python blocks of `docs/testing.md` are tests, and they pass in a run of pytest."""

from __future__ import annotations

from textwrap import indent
from typing import Any

import pytest

from tests.harness.pages import blocks_of
from tests.testing_plugin.inner_run import ASYNCIO, inner_run

pytest_plugins = ["pytester"]

HOURS, FAULTS, LETTER, LAST_ATTEMPT, REJECTED, DRAINED = (
    block.code for block in blocks_of("testing.md")
)

PREAMBLE = """
import logging
from dataclasses import dataclass
import pytest
import pulsar_encore as encore
from pulsar_encore import testing
from pulsar_encore.testing import Fault, FaultPlan

@dataclass
class Order:
    total: int

async def bill(order):
    if isinstance(order, encore.Message):
        if order.attempt == 6:
            logging.getLogger("billing").warning("last attempt")
    elif order.total < 0:
        raise encore.Reject("negative total")

async def fail(value):
    raise ValueError("no such customer")
"""

# The handler of this order fails at each of six attempts.
LETTER_TEST = """
@pytest.mark.pulsar_virtual_time
async def test_the_letter_says_why(pulsar_memory):
    order, schema = Order(5), encore.Json(Order)
    pulsar_memory.transport.put("orders", schema.encode(order))
    worker = encore.Worker(pulsar_memory.client, "orders", "billing", fail, schema=schema,
                           initial_position=encore.InitialPosition.Earliest)
    await testing.drain(worker)
""" + indent(LETTER, "    ")

FAULTS_TEST = """
@pytest.mark.pulsar_virtual_time
async def test_the_fault_drops_the_connection_once(pulsar_memory, pulsar_faults):
    consumer = await pulsar_memory.client.subscribe("orders", "billing")
    pulsar_memory.transport.put("orders", b"one")
    await consumer.acknowledge(await consumer.receive())
    await consumer.close()
    assert pulsar_faults.done
    assert len(pulsar_faults.fired) == 1
"""


def test_the_blocks_pass_as_tests(pytester: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = inner_run(pytester, monkeypatch)
    result = inner(
        *ASYNCIO,
        "-o",
        "asyncio_mode=auto",
        test_hours=HOURS,
        test_faults=PREAMBLE + FAULTS + FAULTS_TEST,
        test_others=PREAMBLE + LAST_ATTEMPT + REJECTED + DRAINED + LETTER_TEST,
    )
    result.assert_outcomes(passed=6)
