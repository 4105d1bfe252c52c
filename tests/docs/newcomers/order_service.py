"""A service that charges orders, in order for each customer, and publishes invoices."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final, Protocol

import pulsar_encore as encore

TOPIC: Final = "orders"
SUBSCRIPTION: Final = "billing"
INVOICE_TOPIC: Final = "invoices"
DEAD_LETTER_TOPIC: Final = f"{TOPIC}-{SUBSCRIPTION}-DLQ"
#: Target of replays for this subscription alone. A worker with an order does not read its retry
#: letter topic unless it is one of its topics.
REPLAY_TOPIC: Final = f"{TOPIC}-{SUBSCRIPTION}-RETRY"

log = logging.getLogger(__name__)


@dataclass
class Order:
    id: str
    customer: str
    total: Decimal
    created_at: datetime


@dataclass
class Invoice:
    order_id: str
    customer: str
    total: Decimal
    receipt: str


ORDERS: Final = encore.Json(Order)
INVOICES: Final = encore.Json(Invoice)
TO_INVOICES: Final = encore.PublishTo(INVOICE_TOPIC, INVOICES)


class Gateway(Protocol):
    """The client of a payment gateway."""

    async def charge(self, order: Order) -> str:
        """Charge an order once, however often it is called for its id, and return the receipt.

        Raises:
            ConnectionError: if the gateway is away.
        """
        ...


class Billing:
    """The handler of the service.

    Args:
        gateway: Charges the orders.
        has_breaker: True if the worker has a breaker for `ConnectionError`. Otherwise the handler
            asks for a retry that is not counted.
    """

    def __init__(self, gateway: Gateway, *, has_breaker: bool) -> None:
        self._gateway = gateway
        self._has_breaker = has_breaker

    async def bill(self, order: Order, msg: encore.Message[Order]) -> encore.Out:
        if order.total < 0:
            raise encore.Reject("negative total")
        if msg.key != order.customer:
            log.warning("order %s has the key %r instead of its customer", order.id, msg.key)
        try:
            receipt = await self._gateway.charge(order)
        except ConnectionError as error:
            if self._has_breaker:
                raise
            raise encore.Retry(count=False) from error
        invoice = Invoice(order.id, order.customer, order.total, receipt)
        return encore.Out(invoice, key=order.customer)


def make_worker(
    client: encore.Client,
    gateway: Gateway,
    *,
    breaker: encore.Breaker | None = None,
    reject_limit: int | None = None,
    publish: encore.PublishTo | None = TO_INVOICES,
) -> encore.Worker[Order]:
    """Return the worker of the service; the parameters are those that the tests vary."""
    return encore.Worker(
        client,
        [TOPIC, REPLAY_TOPIC],
        SUBSCRIPTION,
        Billing(gateway, has_breaker=breaker is not None).bill,
        schema=ORDERS,
        concurrency=16,
        order="key",
        timeout=10,
        retry=encore.RetryPolicy(
            attempts=5, backoff=[1, 3, 10, 30], dead_letter_topic=DEAD_LETTER_TOPIC
        ),
        breaker=breaker,
        reject_limit=reject_limit,
        publish=publish,
        initial_position=encore.InitialPosition.Earliest,
        drain=20,
    )
