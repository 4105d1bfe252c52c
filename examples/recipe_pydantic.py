"""Bill orders that are pydantic models, of two versions, without a payload in any log or evidence.

python examples/recipe_pydantic.py service_url (runs until SIGTERM or Ctrl+C)
"""

import asyncio
import sys
from decimal import Decimal
from typing import TypeVar

import pydantic

import pulsar_encore as encore

T = TypeVar("T")


class Order(pydantic.BaseModel):
    number: int
    total: Decimal = pydantic.Field(gt=0)
    customer: str = pydantic.Field(validation_alias=pydantic.AliasChoices("customer", "name"))
    currency: str = "EUR"  # version 2 added it, and renamed `name` to `customer`


class PrivateJson(encore.Json[T]):
    """JSON whose errors name the field and the rule, and show nothing of the payload."""

    def decode(self, data: bytes, /) -> T:
        try:
            return super().decode(data)
        except encore.DecodeError as error:
            cause, schema, field = error.__cause__, error.schema, error.field
        rule = "not valid"
        if isinstance(cause, pydantic.ValidationError):
            rule = cause.errors(include_input=False)[0]["type"]
        # Outside of `except`: pydantic's error has the input, and would be logged as the context.
        text = f"{schema}: {field or 'the payload'} {rule}"
        raise encore.DecodeError(text, reason=rule, schema=schema, field=field)


ORDERS = PrivateJson(Order)


async def bill(order: Order) -> None:
    print(f"billed {order.total} {order.currency} to {order.customer}", flush=True)


def billing(client: encore.Client) -> encore.Worker[Order]:
    earliest = encore.InitialPosition.Earliest
    return encore.Worker(
        client, "orders", "billing", bill, schema=ORDERS, initial_position=earliest
    )


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        await encore.run(billing(client))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
