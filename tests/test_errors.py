"""Errors: one root, by who must act, each with what to change."""

from __future__ import annotations

import inspect
import pickle

import pytest

from pulsar_encore import errors

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, Exception) and kind.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_one_root_and_says_what_it_is_for(kind: type[Exception]) -> None:
    assert issubclass(kind, errors.EncoreError)
    assert kind.__doc__


def test_errors_are_what_python_code_expects() -> None:
    assert issubclass(errors.ConfigurationError, ValueError)
    assert issubclass(errors.ReceiveTimeout, TimeoutError)


def test_transport_errors_name_the_result() -> None:
    error = errors.TransportError("no such topic", result="TopicNotFound", retryable=True)
    assert str(error) == "no such topic"
    assert (error.result, error.retryable, error.error()) == (
        "TopicNotFound",
        True,
        "TopicNotFound",
    )
    assert str(errors.TransportError(result="Timeout")) == "Timeout"
    assert not errors.TransportError().retryable


def test_broken_protocol_can_be_tried_again() -> None:
    error = errors.ProtocolError("frame of 9 GB")
    assert error.retryable
    assert error.result == "ProtocolError"


@pytest.mark.parametrize("kind", KINDS)
def test_errors_cross_processes(kind: type[Exception]) -> None:
    again = pickle.loads(pickle.dumps(kind("why")))
    assert type(again) is kind
    assert str(again) == "why"
