"""Token suppliers and token files that fail or hang."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from pulsar_encore import AuthenticationToken
from pulsar_encore.errors import ConfigurationError
from pulsar_encore.exceptions import AuthenticationError


@pytest.mark.parametrize("token", ["", "token:"])
def test_an_empty_token_is_refused(token: str) -> None:
    with pytest.raises(ConfigurationError, match="token must not be empty"):
        AuthenticationToken(token)


async def test_a_plain_supplier_that_hangs_uses_one_thread_for_all_calls() -> None:
    release, calls = threading.Event(), []

    def supplier() -> str:
        calls.append(None)
        release.wait(60)
        return "t"

    authentication = AuthenticationToken(supplier)
    try:
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await authentication.data()
        assert len(calls) == 1
    finally:
        release.set()
    assert await authentication.data() == b"t"


async def test_the_error_for_a_missing_token_file_names_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("t")
    authentication = AuthenticationToken(f"file:{file}")
    assert await authentication.data() == b"t"
    file.unlink()
    with pytest.raises(AuthenticationError, match=r"reading the token file '.*/token' raised"):
        await authentication.data()
