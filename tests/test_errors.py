"""Errors have one root, say who must act and what to change.

They are raised here as for a client on the stock transport, so that `pulsar` programs catch each of
them by its name as well. `tests/client/test_stock_later.py` has programs without that transport.
"""

from __future__ import annotations

import copy
import inspect
import pickle

import pulsar
import pulsar.asyncio
import pulsar.exceptions
import pytest

import pulsar_encore as encore
from pulsar_encore import errors, exceptions
from pulsar_encore.transport.stock.dual_exceptions import use_dual_exceptions
from pulsar_encore.wire import pulsar_pb2 as pb

use_dual_exceptions()

KINDS = sorted(
    {
        kind
        for module in (errors, exceptions)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, errors.EncoreError)
    },
    key=lambda kind: kind.__name__,
)
RESULTS = [each for name, each in pulsar.Result.__members__.items() if name != "Ok"]


def every(kind: type[Exception]) -> set[type[Exception]]:
    return {kind}.union(*(every(each) for each in kind.__subclasses__()))


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_one_root_and_says_what_it_is_for(kind: type[Exception]) -> None:
    assert issubclass(kind, errors.EncoreError)
    assert kind.__doc__


def test_errors_are_what_python_code_expects() -> None:
    assert issubclass(errors.ConfigurationError, ValueError)
    assert issubclass(errors.ReceiveTimeout, TimeoutError)


def test_who_must_act_is_not_blurred_by_stocks_names() -> None:
    """Nothing that is nobody's fault, or the caller's, is taken for a failure of the broker."""
    for kind in (encore.ReceiveTimeout, encore.ClosedError, encore.InvalidTopicName):
        assert not issubclass(kind, encore.TransportError)
    assert not any(
        issubclass(kind, encore.ConfigurationError) for kind in every(encore.TransportError)
    )


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: str(result.name))
def test_each_result_is_raised_as_the_class_of_its_name(result: pulsar.Result) -> None:
    name = result.name
    error = errors.named(name, "why")
    for kind in (
        getattr(encore, name),
        getattr(encore.exceptions, name),
        getattr(pulsar, name),
        getattr(pulsar.exceptions, name),
        encore.PulsarException,
        pulsar.PulsarException,
        pulsar.asyncio.PulsarException,
        encore.EncoreError,
    ):
        assert isinstance(error, kind)
    assert error.error() is not None and error.error() == result
    assert (error.result, str(error)) == (name, "why")
    others = {each.name for each in RESULTS} - {name}
    assert not [each for each in others if isinstance(error, getattr(encore, each))]


@pytest.mark.parametrize("kind", [encore.ReceiveTimeout, encore.TransportTimeout])
def test_a_time_out_is_a_timeout_by_all_its_names(kind: type[encore.PulsarException]) -> None:
    for name in (
        encore.Timeout,
        pulsar.Timeout,
        encore.PulsarException,
        pulsar.PulsarException,
        pulsar.asyncio.PulsarException,
    ):
        with pytest.raises(name) as caught:
            raise kind("late")
        assert caught.value.error() == pulsar.Result.Timeout


def test_a_closed_object_is_already_closed_by_all_its_names() -> None:
    for name in (encore.AlreadyClosed, pulsar.AlreadyClosed, pulsar.asyncio.PulsarException):
        with pytest.raises(name):
            raise encore.ClosedError("shut")
    assert encore.ClosedError("shut").error() == pulsar.Result.AlreadyClosed


def test_what_the_protocol_calls_differently_has_the_clients_name() -> None:
    named = {code: errors.named(code, "x").result for code in pb.ServerError.keys()}
    assert set(named.values()) <= set(pulsar.Result.__members__)
    assert named["MetadataError"] == "BrokerMetadataError"
    assert named["TopicNotFound"] == "TopicNotFound"


def test_a_result_that_stock_has_not_is_a_transport_error() -> None:
    error = errors.named("Novelty", "what?", retryable=True)
    assert type(error) is type(encore.TransportError())
    assert (error.result, error.retryable) == ("Novelty", True)
    assert error.error() == pulsar.Result.UnknownError


def test_an_error_can_be_made_as_stocks_is() -> None:
    """In the tests of programs: `side_effect=PulsarException(Result.Timeout, "late")`."""
    error = encore.PulsarException(encore.Result.ConsumerBusy, "taken")
    assert (error.error(), error.result, str(error)) == (
        pulsar.Result.ConsumerBusy,
        "ConsumerBusy",
        "taken",
    )
    assert str(encore.PulsarException(encore.Result.Timeout)) == "Timeout"
    assert str(encore.Timeout("late")) == "late"
    assert encore.Timeout().error() == pulsar.Result.Timeout


def test_transport_errors_name_the_result() -> None:
    error = errors.TransportError("no such topic", result="TopicNotFound", retryable=True)
    assert str(error) == "no such topic"
    assert (error.result, error.retryable, error.error()) == (
        "TopicNotFound",
        True,
        pulsar.Result.TopicNotFound,
    )
    assert str(errors.TransportError(result="Timeout")) == "Timeout"
    assert not errors.TransportError().retryable


def test_broken_protocol_can_be_tried_again() -> None:
    error = errors.ProtocolError("frame of 9 GB")
    assert error.retryable
    assert error.result == "ProtocolError"


@pytest.mark.parametrize("kind", KINDS)
def test_errors_cross_processes(kind: type[Exception]) -> None:
    error = kind("why")
    assert isinstance(error, kind) and repr(error) == f"{kind.__name__}('why')"
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == "why"


@pytest.mark.parametrize(
    "kind", [each for each in KINDS if issubclass(each, encore.PulsarException)]
)
def test_what_an_error_knows_crosses_processes(kind: type[encore.PulsarException]) -> None:
    for retryable in (True, False):
        error = kind("why", result="Else", retryable=retryable)
        error.add_note("seen on Monday")
        for again in (
            pickle.loads(pickle.dumps(error)),
            copy.copy(error),
            copy.deepcopy(error),
        ):
            assert (again.result, again.retryable) == ("Else", retryable)
            assert (str(again), again.args) == ("why", ("why",))
            assert again.__notes__ == ["seen on Monday"]
