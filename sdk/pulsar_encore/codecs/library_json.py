"""JSON of pydantic models and msgspec Structs inside other types, and the errors of both libraries.

A class of theirs exists only if the program has imported its library.
"""

from __future__ import annotations

import json
import sys
from typing import Any, get_origin

from ..errors import ConfigurationError
from .json_converters import Convert, Mismatch, without_decimals


def pydantic_converters(model: Any) -> tuple[Convert, Convert]:
    adapter = pydantic_adapter(model)

    def decode(value: Any) -> Any:
        try:
            return adapter.validate_json(json.dumps(without_decimals(value)))
        except ValueError as error:
            raise pydantic_mismatch(error) from error

    def encode(value: Any) -> Any:
        check_instance(value, model)
        return adapter.dump_python(value, mode="json", by_alias=True)

    return decode, encode


def pydantic_adapter(model: Any) -> Any:
    """Return the `TypeAdapter` of a class."""
    pydantic = sys.modules["pydantic"]
    if not hasattr(pydantic, "TypeAdapter"):
        raise ConfigurationError(
            f"Json: {model.__name__} is a model of pydantic {pydantic.VERSION}: install pydantic 2"
        )
    return pydantic.TypeAdapter(model)


def pydantic_mismatch(error: Any) -> Mismatch:
    """Return the first problem that pydantic found."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    found = Mismatch(first["msg"])
    found.path = list(reversed(first["loc"]))
    return found


def struct_converters(model: Any) -> tuple[Convert, Convert]:
    msgspec = sys.modules["msgspec"]

    def decode(value: Any) -> Any:
        try:
            return msgspec.convert(without_decimals(value), model)
        except msgspec.ValidationError as error:
            raise struct_mismatch(error) from error

    def encode(value: Any) -> Any:
        check_instance(value, get_origin(model) or model)
        return msgspec.to_builtins(value)

    return decode, encode


def check_instance(value: Any, model: Any) -> None:
    """Raise Mismatch if a value to write is not of a class."""
    if not isinstance(value, model):
        raise Mismatch(f"it must be {model.__name__}, not {type(value).__name__}")


def struct_mismatch(error: Exception) -> Mismatch:
    """Return the problem that msgspec found; its text ends in ``- at `$.lines[0].price` ``."""
    reason, _, at = str(error).partition(" - at `$")
    found = Mismatch(reason)
    path = at.removesuffix("`").removeprefix(".")
    if path:
        found.path = [path]
    return found
