"""Recognize objects of `pulsar-client` without importing it.

A program that passes such objects has imported `pulsar`, so a look into `sys.modules` is enough.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, TypeGuard


def is_one(value: object, *names: str) -> TypeGuard[Any]:
    """Return True if a value is an instance of one of these classes of `pulsar-client`.

    Args:
        names: Full names of classes, such as ``"pulsar.MessageId"``.
    """
    for name in names:
        module, _, attribute = name.rpartition(".")
        kind = getattr(sys.modules.get(module), attribute, None)
        if isinstance(kind, type) and isinstance(value, kind):
            return True
    return False


def library() -> Any:
    """Import and return the C++ client (`_pulsar`), for methods that return its objects."""
    return importlib.import_module("_pulsar")
