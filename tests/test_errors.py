"""Exceptions: one root, the names of `pulsar.exceptions`, pickling.

They are raised here as with a client on the stock transport, so that programs can also catch them
by the names of `pulsar`. `tests/client/test_stock_later.py` covers programs without that transport.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import traceback
from importlib import import_module

import pulsar
import pulsar.asyncio
import pulsar.exceptions
import pytest

import pulsar_encore as encore
from pulsar_encore import errors, exceptions
from pulsar_encore.devbroker import Refusal
from pulsar_encore.letters.evidence import evidence_of
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


def subclasses(kind: type[Exception]) -> set[type[Exception]]:
    return {kind}.union(*(subclasses(each) for each in kind.__subclasses__()))


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_the_same_root_and_a_docstring(kind: type[Exception]) -> None:
    assert issubclass(kind, errors.EncoreError)
    assert kind.__doc__


def test_the_help_of_the_module_shows_the_tree_of_its_own_errors() -> None:
    """The tree says who can repair the cause of each error."""
    tree = (errors.__doc__ or "").split("\n\n")[1]
    parents: list[type] = []
    shown = set()
    for line in tree.splitlines():
        name, depth = line.split()[0], (len(line) - len(line.lstrip()) - 4) // 2
        kind = Refusal if name == "Refusal" else getattr(errors, name)
        parents[depth:] = [kind]
        assert depth == 0 or issubclass(kind, parents[depth - 1])
        shown.add(name)
    assert shown == {*errors.encore_errors.__all__, "Refusal"}


def test_errors_inherit_from_the_builtin_ones() -> None:
    assert issubclass(errors.ConfigurationError, ValueError)
    assert issubclass(errors.ReceiveTimeout, TimeoutError)


def test_errors_of_the_caller_are_not_transport_errors() -> None:
    """Nor is a receive timeout. No transport error is a configuration error."""
    for kind in (encore.ReceiveTimeout, encore.ClosedError, encore.InvalidTopicName):
        assert not issubclass(kind, encore.TransportError)
    assert not any(
        issubclass(kind, encore.ConfigurationError) for kind in subclasses(encore.TransportError)
    )


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: str(result.name))
def test_each_result_is_raised_as_the_class_of_its_name(result: pulsar.Result) -> None:
    name = result.name
    error = errors.exception_of_result(name, "why")
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
def test_a_timeout_can_be_caught_by_all_its_names(kind: type[encore.PulsarException]) -> None:
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


def test_a_closed_error_can_be_caught_by_all_its_names() -> None:
    for name in (encore.AlreadyClosed, pulsar.AlreadyClosed, pulsar.asyncio.PulsarException):
        with pytest.raises(name):
            raise encore.ClosedError("shut")
    assert encore.ClosedError("shut").error() == pulsar.Result.AlreadyClosed


def test_results_of_the_protocol_get_the_names_of_the_clients() -> None:
    named = {code: errors.exception_of_result(code, "x").result for code in pb.ServerError.keys()}
    assert set(named.values()) <= set(pulsar.Result.__members__)
    assert named["MetadataError"] == "BrokerMetadataError"
    assert named["TopicNotFound"] == "TopicNotFound"


def test_a_result_without_a_class_is_a_transport_error() -> None:
    error = errors.exception_of_result("Novelty", "what?", retryable=True)
    assert type(error) is type(encore.TransportError())
    assert (error.result, error.retryable) == ("Novelty", True)
    assert error.error() == pulsar.Result.UnknownError


def test_an_error_can_be_created_as_in_pulsar_client() -> None:
    """Tests of programs do so: `side_effect=PulsarException(Result.Timeout, "late")`."""
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


def test_a_protocol_error_is_retryable() -> None:
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
def test_attributes_of_an_error_cross_processes(kind: type[encore.PulsarException]) -> None:
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


def public_errors() -> list[tuple[str, type[BaseException]]]:
    """Return the exception classes of the public modules, with the module."""
    found = []
    for part in ("", ".deadletters", ".evacuation", ".spark", ".testing"):
        module = import_module(f"pulsar_encore{part}")
        for name in module.__all__:
            kind = getattr(module, name)
            if isinstance(kind, type) and issubclass(kind, BaseException):
                found.append((module.__name__, kind))
    return found


@pytest.mark.parametrize(("module", "kind"), public_errors())
def test_a_public_error_names_the_module_from_which_it_is_imported(
    module: str, kind: type[BaseException]
) -> None:
    assert kind.__module__ in (module, "pulsar_encore.errors")
    assert pickle.loads(pickle.dumps(kind)) is kind


def test_tracebacks_and_letters_show_the_public_name_of_an_error() -> None:
    error = encore.Reject("negative total")
    assert traceback.format_exception_only(error) == ["pulsar_encore.Reject: negative total\n"]
    assert evidence_of(error, "rejected").error_class == "pulsar_encore.Reject"


@pytest.mark.parametrize(
    "error",
    [
        encore.Reject("why"),
        encore.Retry(30, count=False),
        encore.BatchFailure({2: ValueError("why")}),
        encore.ContentError("why"),
    ],
    ids=repr,
)
def test_errors_of_handlers_and_producers_cross_processes(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)


@pytest.mark.parametrize(
    "kind", [encore.DeadLetterPolicyBuilder, encore.KeySharedPolicy, encore.MessageBatch]
)
def test_an_object_without_a_repr_of_its_own_shows_no_internal_path(kind: type[object]) -> None:
    assert repr(kind()).startswith(f"<pulsar_encore.{kind.__name__} object at ")
