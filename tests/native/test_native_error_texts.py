"""Error texts say which setting to change."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore.errors import ConfigurationError, NotSupportedError
from pulsar_encore.options import ClientOptions
from pulsar_encore.transport.native.connection.session import _connection_error
from pulsar_encore.transport.native.service_options import of_options
from pulsar_encore.transport.transport_choice import make_transport
from pulsar_encore.wire import pulsar_pb2 as pb

URL = "pulsar://h:1"
DURATIONS = {
    "partitions_update_interval": "discovery_s",
    "reattach_timeout": "reattach_timeout_s",
    "recreate_after": "recreate_after_s",
}


@pytest.mark.parametrize(("option", "setting"), DURATIONS.items())
def test_a_duration_is_given_in_seconds_or_as_a_timedelta(option: str, setting: str) -> None:
    for value in (90, 90.0, timedelta(minutes=1.5)):
        given: dict[str, Any] = {option: value}
        options = ClientOptions(service_url=URL, **given)
        assert getattr(of_options(options)[1], setting) == 90.0
    for wrong in (timedelta(0), timedelta(seconds=-1), "90"):
        given = {option: wrong}
        with pytest.raises(ConfigurationError, match=option):
            ClientOptions(service_url=URL, **given)


def test_a_reattach_timeout_of_none_means_no_limit() -> None:
    with pytest.raises(ConfigurationError, match=r"reattach_timeout .*, or None for no limit, got"):
        ClientOptions(service_url=URL, reattach_timeout=0)


@pytest.mark.parametrize("content", [None, ""])
async def test_the_error_for_a_missing_or_empty_token_file_names_the_file(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "token"
    path.write_text("x")
    token = encore.AuthenticationToken(f"file://{path}")
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(encore.AuthenticationError) as raised:
        await token.data()
    assert f"reading the token file {str(path)!r}" in str(raised.value)
    assert "supplier" not in str(raised.value)


def test_the_error_says_which_option_chose_the_stock_transport() -> None:
    athenz = encore.AuthenticationAthenz("{}")
    options = ClientOptions(service_url=URL, reattach_timeout=30, authentication=athenz)
    with pytest.raises(NotSupportedError, match=r"which this client gets \(AuthenticationAthenz"):
        make_transport(options, "auto")
    options = ClientOptions(service_url=URL, reattach_timeout=30)
    with pytest.raises(NotSupportedError, match=r"leave it out, or use transport='native'"):
        make_transport(options, "stock")


def test_the_error_for_a_client_without_authentication_says_to_configure_it() -> None:
    refused = pb.CommandError(request_id=0, error=pb.AuthenticationError, message="no token")
    error = _connection_error("h:1", refused, plain=True)
    assert isinstance(error, encore.AuthenticationError)
    assert "give authentication=" in str(error) and "no token" in str(error)
    assert "credentials" in str(_connection_error("h:1", refused, plain=False))
