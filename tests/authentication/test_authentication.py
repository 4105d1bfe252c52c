"""Authentication: data of each method, all kinds of suppliers, and no visible secret."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _pulsar
import pulsar
import pytest

import pulsar_encore as encore
from pulsar_encore import authentication
from pulsar_encore.authentication import token_supplier as supplied
from pulsar_encore.authentication.token_supplier import library_authentication
from pulsar_encore.options import ClientOptions
from pulsar_encore.transport.stock import client_config

SECRET = "eyJhbGciOi.s3cret"
NOWHERE = "pulsar://127.0.0.1:1"


class Library:
    """A C++ client that holds its supplier until one of its own threads releases it."""

    def __init__(self) -> None:
        self.suppliers: list[Callable[[], object]] = []

    def create(self, supplier: Callable[[], object]) -> Native:
        self.suppliers.append(supplier)
        return Native()


class Native:
    """The C++ client's authentication object, as the program has it."""


async def test_a_token_is_fixed_or_supplied_at_each_use(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    calls = 0

    def plain() -> str:
        nonlocal calls
        calls += 1
        return f"{SECRET}-{calls}"

    async def waiting() -> str:
        await asyncio.sleep(0)
        return SECRET

    for token in (SECRET, f"token:{SECRET}", f"file://{file}", f"file:{file}", waiting):
        auth = encore.AuthenticationToken(token)
        assert (auth.method_name, await auth.data()) == ("token", SECRET.encode())
    auth = encore.AuthenticationToken(lambda: waiting())
    assert await auth.data() == SECRET.encode()
    auth = encore.AuthenticationToken(plain)
    assert [await auth.data(), await auth.data()] == [f"{SECRET}-{n}".encode() for n in (1, 2)]


async def test_a_token_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    auth = encore.AuthenticationToken(f"file://{file}")
    assert await auth.data() == b"first"
    file.write_text("second\n")
    assert await auth.data() == b"second"
    file.unlink()
    with pytest.raises(encore.AuthenticationError, match="FileNotFoundError"):
        await auth.data()


async def test_a_blocking_supplier_does_not_block_the_loop() -> None:
    asked, answer = threading.Event(), threading.Event()

    def blocking() -> str:
        asked.set()
        assert answer.wait(10)
        return SECRET

    async def loop_runs() -> None:
        while not asked.is_set():
            await asyncio.sleep(0.001)
        answer.set()

    data, _ = await asyncio.gather(encore.AuthenticationToken(blocking).data(), loop_runs())
    assert data == SECRET.encode()


def _raise() -> str:
    raise RuntimeError(SECRET)


@pytest.mark.parametrize(
    ("supply", "says"),
    [(_raise, "RuntimeError"), (lambda: 3, "a token is a str"), (lambda: None, "NoneType")],
)
async def test_the_error_of_a_failing_supplier_omits_its_text(
    supply: Callable[[], Any], says: str
) -> None:
    with pytest.raises(encore.AuthenticationError, match="the broker was not asked") as caught:
        await encore.AuthenticationToken(supply).data()
    assert says in str(caught.value) and SECRET not in str(caught.value)
    assert not caught.value.retryable


async def test_a_cancelled_supplier_is_cancelled() -> None:
    began = asyncio.Event()

    async def never() -> str:
        began.set()
        await asyncio.Event().wait()
        return SECRET

    task = asyncio.create_task(encore.AuthenticationToken(never).data())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_basic_and_tls_give_their_data(tmp_path: Path) -> None:
    for basic in (
        encore.AuthenticationBasic("me", SECRET),
        encore.AuthenticationBasic(
            auth_params_string=json.dumps({"username": "me", "password": SECRET})
        ),
    ):
        assert (basic.method_name, await basic.data()) == ("basic", f"me:{SECRET}".encode())
    text = json.dumps({"username": "me", "password": "x", "method": "oms3.0"})
    assert encore.AuthenticationBasic(auth_params_string=text).method_name == "oms3.0"
    assert encore.AuthenticationBasic("me", "x", "other").method_name == "other"
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.touch(), key.touch()
    tls = encore.AuthenticationTLS(str(certificate), str(key))
    assert (tls.method_name, await tls.data()) == ("tls", b"")
    assert (tls.certificate_path, tls.private_key_path) == (str(certificate), str(key))


async def test_methods_of_the_c_client_only_are_errors_that_name_them() -> None:
    for auth in (encore.AuthenticationAthenz("{}"), encore.Authentication("some.so", "x")):
        with pytest.raises(encore.NotSupportedError, match="use the stock transport"):
            await auth.data()
    with pytest.raises(encore.ConfigurationError, match="dynamicLibPath"):
        _ = encore.Authentication("/no/such.so", SECRET).auth


def wrong() -> list[tuple[Callable[[], object], str]]:
    return [
        (lambda: encore.AuthenticationToken(3), "token must be a str"),  # type: ignore[arg-type]
        (lambda: encore.AuthenticationToken("file:///no/such"), "cannot read '/no/such'"),
        (lambda: encore.AuthenticationTLS("/no/such", "/no/such"), "certificate_path: cannot"),
        (lambda: encore.AuthenticationBasic("me"), "password must be a str"),
        (lambda: encore.AuthenticationBasic(auth_params_string=SECRET), "must be JSON"),
        (lambda: encore.AuthenticationBasic(auth_params_string="{}"), "username"),
        (lambda: encore.AuthenticationAthenz(None), "auth_params_string"),  # type: ignore[arg-type]
        (lambda: encore.Authentication("a.so", None), "authParamsString"),  # type: ignore[arg-type]
        (lambda: encore.CryptoKeyReader("a", 3), "private_key_path"),  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize(("make", "says"), wrong())
def test_an_invalid_argument_is_named_and_not_shown(make: Callable[[], object], says: str) -> None:
    with pytest.raises(encore.ConfigurationError, match=says) as caught:
        make()
    assert SECRET not in str(caught.value)


def test_no_secret_is_in_a_repr() -> None:
    key = {"issuer_url": "https://issuer", "client_id": "a", "client_secret": SECRET}
    made = [
        encore.AuthenticationToken(SECRET),
        encore.AuthenticationBasic("me", SECRET),
        encore.AuthenticationOauth2(json.dumps(key)),
        encore.Authentication("some.so", SECRET),
        encore.AuthenticationAthenz(SECRET),
    ]
    for each in made:
        assert SECRET not in f"{each!r}{each!s}"
        assert SECRET not in repr(encore.ServiceInfo("pulsar://h", each))
        assert SECRET not in repr(ClientOptions(service_url="pulsar://h", authentication=each))


# Objects that the C++ client gets


def test_the_stock_transport_accepts_authentication_of_both_packages(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    oauth2 = json.dumps({"issuer_url": "https://i", "client_id": "a", "client_secret": "b"})
    for package in (encore, pulsar):
        for auth in (
            package.AuthenticationToken("t"),
            package.AuthenticationToken(lambda: "t"),
            package.AuthenticationBasic("a", "b", "c"),
            package.AuthenticationTLS(str(file), str(file)),
            package.AuthenticationOauth2(oauth2),
            package.AuthenticationAthenz("{}"),
            package.Authentication("token", "token:t"),
        ):
            assert ClientOptions(service_url=NOWHERE, authentication=auth).authentication is auth
            handed = client_config.authentication(auth)
            assert isinstance(handed, pulsar.Authentication)  # its Client accepts no other class
            _pulsar.ClientConfiguration().authentication(handed.auth)
            assert pulsar.ServiceInfo(NOWHERE, handed).service_url == NOWHERE
            assert encore.ServiceInfo(NOWHERE, auth)._service_info.service_url == NOWHERE


def test_an_async_supplier_works_with_the_stock_transport() -> None:
    async def waiting() -> str:
        await asyncio.sleep(0)
        return SECRET

    for supplier in (waiting, lambda: waiting(), lambda: SECRET):
        library = Library()
        library_authentication(supplier, library.create)
        assert [ask() for ask in library.suppliers] == [SECRET]
        assert encore.AuthenticationToken(supplier).auth.getAuthMethodName() == "token"


def test_the_process_ends_after_the_c_client_released_a_supplier() -> None:
    # The release comes some time after the client was closed. After the interpreter's end it would
    # abort the process.
    library = Library()
    library_authentication(lambda: SECRET, library.create)
    late = threading.Timer(0.2, library.suppliers.clear)
    late.start()
    supplied._release_all()
    assert not library.suppliers
    late.join()


def test_a_supplier_that_the_program_still_holds_is_not_released() -> None:
    library = Library()
    native = library_authentication(lambda: SECRET, library.create)
    before = sys.getrefcount(native)
    supplied._release_all()
    assert sys.getrefcount(native) == before + 1
    supplied._library_objects.clear()


def test_the_transport_names_authentication_that_it_does_not_support() -> None:
    ours = encore.AuthenticationToken("t")
    assert authentication.of(ours) is ours
    assert authentication.of(None) is None
    with pytest.raises(encore.NotSupportedError, match=r"create a pulsar_encore\.Authentication"):
        authentication.of(pulsar.AuthenticationToken("t"))
    with pytest.raises(encore.ConfigurationError, match="authentication must be one of"):
        authentication.of("token")


async def test_a_users_own_authentication_class_works() -> None:
    class Vault(encore.Authentication):
        method_name = "token"

        def __init__(self) -> None:
            pass

        async def data(self) -> bytes:
            return b"from the vault"

    auth = authentication.of(Vault())
    assert auth is not None and await auth.data() == b"from the vault"
    with pytest.raises(encore.NotSupportedError, match="the stock transport cannot use Vault"):
        encore.Client(NOWHERE, authentication=auth, transport="stock")
