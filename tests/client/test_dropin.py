"""Nothing of the stock client is missing: both its APIs are walked and held against this one."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pulsar.asyncio
import pytest

import pulsar_encore as encore

# What differs on purpose, and why. An entry that no longer differs fails as well.
DELIBERATE = {
    "pulsar.Client.subscribe(schema): default": (
        "None means bytes, as in pulsar.asyncio; the synchronous client writes BytesSchema()"
    ),
}

CLASSES = ("Client", "Producer", "Consumer", "Reader")
ENUMS = (
    "BatchingType",
    "CompressionType",
    "ConsumerCryptoFailureAction",
    "ConsumerType",
    "InitialPosition",
    "PartitionsRoutingMode",
    "ProducerAccessMode",
    "RegexSubscriptionMode",
)


def comparable(default: Any) -> Any:
    """Enum members are the same when their class and member names are."""
    kind = type(default)
    if isinstance(default, enum.Enum) or hasattr(kind, "__members__"):
        return (kind.__name__, default.name)
    return default


def same(theirs: Any, ours: Any) -> bool:
    return bool(comparable(theirs) == comparable(ours))


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [
        each
        for each in inspect.signature(function).parameters.values()
        if each.name not in ("self", "kwargs")
    ]


def public_methods(kind: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }


def awaited(function: Callable[..., Any]) -> bool:
    """A coroutine function, or marked as one (in Python 3.11 only mocks and asyncio see that)."""
    return inspect.iscoroutinefunction(function) or hasattr(function, "_is_coroutine")


def compare(
    label: str, theirs: Callable[..., Any], ours: Callable[..., Any], *, positions: bool
) -> Iterator[str]:
    own = {each.name: (place, each) for place, each in enumerate(parameters(ours))}
    for place, parameter in enumerate(parameters(theirs)):
        what = f"{label}({parameter.name})"
        if parameter.name not in own:
            yield f"{what}: missing"
            continue
        own_place, own_parameter = own[parameter.name]
        if not same(parameter.default, own_parameter.default):
            yield f"{what}: default"
        if positions and (
            own_place != place or own_parameter.kind is inspect.Parameter.KEYWORD_ONLY
        ):
            yield f"{what}: position"
    if positions:
        known = {each.name for each in parameters(theirs)}
        for name, (_, parameter) in own.items():
            if name not in known and parameter.default is inspect.Parameter.empty:
                yield f"{label}({name}): new and required"


def differences() -> Iterator[str]:
    for name in CLASSES:
        theirs, ours = getattr(pulsar.asyncio, name), getattr(encore, name)
        for method, member in public_methods(theirs).items():
            label = f"pulsar.asyncio.{name}.{method}"
            own = getattr(ours, method, None)
            if own is None:
                yield f"{label}: missing"
                continue
            yield from compare(label, member, own, positions=True)
            if awaited(member) and not awaited(own):
                yield f"{label}: not a coroutine function"
            if awaited(own) and not awaited(member):
                yield f"{label}: a coroutine function"
    for kind, own_kind in ((pulsar.Message, encore.Message), (pulsar.MessageId, encore.MessageId)):
        for method, member in public_methods(kind).items():
            label = f"pulsar.{kind.__name__}.{method}"
            own = getattr(own_kind, method, None)
            if own is None:
                yield f"{label}: missing"
            elif inspect.isroutine(member):
                yield from compare(label, member, own, positions=True)
    yield from compare("pulsar.MessageId", pulsar.MessageId, encore.MessageId, positions=True)
    yield from compare("pulsar.Client", pulsar.Client.__init__, encore.Client, positions=True)
    yield from compare(
        "pulsar.Client.subscribe",
        pulsar.Client.subscribe,
        encore.Client.subscribe,
        positions=False,
    )


def test_every_name_keyword_and_default_of_stock_is_here() -> None:
    found = set(differences())
    assert found - DELIBERATE.keys() == set()
    assert DELIBERATE.keys() - found == set(), "no longer different: strike the entry"


def test_the_walk_sees_what_is_missing() -> None:
    def ours(topic: str, size: int = 2, *, late: int = 3) -> None: ...
    def theirs(topic: str, size: int = 1, late: int = 3, gone: int = 4) -> None: ...

    assert set(compare("f", theirs, ours, positions=True)) == {
        "f(size): default",
        "f(late): position",
        "f(gone): missing",
    }


def test_the_walk_covers_the_stock_classes() -> None:
    assert len(public_methods(pulsar.asyncio.Consumer)) >= 12
    assert len(parameters(pulsar.asyncio.Client.subscribe)) >= 25


@pytest.mark.parametrize("name", ENUMS)
def test_enums_have_stocks_members_and_values(name: str) -> None:
    theirs = getattr(pulsar, name)
    ours = getattr(encore, name)
    assert {each: int(member) for each, member in theirs.__members__.items()} == {
        each.name: each.value for each in ours
    }


def test_constants_of_ids_are_stocks() -> None:
    for name in ("earliest", "latest"):
        theirs = encore.MessageId.wrap(getattr(pulsar.MessageId, name))
        assert theirs == getattr(encore.MessageId, name)


def test_names_a_stock_program_imports_are_here() -> None:
    for name in (
        "AuthenticationToken",
        "AuthenticationTLS",
        "AutoClusterFailover",
        "ConsoleLogger",
        "ConsumerBatchReceivePolicy",
        "ConsumerDeadLetterPolicy",
        "ConsumerKeySharedPolicy",
        "CryptoKeyReader",
        "FileLogger",
        "LoggerLevel",
        "PulsarException",
    ):
        assert hasattr(encore, name), name
    theirs = {each for each in vars(pulsar.schema) if each[0].isupper()}
    assert {each for each in theirs if not hasattr(encore.schema, each)} == set()


def test_all_public_names_exist() -> None:
    for name in encore.__all__:
        assert hasattr(encore, name), name
