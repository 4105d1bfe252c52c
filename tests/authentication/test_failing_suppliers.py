"""A token supplier that fails never raises into the C++ library, and no log has its secret."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import failing_suppliers
import pytest
from failing_suppliers import FAILURES, SECRET, Text

import pulsar_encore as encore
from pulsar_encore.authentication.token_supplier import library_authentication
from pulsar_encore.devbroker import BrokerSettings, Credential, run_in_thread
from pulsar_encore.transport.stock.result_errors import failure

every_failure = pytest.mark.parametrize("name", FAILURES)


class Calls:
    """Calls of a client that wait for the library to connect."""

    def __init__(self) -> None:
        self.reports: list[str] = []

    def fail_authentication(self, why: str) -> None:
        self.reports.append(why)


class Asked:
    """The C++ library, which calls a supplier repeatedly."""

    def __init__(self, supplier: Callable[[], Any], *waiting: Any) -> None:
        self._ask: Callable[[], object] = lambda: None
        self.native = library_authentication(supplier, self._create, waiting)

    def _create(self, ask: Callable[[], object]) -> Any:
        self._ask = ask
        return self  # an object that supports weak references

    def __call__(self) -> object:
        return self._ask()


def steps(*given: Any) -> Callable[[], Any]:
    """Return a supplier of these values, one for each call. Functions in the list are called."""
    left = iter(given)

    def supplier() -> Any:
        each = next(left)
        return each() if callable(each) else each

    return supplier


@every_failure
def test_the_last_good_token_is_returned_again(name: str, caplog: pytest.LogCaptureFixture) -> None:
    fail, why = FAILURES[name]
    calls = Calls()
    ask = Asked(steps("t-1", fail, fail, "t-2", fail), calls)
    assert [ask() for _ in range(5)] == ["t-1", "t-1", "t-1", "t-2", "t-2"]
    assert not calls.reports
    assert [each.levelname for each in caplog.records] == ["WARNING"] * 3
    assert all(f"the token's supplier {why}" in each.getMessage() for each in caplog.records)
    assert SECRET not in caplog.text and "t-1" not in caplog.text


@every_failure
def test_without_an_earlier_token_it_returns_an_empty_one_and_running_calls_fail(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    fail, why = FAILURES[name]
    calls = Calls()
    ask = Asked(steps(fail, fail, "one", fail), calls)
    assert [ask() for _ in range(4)] == ["", "", "one", "one"]
    assert len(calls.reports) == 2 and why in calls.reports[0]
    assert [each.levelname for each in caplog.records] == ["ERROR", "ERROR", "WARNING"]
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("given", "token"), [("t", "t"), (Text("t"), "t"), (b"t", b"t"), (bytearray(b"t"), "")]
)
def test_a_subclass_of_str_is_converted_to_str(given: Any, token: Any) -> None:
    got = Asked(lambda: given)()
    assert (got, type(got)) == (token, type(token))


class Furious(logging.Handler):
    def handle(self, record: logging.LogRecord) -> bool:
        raise SystemExit(1)


@pytest.fixture
def furious() -> Iterator[None]:
    """Add a log handler that raises."""
    logger = logging.getLogger("pulsar_encore.authentication")
    handler = Furious()
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


@pytest.mark.usefixtures("furious")
def test_a_log_handler_that_raises_does_not_raise_into_the_library() -> None:
    fail, _ = FAILURES["an error"]
    calls = Calls()
    ask = Asked(steps(fail, "one", fail), calls)
    assert [ask() for _ in range(3)] == ["", "one", "one"]
    assert len(calls.reports) == 1


@pytest.mark.parametrize("detail", ["ValueError: s3cret\n\nAt:\n  program.py(3): supplier", ""])
def test_the_c_clients_own_message_about_a_supplier_is_cut_before_the_secret(detail: str) -> None:
    """Suppliers of authentication objects of the stock package cannot be wrapped."""
    import _pulsar

    result = _pulsar.Result.AuthenticationError
    error = failure(result, "subscribe", f"Failed to create Connect command: {detail}")
    assert isinstance(error, encore.AuthenticationError)
    assert SECRET not in str(error) and "program.py" not in str(error)
    assert ("ValueError" in str(error)) is bool(detail)


@pytest.mark.parametrize(
    "make",
    [
        lambda: encore.AuthenticationToken("\ud800" + SECRET),
        lambda: encore.AuthenticationBasic("user", "\ud800" + SECRET),
    ],
)
def test_a_secret_that_cannot_be_encoded_is_refused_unseen(make: Callable[[], Any]) -> None:
    with pytest.raises(encore.ConfigurationError, match="UTF-8") as caught:
        make()
    assert SECRET not in str(caught.value) and caught.value.__context__ is not None
    assert caught.value.__suppress_context__


async def test_the_first_connect_fails_at_once_and_names_the_supplier() -> None:
    fail, _ = FAILURES["an error"]
    with run_in_thread(BrokerSettings(token="right")) as broker:
        auth = encore.AuthenticationToken(steps(fail, *["right"] * 9))
        async with encore.Client(broker.url, auth, transport="stock") as client:
            async with asyncio.timeout(10):  # the operation times out after 30 s
                with pytest.raises(encore.AuthenticationError, match="raised ValueError") as caught:
                    await client.create_producer("t")
                assert SECRET not in str(caught.value)
                await (await client.create_producer("t")).send(b"in")


async def test_no_failure_at_a_challenge_ends_the_process() -> None:
    """All kinds of failure in one process. It answers challenges with the previous token."""
    credentials = (Credential(data="one", expires_s=3), Credential(data="two"))
    settings = BrokerSettings(credentials=credentials, auth_refresh_check_s=0.2)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(failing_suppliers.__file__))),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    with run_in_thread(settings) as broker:
        given = json.dumps([broker.url, ["one", "two"]]).encode()
        out, problems = await asyncio.wait_for(process.communicate(given), 100)
        assert broker.recorded("AUTH_CHALLENGE", "out")
    assert (process.returncode, out) == (0, b"done\n"), problems.decode()
    assert SECRET.encode() not in problems
