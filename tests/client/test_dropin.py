"""Nothing of the stock client is missing: its names and both its APIs are held against this one."""

from __future__ import annotations

import copy
import enum
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pulsar
import pulsar.asyncio
import pulsar.exceptions
import pulsar.schema
import pytest

import pulsar_encore as encore

# Deliberate differences with their reasons. An entry that no longer differs fails as well.
DELIBERATE = {
    "pulsar.Client.subscribe(schema): default": (
        "None means bytes, as in pulsar.asyncio; the synchronous client writes BytesSchema()"
    ),
}

FUNCTIONS = "Pulsar Functions: Pulsar runs them itself, and brings stock's package along"
BLOCKING = "of the blocking client; there is none in pulsar.asyncio either"
# Missing names with their reasons. An entry that does exist fails as well.
NOT_HERE = {
    "pulsar.Context": FUNCTIONS,
    "pulsar.Function": FUNCTIONS,
    "pulsar.IdentitySerDe": FUNCTIONS,
    "pulsar.PickleSerDe": FUNCTIONS,
    "pulsar.SerDe": FUNCTIONS,
    "pulsar.functions": FUNCTIONS,
    "pulsar.TableView": BLOCKING,
    "pulsar.tableview": BLOCKING,
    "pulsar.schema.definition": "a file; its classes are in `schema`",
    "pulsar.schema.schema": "a file; its classes are in `schema`",
    "pulsar.schema.schema_avro": "a file; its classes are in `schema`",
    "pulsar.schema.schema_protobuf": "a file; its classes are in `schema`",
}
MODULES = (
    (pulsar, encore),
    (pulsar.asyncio, encore.asyncio),
    (pulsar.exceptions, encore.exceptions),
    (pulsar.schema, encore.schema),
)
# Stock's own objects, which are here as they are. Every other name is a class of this package and
# compared below.
# These refuse a class that is not a Record, so they are classes of this package.
RECORD_SCHEMAS = {"AvroSchema", "JsonSchema"}
SHARED = set(encore.schema.__all__) - RECORD_SCHEMAS

CLASSES = ("Client", "Producer", "Consumer", "Reader")
ENUMS = (
    "BatchingType",
    "CompressionType",
    "ConsumerCryptoFailureAction",
    "ConsumerType",
    "InitialPosition",
    "KeySharedMode",
    "LoggerLevel",
    "PartitionsRoutingMode",
    "ProducerAccessMode",
    "RegexSubscriptionMode",
    "Result",
)
# Their members say "not equal" to whatever is not of their own class: ours has to be on the left.
ONE_SIDED = {"ConsumerCryptoFailureAction"}
# Plain values: their constructors and public methods are compared.
VALUES = (
    "Authentication",
    "AuthenticationAthenz",
    "AuthenticationBasic",
    "AuthenticationOauth2",
    "AuthenticationTLS",
    "AuthenticationToken",
    "AutoClusterFailover",
    "ConsoleLogger",
    "ConsumerDeadLetterPolicy",
    "ConsumerKeySharedPolicy",
    "CryptoKeyReader",
    "EncryptionContext",
    "EncryptionKey",
    "FileLogger",
    "MessageBatch",
    "MessageId",
    "ServiceInfo",
    "ServiceInfoProvider",
)
# Made of the C++ library's functions, which have no signature: names are compared.
NATIVE_VALUES = ("DeadLetterPolicyBuilder", "KeySharedPolicy")


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
    for name in ("Message", *VALUES):
        kind, own_kind = getattr(pulsar, name), getattr(encore, name)
        for method, member in public_methods(kind).items():
            label = f"pulsar.{name}.{method}"
            own = vars(own_kind).get(method)
            own = getattr(own_kind, method) if own is not None else None
            if own is None:
                yield f"{label}: missing"
            elif inspect.isroutine(member):
                yield from compare(label, member, own, positions=True)
        for each, member in vars(kind).items():
            if isinstance(member, property) and not isinstance(vars(own_kind).get(each), property):
                yield f"pulsar.{name}.{each}: no property"
        if name != "Message":  # applications do not construct messages
            yield from compare(f"pulsar.{name}", kind.__init__, own_kind.__init__, positions=True)
    for name in NATIVE_VALUES:
        for method in public_methods(getattr(pulsar, name)):
            if not hasattr(getattr(encore, name), method):
                yield f"pulsar.{name}.{method}: missing"
    yield from compare("pulsar.Client", pulsar.Client.__init__, encore.Client, positions=True)
    yield from compare(
        "pulsar.Client.subscribe",
        pulsar.Client.subscribe,
        encore.Client.subscribe,
        positions=False,
    )


def test_every_method_keyword_and_default_of_pulsar_client_exists() -> None:
    found = set(differences())
    assert found - DELIBERATE.keys() == set()
    assert DELIBERATE.keys() - found == set(), "no longer different: strike the entry"


