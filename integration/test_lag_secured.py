"""`Consumer.lag` on a broker with authentication."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

import pulsar_encore as encore
from tests.harness.contract.contract_kit import bodies, publish, subscribe

from .secured_server import Secured

# looptime's plugin requests a loop before every synchronous test; see the suite's fixtures.
asyncio.set_event_loop(None)


def client_of(secured: Secured, role: str) -> encore.Client:
    return encore.Client(
        secured.tls_url,
        authentication=encore.AuthenticationToken(secured.credentials.token(role)),
        tls_trust_certs_file_path=secured.file("ca.pem"),
        admin_url=secured.web_url,
    )


async def test_the_login_of_the_client_is_used(secured: Secured) -> None:
    topic = f"persistent://public/default/lag-{uuid4().hex[:8]}"
    async with client_of(secured, "operator") as operator:
        consumer = await subscribe(operator, topic)
        await publish(operator, topic, bodies(4))
        lag = await consumer.lag()
        assert lag.messages == 4 and lag.exact


async def test_a_role_that_may_only_consume(secured: Secured) -> None:
    topic = f"persistent://public/default/lag-{uuid4().hex[:8]}"
    await asyncio.to_thread(secured.admin.create_topic, topic)
    path = "/namespaces/public/default/permissions/clerk"
    await asyncio.to_thread(secured.admin.call, "POST", path, ["consume"])
    async with client_of(secured, "operator") as operator, client_of(secured, "clerk") as clerk:
        consumer = await subscribe(clerk, topic)
        await publish(operator, topic, bodies(4))
        lag = await consumer.lag()
        assert lag.messages == 4 and lag.exact
        await asyncio.to_thread(secured.admin.call, "DELETE", path)
        with pytest.raises(
            encore.AuthorizationError, match="lacks a permission: grant it `consume`"
        ):
            async with asyncio.timeout(20):
                while True:  # the broker caches permissions
                    await consumer.lag()
                    await asyncio.sleep(0.2)
