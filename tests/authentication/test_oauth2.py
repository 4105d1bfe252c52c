"""OAuth2 client credentials against an issuer on loopback."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import certifi
import pytest
from issuer_kit import Issuer, issuer

import pulsar_encore as encore
from pulsar_encore.authentication.oauth2 import renew_after_s

SECRET = "s3cret-of-the-client"
KEY = {"type": "client_credentials", "client_id": "billing", "client_secret": SECRET}
WELL_KNOWN = "/.well-known/openid-configuration"


def inline() -> str:
    return "data:application/json;base64," + base64.b64encode(json.dumps(KEY).encode()).decode()


def oauth2(issuer_url: str, **parameters: Any) -> encore.AuthenticationOauth2:
    given = {"issuer_url": issuer_url, "private_key": inline(), **parameters}
    return encore.AuthenticationOauth2(json.dumps(given))


async def test_a_token_request_follows_the_issuers_metadata() -> None:
    async with issuer() as made:
        auth = oauth2(f"{made.url}/", audience="urn:pulsar", scope="produce consume")
        assert (auth.method_name, await auth.data()) == ("token", b"token-1")
        assert made.asked[0][:2] == ("GET", WELL_KNOWN)
        assert made.grants == [
            {
                "grant_type": "client_credentials",
                "client_id": "billing",
                "client_secret": SECRET,
                "audience": "urn:pulsar",
                "scope": "produce consume",
            }
        ]


@pytest.mark.parametrize("form", ["{path}", "file:{path}", "file://{path}"])
async def test_a_key_file_is_read_for_each_token(tmp_path: Path, form: str) -> None:
    path = tmp_path / "key.json"
    path.write_text(json.dumps(KEY))
    async with issuer() as made:
        made.answers["/token"] = (200, {"access_token": "t", "expires_in": 0})
        auth = oauth2(made.url, private_key=form.format(path=path))
        await auth.data()
        path.write_text(json.dumps({**KEY, "client_secret": "replaced"}))
        await auth.data()
        assert [form["client_secret"] for form in made.grants] == [SECRET, "replaced"]
        path.unlink()
        with pytest.raises(encore.ConfigurationError, match="private_key: cannot read"):
            await auth.data()


async def test_the_client_credentials_can_be_parameters() -> None:
    async with issuer() as made:
        text = json.dumps({"issuer_url": made.url, "client_id": "a", "client_secret": "b"})
        await encore.AuthenticationOauth2(text).data()
        (form,) = made.grants
        assert form == {"grant_type": "client_credentials", "client_id": "a", "client_secret": "b"}


async def test_a_token_is_reused_until_shortly_before_it_expires() -> None:
    async with issuer() as made:
        auth = oauth2(made.url)
        assert [await auth.data() for _ in range(3)] == [b"token-1"] * 3
        assert len(made.grants) == 1
    assert renew_after_s(3600) == 3540
    assert renew_after_s(60) == 54
    assert renew_after_s(0) == 0


@pytest.mark.parametrize("lifetime", [{}, {"expires_in": 0}, {"expires_in": None}])
async def test_a_token_without_a_lifetime_is_requested_each_time(lifetime: dict[str, Any]) -> None:
    async with issuer() as made:
        made.answers["/token"] = (200, {"access_token": "t", **lifetime})
        auth = oauth2(made.url)
        assert [await auth.data(), await auth.data()] == [b"t", b"t"]
        assert len(made.grants) == 2


async def test_concurrent_callers_share_one_request_to_the_issuer() -> None:
    async with issuer() as made:
        made.hold.clear()
        auth = oauth2(made.url)
        asking = [asyncio.create_task(auth.data()) for _ in range(5)]
        while not made.asked:
            await asyncio.sleep(0)
        asking[0].cancel()  # the caller that started the request
        made.hold.set()
        got = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(got[0], asyncio.CancelledError)
        assert got[1:] == [b"token-1"] * 4
        assert len(made.grants) == 1


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/token", (503, b"busy")),
        ("/token", (401, {"error": "invalid_client"})),
        ("/token", (404, b"")),
        ("/token", (302, b"")),
        ("/token", (200, b"<html>sign in</html>")),
        (WELL_KNOWN, (404, b"")),
        (WELL_KNOWN, (200, b"<html>")),
    ],
)
async def test_a_failing_issuer_does_not_invalidate_a_valid_token(
    monkeypatch: pytest.MonkeyPatch, path: str, answer: tuple[int, Any]
) -> None:
    async with issuer() as made:
        auth = oauth2(made.url)
        await auth.data()
        kept = made.answers.get(path)
        made.answers[path] = answer
        auth.refused()  # so that the next call asks the issuer
        assert await auth.data() == b"token-1"
        expired = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600)
        monkeypatch.setattr("pulsar_encore.authentication.oauth2.time", expired)
        with pytest.raises(encore.AuthenticationError):
            await auth.data()
        if kept is None:
            del made.answers[path]
        else:
            made.answers[path] = kept
        assert (await auth.data()).startswith(b"token-")


async def test_a_token_that_a_broker_refused_is_replaced_if_the_issuer_gives_another() -> None:
    async with issuer() as made:
        auth = oauth2(made.url)
        assert await auth.data() == b"token-1"
        auth.refused()
        given = await auth.data()
        assert len(made.grants) == 2
        auth.refused()
        made.answers["/token"] = (401, {"error": "invalid_client"})
        assert await auth.data() == given
        assert len(made.grants) == 3


REFUSALS: dict[str, tuple[str, tuple[int, Any], str, bool]] = {
    "refused": (
        "/token",
        (401, {"error": "invalid_client", "error_description": f"{SECRET} is wrong"}),
        r"/token answered 401: invalid_client: \.\.\. is wrong",
        False,
    ),
    "busy": ("/token", (503, b"<html>"), "/token answered 503", True),
    "too many": ("/token", (429, {}), "/token answered 429", True),
    "no token": ("/token", (200, {"access_token": ""}), "without an access_token", False),
    "no JSON": ("/token", (200, b"token-1"), "something other than a JSON object", False),
    "too much": ("/token", (200, b" " * (1 << 21)), "more than 1048576 bytes", False),
    "no discovery": (WELL_KNOWN, (404, b""), "openid-configuration answered 404", False),
    "moved": (WELL_KNOWN, (301, b""), "openid-configuration answered 301", False),
    "no endpoint": (WELL_KNOWN, (200, {}), "names no token_endpoint", False),
    "no address": (WELL_KNOWN, (200, {"token_endpoint": "ftp://x"}), "no token_endpoint", False),
    "bad address": (WELL_KNOWN, (200, {"token_endpoint": "http://["}), "no token_endpoint", False),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_an_invalid_answer_of_the_issuer_is_an_error_that_shows_it(case: str) -> None:
    path, answer, message, retryable = REFUSALS[case]
    async with issuer() as made:
        made.answers[path] = answer
        with pytest.raises(encore.AuthenticationError, match=message) as caught:
            await oauth2(made.url).data()
    assert "the broker was not asked" in str(caught.value)
    assert caught.value.retryable is retryable
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error!s}{error!r}"
        error = error.__cause__


async def test_an_issuer_that_did_not_answer_can_be_asked_again() -> None:
    async with issuer() as made:
        url = made.url
    with pytest.raises(encore.AuthenticationError, match="ConnectError") as caught:
        await oauth2(url).data()
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("variable", "argument"), [("SSL_CERT_FILE", "cafile"), ("SSL_CERT_DIR", "capath"), (None, "")]
)
async def test_the_issuers_certificate_is_verified_by_the_environments_authorities_or_certifi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None, argument: str
) -> None:
    made: list[dict[str, str]] = []
    real = ssl.create_default_context

    def create(**given: str) -> ssl.SSLContext:
        made.append(given)
        return real()

    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr(ssl, "create_default_context", create)
    async with issuer() as asked:
        await oauth2(asked.url).data()
    expected = {argument: str(tmp_path)} if variable else {"cafile": certifi.where()}
    assert made[0] == expected


async def test_the_error_without_httpx2_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(encore.NotSupportedError, match=r"pulsar-encore\[oauth2\]"):
        await oauth2("http://127.0.0.1:1").data()


async def test_a_secret_is_not_sent_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(*_: object) -> dict[str, str]:
        return {"token_endpoint": "http://issuer/token"}

    monkeypatch.setattr("pulsar_encore.authentication.oauth2_issuer._request_json", answer)
    with pytest.raises(encore.AuthenticationError, match="without TLS, and the secret is not sent"):
        await oauth2("https://issuer").data()


WRONG: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "must be a JSON object"),
    "no object": ("[]", "must be a JSON object"),
    "nothing": ({}, "issuer_url"),
    "no scheme": ({"issuer_url": "issuer", "private_key": "x"}, "https://host"),
    "a user": ({"issuer_url": f"https://a:{SECRET}@b"}, "without a user"),
    "no key": ({"issuer_url": "https://a"}, "client_id"),
    "no secret": ({"issuer_url": "https://a", "client_id": SECRET}, "client_secret"),
    "no file": ({"issuer_url": "https://a", "private_key": "/no/such"}, "private_key: cannot"),
    "a key of text": (
        {"issuer_url": "https://a", "private_key": f"data:text/plain,{SECRET}"},
        "data:application/json;base64,",
    ),
    "no base64": (
        {"issuer_url": "https://a", "private_key": f"data:application/json;base64,{SECRET}"},
        "not base64",
    ),
    "an audience of numbers": (
        {"issuer_url": "https://a", "private_key": "x", "audience": 3},
        "audience",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_parameters_are_named_and_not_shown(case: str) -> None:
    parameters, message = WRONG[case]
    text = parameters if isinstance(parameters, str) else json.dumps(parameters)
    with pytest.raises(encore.ConfigurationError, match=message) as caught:
        encore.AuthenticationOauth2(text)
    assert SECRET not in str(caught.value)


def test_one_object_works_on_several_event_loops() -> None:
    ready: Future[Issuer] = Future()
    over = threading.Event()

    async def serve() -> None:
        async with issuer() as made:
            made.answers["/token"] = (200, {"access_token": "t"})
            ready.set_result(made)
            await asyncio.to_thread(over.wait)

    with ThreadPoolExecutor(1) as threads:
        serving = threads.submit(asyncio.run, serve())
        made = ready.result(10)
        auth = oauth2(made.url)
        assert [asyncio.run(auth.data()) for _ in range(2)] == [b"t", b"t"]
        over.set()
        serving.result(10)
    assert len(made.grants) == 2
