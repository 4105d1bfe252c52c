"""The codec for JSON: `Json`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, TypeVar, get_origin, overload

from .. import stock
from ..errors import ConfigurationError
from ..values.type_variables import T
from .codec import SchemaInfo
from .dataclass_json import JsonForm
from .decode_errors import decode_error, field_path
from .json_converters import Mismatch
from .json_definition import definition_of, given_definition
from .library_json import (
    check_instance,
    pydantic_adapter,
    pydantic_mismatch,
    struct_mismatch,
)
from .model_fields import is_pydantic, is_struct
from .type_forms import type_name

_M = TypeVar("_M")


class Json(Generic[T]):
    """JSON for objects of a class: a dataclass, TypedDict, pydantic model or msgspec Struct.

    A pydantic model and a msgspec Struct are read and written by their library. For dataclasses and
    TypedDicts, and for types such as ``list[Order]``, this package does it: nested classes,
    `X | None`, list, tuple, set, dict, Enum, Literal, datetime, date, time, Decimal, UUID and bytes
    (as base64). Unknown fields are ignored. A missing field gets its default, or None if
    its type allows None. Any other missing field is a `DecodeError`. Values are not converted
    between JSON types: ``"1"`` is no int.

    A producer registers the schema, with the definition that Java's `JSONSchema` has for the same
    fields. A consumer does not: it reads messages of any version, and a changed class never stops
    it with `IncompatibleSchema`.

    Args:
        model: The class.
        null: True to return None for a message without a value, False for a `DecodeError`.
        register: Consumers and readers also register the schema, so that the broker refuses them if
            it is incompatible.
        definition: The Avro schema to register, as a dict or in JSON, in place of that of the
            class.

    Raises:
        ConfigurationError: if the type of a field has no form in JSON.

    Example:
        ```python
        @dataclass
        class Order:
            id: int
            total: Decimal
            note: str | None = None

        consumer = await client.subscribe("orders", "billing", schema=pulsar_encore.Json(Order))
        message = await consumer.receive()
        order = message.value()  # an Order
        ```
    """

    @overload
    def __init__(
        self,
        model: type[T],
        *,
        null: Literal[False] = False,
        register: bool = False,
        definition: Mapping[str, Any] | str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Json[_M | None],
        model: type[_M],
        *,
        null: Literal[True],
        register: bool = False,
        definition: Mapping[str, Any] | str | None = None,
    ) -> None: ...
    def __init__(
        self,
        model: Any,
        *,
        null: bool = False,
        register: bool = False,
        definition: Mapping[str, Any] | str | None = None,
    ) -> None:
        for name, value in (("null", null), ("register", register)):
            if not isinstance(value, bool):
                raise ConfigurationError(f"Json: {name} must be True or False, got {value!r}")
        if not isinstance(model, type) and get_origin(model) is None:
            raise ConfigurationError(
                "Json needs a class: a dataclass, TypedDict, pydantic model or msgspec Struct, or "
                f"a type such as list[Order], got {model!r}"
            )
        if stock.is_subclass(model, "pulsar.schema.Record"):
            raise ConfigurationError(
                f"{model.__name__} is a Record of pulsar-client: use schema.JsonSchema("
                f"{model.__name__}), or declare a dataclass for Json"
            )
        self._model = model
        self._definition = None if definition is None else given_definition(definition)
        self.null: bool = null
        self.register: bool = register
        self._decode: Callable[[bytes], Any]
        self._encode: Callable[[Any], bytes]
        if is_pydantic(model):
            self._decode, self._encode = _pydantic(model)
        elif is_struct(model):
            self._decode, self._encode = _struct(model)
        else:
            form = JsonForm(model)
            self._decode, self._encode = form.decode, form.encode

    def __repr__(self) -> str:
        return f"Json({type_name(self._model)})"

    def encode(self, value: T, /) -> bytes:
        """Return a value as JSON.

        Raises:
            TypeError: if a value is not of its declared type.
        """
        try:
            return self._encode(value)
        except Mismatch as error:
            path = field_path(error.path[::-1])
            raise TypeError(f"{f'field {path}: ' if path else ''}{error.reason}") from error

    def decode(self, data: bytes, /) -> T:
        """Return the value of a JSON text.

        Raises:
            DecodeError: if the text is not JSON, or does not fit the class.
        """
        try:
            value: T = self._decode(data)
        except Mismatch as error:
            cause = error.__cause__ or error
            raise decode_error(self, data, error.reason, field_path(error.path[::-1])) from cause
        except RecursionError as error:
            raise decode_error(self, data, "it is nested too deeply") from error
        except ValueError as error:
            raise decode_error(self, data, f"it is not JSON: {error}") from error
        except MemoryError:  # the payload is not to blame
            raise
        except Exception as error:  # of a validator of the application
            raise decode_error(self, data, f"{type(error).__name__}: {error}") from error
        return value

    def schema_info(self) -> SchemaInfo:
        """Return the schema to register.

        Raises:
            ConfigurationError: if a field has no form in Avro, so that it needs a `definition`.
        """
        if self._definition is None:
            self._definition = definition_of(self._model)
        return SchemaInfo("JSON", self._definition, "JSON")


def _pydantic(model: Any) -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    pydantic = sys.modules["pydantic"]
    adapter = pydantic_adapter(model)
    read = adapter.validate_json

    def decode(data: bytes) -> Any:
        try:
            return read(data)
        except pydantic.ValidationError as error:
            raise pydantic_mismatch(error) from error

    def encode(value: Any) -> bytes:
        check_instance(value, model)
        data: bytes = adapter.dump_json(value, by_alias=True)
        return data

    return decode, encode


def _struct(model: Any) -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    msgspec = sys.modules["msgspec"]
    read = msgspec.json.Decoder(model).decode
    write = msgspec.json.Encoder().encode

    def decode(data: bytes) -> Any:
        try:
            return read(data)
        except msgspec.ValidationError as error:
            raise struct_mismatch(error) from error
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from error

    def encode(value: Any) -> bytes:
        check_instance(value, get_origin(model) or model)
        data: bytes = write(value)
        return data

    return decode, encode
