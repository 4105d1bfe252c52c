"""Values of the C++ client, recognized without loading it.

Programs may pass objects of `pulsar` to this package. Only a program that has loaded `pulsar` can
have such objects, so nothing is loaded to recognize them.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, TypeGuard


def is_one(value: object, *names: str) -> TypeGuard[Any]:
    """Return True if a value is an instance of a class of the C++ client.

    Args:
        value: Any object.
        names: Full names of classes, such as ``"pulsar.MessageId"``. A class of a module that is
            not loaded has no instances.
    """
    for name in names:
        module, _, attribute = name.rpartition(".")
        kind = getattr(sys.modules.get(module), attribute, None)
        if isinstance(kind, type) and isinstance(value, kind):
            return True
    return False


def library() -> Any:
    """Load and return the C++ library (`_pulsar`), for methods that return its objects."""
    return importlib.import_module("_pulsar")
