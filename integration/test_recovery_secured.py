"""Recovery of native consumers and producers on a real Pulsar with authentication."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pulsar_encore as encore

from .secured_server import Secured
from .test_recovery import cut_connections, pair_of, to_thread


async def test_clients_recover_from_a_supplier_that_returns_an_expired_token(
    secured: Secured, topic: str
) -> None:
    lifetime_s, is_stale, calls = 3, False, 0
    tokens: list[str] = []

    def supplier() -> str:
        nonlocal calls
        calls += 1
        if not is_stale:
            tokens.append(secured.credentials.token(lifetime_s=lifetime_s))
        return tokens[-1]

    login = encore.AuthenticationToken(supplier)
    async with pair_of(secured.plain_url, topic, authentication=login) as pair:
        await pair.works()
        is_stale, before = True, calls
        await asyncio.sleep(lifetime_s + 1)
        cut_connections(pair.client)
        await asyncio.sleep(2)
        assert not pair.consumer.is_connected() and not pair.producer.is_connected()
        assert calls > before
        lifetime_s, is_stale = 600, False
        await pair.works()


async def test_clients_recover_when_revoked_permissions_are_granted_again(
    secured: Secured, topic: str
) -> None:
    admin = secured.admin
    await to_thread(admin.create_topic, topic)
    path = "/persistent/" + topic.partition("://")[2] + "/permissions/guest"
    await to_thread(admin.call, "POST", path, ["produce", "consume"])
    login = encore.AuthenticationToken(secured.credentials.token("guest", 600))
    async with pair_of(secured.plain_url, topic, authentication=login) as pair:
        await pair.works()
        await to_thread(admin.call, "DELETE", path)
        await to_thread(admin.unload, topic)
        await asyncio.sleep(2)
        assert not pair.consumer.is_connected() and not pair.producer.is_connected()
        await to_thread(admin.call, "POST", path, ["produce", "consume"])
        await pair.works()


async def test_clients_recover_when_a_refused_certificate_is_replaced(
    secured: Secured, topic: str, tmp_path: Path
) -> None:
    """The broker refuses an expired certificate as it refuses one of another authority."""

    def install_certificate(name: str) -> None:
        for end in ("pem", "key"):
            fresh = tmp_path / f"new.{end}"
            shutil.copy(secured.file(f"{name}.{end}"), fresh)
            fresh.replace(tmp_path / f"client.{end}")

    install_certificate("operator")
    login = encore.AuthenticationTLS(str(tmp_path / "client.pem"), str(tmp_path / "client.key"))
    options = {"authentication": login, "tls_trust_certs_file_path": secured.file("ca.pem")}
    async with pair_of(secured.tls_url, topic, **options) as pair:
        await pair.works()
        install_certificate("stranger")
        cut_connections(pair.client)
        await asyncio.sleep(2)
        assert not pair.consumer.is_connected() and not pair.producer.is_connected()
        install_certificate("operator")
        await pair.works()
