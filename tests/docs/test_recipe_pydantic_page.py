"""The program of `docs/recipes/pydantic.md` reads both versions, and shows no payload."""

from __future__ import annotations

import json
import logging
from decimal import Decimal
from typing import Annotated, Any

import pydantic
import pytest

import pulsar_encore as encore
from pulsar_encore import Client, testing
from pulsar_encore.testing import MemoryTransport
from tests.harness.recipes import load_recipe

SECRET = "4111-1111"
OTHER_SECRET = "Ada Lovelace"
DEAD_LETTERS = "orders-billing-DLQ"


@pytest.fixture
def recipe() -> Any:
    return load_recipe("pydantic")


async def test_orders_of_both_versions_are_billed(
    recipe: Any, client: Client, transport: MemoryTransport, capsys: pytest.CaptureFixture[str]
) -> None:
    transport.put("orders", b'{"number": 1, "total": "9.90", "name": "Ada"}')
    order = recipe.Order(number=2, total=Decimal(5), customer="Grace", currency="USD")
    transport.put("orders", recipe.ORDERS.encode(order))
    await testing.drain(recipe.billing(client))
    assert capsys.readouterr().out == "billed 9.90 EUR to Ada\nbilled 5 USD to Grace\n"


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"number": 1, "total": -5, "customer": SECRET}, "total greater_than"),
        ({"number": SECRET, "total": 5, "customer": "Ada"}, "number int_parsing"),
        ({"total": 5, "customer": SECRET}, "number missing"),
        ({"number": 1, "total": 5, "customer": [SECRET]}, "customer string_type"),
        (f'{{"customer": "{SECRET}', "the payload json_invalid"),
    ],
)
async def test_an_invalid_order_is_dead_lettered_at_once_without_its_payload(
    recipe: Any,
    client: Client,
    transport: MemoryTransport,
    caplog: pytest.LogCaptureFixture,
    payload: Any,
    expected: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    stored = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
    transport.put("orders", stored)
    drained = await testing.drain(recipe.billing(client))
    assert [each.settlement for each in drained.outcomes] == ["dead letter"]
    (letter,) = testing.letters(transport, DEAD_LETTERS)
    assert letter.evidence()["ENCORE_ERROR_MESSAGE"] == f"Json(Order): {expected}"
    assert letter.message.data() == stored
    assert SECRET not in str(letter.evidence())
    logged = logging.Formatter().format
    assert "dead letter" in caplog.text
    assert SECRET not in "".join(map(logged, caplog.records))


async def test_the_same_rule_and_field_have_one_fingerprint(
    recipe: Any, client: Client, transport: MemoryTransport
) -> None:
    for total in (-5, 0):
        transport.put("orders", json.dumps({"number": 1, "total": total, "name": "x"}).encode())
    await testing.drain(recipe.billing(client))
    first, second = testing.letters(transport, DEAD_LETTERS)
    assert first.evidence()["ENCORE_FINGERPRINT"] == second.evidence()["ENCORE_FINGERPRINT"]


async def test_plain_json_shows_the_text_of_a_validator_and_nothing_else_of_the_payload(
    recipe: Any, client: Client, transport: MemoryTransport
) -> None:
    """The page says so. If it has changed, `PrivateJson` is no longer needed."""

    def check(card: str) -> str:
        raise ValueError(f"the card {card} has expired")

    class Order(recipe.Order):  # type: ignore[misc]
        card: Annotated[str, pydantic.AfterValidator(check)] = ""

    order = {"number": 1, "total": 1, "customer": OTHER_SECRET, "card": SECRET}
    transport.put("orders", json.dumps(order).encode())
    worker = encore.Worker(
        client,
        "orders",
        "billing",
        recipe.bill,
        schema=encore.Json(Order),
        initial_position=encore.InitialPosition.Earliest,
    )
    await testing.drain(worker)
    (letter,) = testing.letters(transport, DEAD_LETTERS)
    assert SECRET in letter.evidence()["ENCORE_ERROR_MESSAGE"]
    assert OTHER_SECRET not in str(letter.evidence())
