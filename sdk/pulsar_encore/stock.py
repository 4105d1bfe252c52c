"""What makes objects of this package the stock package's as well, once that is loaded.

Owns the border between the values and the C++ library: a program that says
`except pulsar.Timeout` or `isinstance(id, pulsar.MessageId)` needs nothing but another client.
Classes of ours name those of stock that they stand for (`twin`). They inherit from them from the
moment the program imports stock's package, whichever came first, and instances that were made
before are instances then too. Nothing here imports it, but for stock's own code (`library`).
Refuses to touch stock's classes: what they say of ours beyond inheritance stays theirs.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, TypeGuard, TypeVar

# Each is watched by itself: a program need not import the next.
_MODULES: Final = ("_pulsar", "pulsar", "pulsar.asyncio")

_K = TypeVar("_K", bound=type)


class Twin:
    """Base of a class that has no other, until it has stock's.

    A class whose base is `object` cannot be given another one, and a class with a dictionary of
    attributes only one that has that too: stock's have.
    """


_twins: Final[list[tuple[type, tuple[type, ...], tuple[str, ...]]]] = []


def twin(*names: str) -> Callable[[_K], _K]:
    """Have a class inherit from stock's, behind its own bases, when they are there.

    Args:
        names: Full names, such as ``"pulsar.MessageId"``; without a dot, of the C++ library.
    """

    def stand_for(kind: _K) -> _K:
        full = tuple(name if "." in name else f"_pulsar.{name}" for name in names)
        _twins.append((kind, kind.__bases__, full))
        _link(*_twins[-1])
        return kind

    return stand_for


def link() -> None:
    """Give all twins what is loaded of stock; again does nothing."""
    for kind, own, names in _twins:
        _link(kind, own, names)
    if _watch in sys.meta_path and all(name in sys.modules for name in _MODULES):
        sys.meta_path.remove(_watch)


def _link(kind: type, own: tuple[type, ...], names: tuple[str, ...]) -> None:
    theirs = tuple(each for name in names if (each := _loaded(name)) is not None)
    bases = (*(each for each in own if not (theirs and each is Twin)), *theirs)
    if kind.__bases__ != bases:
        kind.__bases__ = bases


def _loaded(name: str) -> type | None:
    module, _, attribute = name.rpartition(".")
    found = getattr(sys.modules.get(module), attribute, None)
    return found if isinstance(found, type) else None


def is_one(value: object, *names: str) -> TypeGuard[Any]:
    """Whether a value is of one of stock's classes, by their full names; loads nothing."""
    kinds = (_loaded(name) for name in names)
    return any(isinstance(value, kind) for kind in kinds if kind is not None)


def member_for_stock(member: Any) -> Any:
    """An enum's member, as stock's code has to be handed it: its own where that is loaded."""
    theirs = _loaded(f"_pulsar.{type(member).__name__}")
    return member if theirs is None else getattr(theirs, member.name)


def library() -> Any:
    """The C++ library, for what only stock's code asks for; loads it."""
    return importlib.import_module("_pulsar")


class _Watch:
    """A finder of modules that finds none of its own: it sees stock's coming, to link then."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _MODULES:
            return None
        others = [each for each in sys.meta_path if each is not self]
        for finder in others:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _link_after(spec.loader)
                return spec
        return None


def _link_after(loader: Loader | None) -> None:
    """Have a loader link when it has run a module; it stays the object that it is.

    One that does not let itself be changed loads as ever; our transport over stock links as well.
    """
    with contextlib.suppress(AttributeError):
        run = loader.exec_module  # type: ignore[union-attr]

        def exec_module(module: ModuleType) -> None:
            run(module)
            link()

        loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]


_watch: Final = _Watch()
for _name in _MODULES:
    if sys.modules.get(_name) is None:
        sys.meta_path.insert(0, _watch)
        break
    importlib.import_module(_name)  # waits where another thread is at it
