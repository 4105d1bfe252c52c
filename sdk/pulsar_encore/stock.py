"""Recognize objects of `pulsar-client`, which exist only if the program has imported `pulsar`."""

from __future__ import annotations

import importlib
import sys
from typing import Any, TypeGuard


def is_one(value: object, *names: str) -> TypeGuard[Any]:
    """Return True if a value is an instance of a class with one of these full names."""
    for name in names:
        module, _, attribute = name.rpartition(".")
        kind = getattr(sys.modules.get(module), attribute, None)
        if isinstance(kind, type) and isinstance(value, kind):
            return True
    return False


def is_subclass(value: object, name: str) -> bool:
    """Return True if a value is a class derived from the class with this full name."""
    module, _, attribute = name.rpartition(".")
    kind = getattr(sys.modules.get(module), attribute, None)
    return isinstance(kind, type) and isinstance(value, type) and issubclass(value, kind)


def library() -> Any:
    """Import and return the C++ client (`_pulsar`)."""
    return importlib.import_module("_pulsar")
