"""Logins and their expiry: credentials and AUTH_CHALLENGE, on a clock that tests advance."""

from __future__ import annotations

from typing import Any

import pytest
from session_kit import HandClock, MemoryClient

from pulsar_encore.devbroker import BrokerSettings, Credential
from pulsar_encore.devbroker.broker_service import BrokerService
from pulsar_encore.errors import ConfigurationError
from pulsar_encore.wire import NO_REQUEST, PROTOCOL_VERSION, pb

REFRESHES = pb.FeatureFlags(supports_auth_refresh=True)
CREDENTIALS = (
    Credential(data="early", role="a", expires_s=30),
    Credential(data="late", role="a", expires_s=150),
    Credential(data="for ever", role="a"),
    Credential(data="another's", role="b"),
    Credential(data="user:secret", method="basic", role="a"),
    Credential(data="client-1", method="tls", role="c"),
)


@pytest.fixture
def clock() -> HandClock:
    clock = HandClock()
    clock.advance(1000)  # The broker must not depend on a clock that starts at 0.
    return clock


@pytest.fixture
def service(clock: HandClock) -> BrokerService:
    return BrokerService(BrokerSettings(credentials=CREDENTIALS), clock, lambda seconds: None)


def connect(service: BrokerService, data: str = "", method: str = "token", **fields: Any) -> Any:
    return MemoryClient(service, auth_method_name=method, auth_data=data.encode(), **fields)


def respond(client: MemoryClient, data: str, method: str = "token") -> None:
    client.send(
        pb.CommandAuthResponse(
            client_version="test",
            response=pb.AuthData(auth_method_name=method, auth_data=data.encode()),
            protocol_version=PROTOCOL_VERSION,
        )
    )


@pytest.mark.parametrize(
    ("data", "method", "certificate"),
    [
        ("early", "token", None),
        ("user:secret", "basic", None),
        ("", "tls", "client-1"),
    ],
)
def test_valid_credentials_are_accepted(
    clock: HandClock,
    service: BrokerService,
    data: str,
    method: str,
    certificate: str | None,
) -> None:
    client = connect(service, data, method, certificate=certificate)
    clock.advance()
    assert client.names() == ["CONNECTED"]


@pytest.mark.parametrize(
    ("data", "method", "certificate"),
    [
        ("", "", None),
        ("wrong", "token", None),
        ("user:secret", "token", None),
        ("early", "basic", None),
        ("user:wrong", "basic", None),
        ("client-1", "tls", None),
        ("", "tls", "client-2"),
        ("early", "athenz", None),
    ],
)
def test_invalid_credentials_are_refused(
    clock: HandClock,
    service: BrokerService,
    data: str,
    method: str,
    certificate: str | None,
) -> None:
    client = connect(service, data, method, certificate=certificate)
    clock.advance()
    assert client.names() == ["ERROR"] and client.closed
    error = client.got[0].command.error
    assert (error.error, error.request_id) == (pb.AuthenticationError, NO_REQUEST)


def test_expired_credentials_are_refused(clock: HandClock, service: BrokerService) -> None:
    clock.advance(30)
    client = connect(service, "early")
    clock.advance()
    assert client.names() == ["ERROR"]


def test_a_client_is_challenged_when_its_credential_has_expired(
    clock: HandClock, service: BrokerService
) -> None:
    client = connect(service, "early", feature_flags=REFRESHES)
    clock.advance(59)
    assert client.names() == ["CONNECTED"]
    clock.advance(2)
    assert client.names() == ["CONNECTED", "AUTH_CHALLENGE"]
    challenge = client.got[-1].command.authChallenge.challenge
    assert (challenge.auth_method_name, challenge.auth_data) == ("token", b"PulsarAuthRefresh")
    respond(client, "late")
    clock.advance(100)
    assert client.names() == ["CONNECTED", "AUTH_CHALLENGE"], "success is silent"
    clock.advance(60)
    assert client.names() == ["CONNECTED", "AUTH_CHALLENGE", "AUTH_CHALLENGE"]
    respond(client, "for ever")
    clock.advance(600)
    assert not client.closed and len(client.got) == 3


def test_consumers_survive_a_refresh(clock: HandClock, service: BrokerService) -> None:
    client = connect(service, "early", feature_flags=REFRESHES)
    client.subscribe()
    client.produce()
    clock.advance(61)
    respond(client, "for ever")
    client.publish(b"one")
    clock.advance()
    assert client.payloads() == [b"one"]


def test_a_session_ends_at_the_next_check_without_an_answer(
    clock: HandClock, service: BrokerService
) -> None:
    client = connect(service, "early", feature_flags=REFRESHES)
    clock.advance(119)
    assert not client.closed
    clock.advance(2)
    assert client.closed and client.names() == ["CONNECTED", "AUTH_CHALLENGE"]


def test_a_client_without_support_for_challenges_is_closed(
    clock: HandClock, service: BrokerService
) -> None:
    client = connect(service, "early")
    clock.advance(61)
    assert client.closed and client.names() == ["CONNECTED"]


@pytest.mark.parametrize(
    ("data", "answer"), [("wrong", ["ERROR"]), ("early", ["ERROR"]), ("another's", [])]
)
def test_a_bad_answer_ends_the_session(
    clock: HandClock, service: BrokerService, data: str, answer: list[str]
) -> None:
    client = connect(service, "early", feature_flags=REFRESHES)
    clock.advance(61)
    respond(client, data)
    assert client.closed
    assert client.names() == ["CONNECTED", "AUTH_CHALLENGE", *answer]


def test_an_unrequested_answer_also_counts(clock: HandClock, service: BrokerService) -> None:
    client = connect(service, "early", feature_flags=REFRESHES)
    respond(client, "for ever")
    clock.advance(300)
    assert client.names() == ["CONNECTED"]


def test_no_check_runs_after_the_end_of_a_session(clock: HandClock, service: BrokerService) -> None:
    client = connect(service, "early", feature_flags=REFRESHES)
    client.session.lost()
    clock.advance(300)
    assert client.names() == ["CONNECTED"]


def test_without_credentials_every_client_may_connect(clock: HandClock) -> None:
    service = BrokerService(BrokerSettings(), clock, lambda seconds: None)
    client = connect(service, "anything", "athenz")
    respond(client, "anything")
    clock.advance()
    assert client.names() == ["CONNECTED"]


def test_settings_do_not_show_secrets() -> None:
    settings = BrokerSettings(token="alone", credentials=CREDENTIALS)
    for secret in ("alone", "early", "secret", "client-1"):
        assert secret not in repr(settings)


@pytest.mark.parametrize(
    ("fields", "why"),
    [({"data": ""}, "is empty"), ({"data": "x", "method": "sasl"}, "method must be one of")],
)
def test_invalid_credential_settings_are_errors(fields: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Credential(**fields)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="is empty"):
        BrokerSettings(token="")