def public_names(module: ModuleType) -> dict[str, Any]:
    """Return the names of a module, without the names that its file imports for its own use."""
    found = {}
    for name, thing in vars(module).items():
        home = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", "")
        if not name.startswith("_") and home.split(".")[0] in ("pulsar", "_pulsar"):
            found[name] = thing
    return {name: thing for name, thing in found.items() if thing is not pulsar}


def test_every_public_name_of_pulsar_client_exists_or_is_listed() -> None:
    missing = {
        f"{theirs.__name__}.{name}"
        for theirs, ours in MODULES
        for name in public_names(theirs)
        if not hasattr(ours, name)
    }
    assert missing - NOT_HERE.keys() == set()
    assert NOT_HERE.keys() - missing == set(), "it is here: strike the entry"


def test_only_schemas_are_objects_of_pulsar_client() -> None:
    shared = {
        name
        for theirs, ours in MODULES
        for name, thing in public_names(theirs).items()
        if getattr(ours, name, None) is thing
    }
    assert shared == SHARED


@pytest.mark.parametrize("name", sorted(RECORD_SCHEMAS))
def test_record_schemas_of_either_package_are_instances_of_both_classes(name: str) -> None:
    class Order(encore.schema.Record):  # type: ignore[misc]
        id = encore.schema.Integer()

    theirs, ours = getattr(pulsar.schema, name), getattr(encore.schema, name)
    for schema in (theirs(Order), ours(Order)):
        assert isinstance(schema, theirs) and isinstance(schema, ours)
        assert isinstance(schema, pulsar.schema.Schema)
        assert schema.encode(Order(id=1)) == theirs(Order).encode(Order(id=1))
    assert issubclass(theirs, ours) and issubclass(ours, theirs)

    class Derived(ours):  # type: ignore[misc, valid-type]
        pass

    assert isinstance(Derived(Order), theirs) and isinstance(Derived(Order), ours)
    assert not isinstance(theirs(Order), Derived) and not isinstance(object(), ours)


def test_the_comparison_covers_the_names_of_pulsar_client() -> None:
    assert len(public_names(pulsar)) >= 90
    assert len(public_names(pulsar.exceptions)) >= 46
    assert {"AvroSchema", "Record"} <= public_names(pulsar.schema).keys()
    assert "List" not in public_names(pulsar)


def test_the_comparison_finds_changed_and_missing_parameters() -> None:
    def ours(topic: str, size: int = 2, *, late: int = 3) -> None: ...
    def theirs(topic: str, size: int = 1, late: int = 3, gone: int = 4) -> None: ...

    assert set(compare("f", theirs, ours, positions=True)) == {
        "f(size): default",
        "f(late): position",
        "f(gone): missing",
    }


def test_the_comparison_covers_the_classes_of_pulsar_client() -> None:
    assert len(public_methods(pulsar.asyncio.Consumer)) >= 12
    assert len(parameters(pulsar.asyncio.Client.subscribe)) >= 25


@pytest.mark.parametrize("name", ENUMS)
def test_enums_have_the_members_and_values_of_pulsar_client(name: str) -> None:
    theirs = getattr(pulsar, name)
    ours = getattr(encore, name)
    assert {each: int(member) for each, member in theirs.__members__.items()} == {
        each: member.value for each, member in ours.__members__.items()
    }


@pytest.mark.parametrize("name", ENUMS)
def test_enum_members_equal_those_of_pulsar_client_and_hash_alike(name: str) -> None:
    for label, theirs in getattr(pulsar, name).__members__.items():
        ours = getattr(getattr(encore, name), label)
        assert ours == theirs and not ours != theirs
        assert {ours: 1}[theirs] == 1
        if name not in ONE_SIDED:
            assert theirs == ours and not theirs != ours
            assert {theirs: 1}[ours] == 1
        assert bool(ours) is bool(theirs) is True
        assert (str(ours), f"{ours}", repr(ours)) == (str(theirs), f"{theirs}", repr(theirs))
        for again in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
            assert again == ours and type(again) is type(ours)
        others = [each for each in getattr(pulsar, name).__members__.values() if ours == each]
        assert others == [theirs]


def test_earliest_and_latest_equal_those_of_pulsar_client() -> None:
    for name in ("earliest", "latest"):
        theirs = encore.MessageId.wrap(getattr(pulsar.MessageId, name))
        assert theirs == getattr(encore.MessageId, name)


def test_all_public_names_exist() -> None:
    for name in encore.__all__:
        assert hasattr(encore, name), name


def test_testing_and_deadletters_need_no_import_of_their_own() -> None:
    """As many programs write them; and they cost a program that does not use them nothing."""
    program = (
        "import sys, pulsar_encore as encore\n"
        "assert not {'pulsar_encore.testing', 'pulsar_encore.devbroker'} & sys.modules.keys()\n"
        "print(encore.testing.run.__name__, encore.deadletters.DeadLetters.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("run DeadLetters\n", "")
