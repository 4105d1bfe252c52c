"""Errors of the web service name the missing permission or login. Bodies are of Pulsar 4.2.4."""

from __future__ import annotations

import json

import pytest

from pulsar_encore.errors import (
    AuthenticationError,
    AuthorizationError,
    LookupError,
    PulsarException,
    TopicNotFound,
)
from pulsar_encore.transport.native.lookup.http_refusal import refusal

TOPIC = "persistent://public/default/orders"
SERVLET = {"servlet": "org.glassfish.jersey.servlet.ServletContainer-5b490d5e", "status": "401"}


def error_of(status: int, body: bytes, method: str = "token") -> PulsarException:
    return refusal(status, body, f"stats of {TOPIC}", method)


@pytest.mark.parametrize(
    ("operation", "action"),
    [("GET_STATS", "consume"), ("LOOKUP", "consume"), ("CONSUME", "consume")],
)
def test_a_missing_permission_for_a_topic_names_the_command(operation: str, action: str) -> None:
    body = f"Unauthorized to validateTopicOperation for operation [{operation}] on topic [{TOPIC}]"
    error = error_of(401, body.encode())
    assert isinstance(error, AuthorizationError)
    command = f"grant-permission public/default --role ROLE --actions {action}`"
    assert str(error).endswith(command)
    assert operation in str(error)


def test_a_missing_permission_for_a_namespace_names_the_command() -> None:
    body = (
        b"Unauthorized to validateNamespaceOperation for operation [GET_TOPICS] on namespace "
        b"[public/default]"
    )
    error = error_of(403, body)
    assert isinstance(error, AuthorizationError)
    assert "grant-permission public/default --role ROLE --actions consume" in str(error)


def test_an_operation_of_administrators_names_no_action() -> None:
    body = f"Unauthorized to validateTopicOperation for operation [DELETE] on topic [{TOPIC}]"
    assert "administrator of the tenant" in str(error_of(401, body.encode()))


def test_a_client_without_login_is_told_to_give_one() -> None:
    body = json.dumps(SERVLET | {"message": "Authentication required"}).encode()
    error = error_of(401, body, "none")
    assert isinstance(error, AuthenticationError)
    assert "HTTP 401: Authentication required. This client has no login" in str(error)


def test_a_refused_token_is_said_to_be_refused() -> None:
    body = json.dumps(SERVLET | {"message": "Failed to authentication token: expired"}).encode()
    error = error_of(401, body)
    assert isinstance(error, AuthenticationError)
    assert "HTTP 401: Failed to authentication token: expired" in str(error)
    assert "refuses the login of this client (method 'token')" in str(error)


def test_other_answers_keep_their_errors() -> None:
    assert isinstance(error_of(404, b'{"reason": "Topic not found"}'), TopicNotFound)
    assert str(error_of(404, b'{"reason": "no topic"}')).endswith("HTTP 404: no topic")
    assert isinstance(error_of(500, b"oops"), LookupError)
    assert len(str(error_of(500, b"x" * 10_000))) < 400
