"""What the stock package's schema classes are to a type checker.

At run time they are its own. `JsonSchema` and `AvroSchema` are derived from its own.

A field read from a record is a value or None: any may be left out when a record is made. A nested
record is written as an instance, `address = Address()`, and an enum as `CustomEnum(Color)`: the
bare class works as well, but a checker takes its attribute for the class.
"""

from builtins import type as _type  # Field has a method of that name
from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar, Generic, Self, overload

from google.protobuf.message import Message as _ProtobufMessage
from typing_extensions import TypeVar

__all__ = [
    "Array",
    "AvroSchema",
    "Boolean",
    "Bytes",
    "BytesSchema",
    "CustomEnum",
    "Double",
    "Field",
    "Float",
    "Integer",
    "JsonSchema",
    "Long",
    "Map",
    "Null",
    "ProtobufNativeSchema",
    "Record",
    "Schema",
    "String",
    "StringSchema",
]

_T = TypeVar("_T", default=Any)
_V = TypeVar("_V")
_E = TypeVar("_E", bound=Enum)
_R = TypeVar("_R", bound=Record)
_P = TypeVar("_P", bound=_ProtobufMessage)

class _RecordMeta(type): ...
class _RecordSchemaType(type): ...

# `type` is left out: a field may have that name, and nothing calls the method.
class Record(metaclass=_RecordMeta):
    _avro_namespace: ClassVar[str | None]
    _sorted_fields: ClassVar[bool]

    def __init__(
        self,
        default: Any = None,
        required_default: bool = False,
        required: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None: ...
    # As a field of another record; anywhere else an instance is itself.
    @overload
    def __get__(self, instance: None, owner: _type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: Record, owner: _type[Any] | None = None) -> Self | None: ...
    @overload
    def __get__(self, instance: object, owner: _type[Any] | None = None) -> Self: ...
    def __set__(self, instance: object, value: Self | None) -> None: ...
    @classmethod
    def schema(cls) -> dict[str, Any]: ...
    @classmethod
    def schema_info(cls, defined_names: set[str]) -> dict[str, Any] | str: ...
    def __setattr__(self, key: str, value: Any) -> None: ...
    def __eq__(self, other: object) -> bool: ...
    def __ne__(self, other: object) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
    def python_type(self) -> _type[Self]: ...
    def validate_type(self, name: str, val: Any) -> Any: ...
    def default(self) -> Any: ...
    def required_default(self) -> bool: ...

class Field(Generic[_T]):
    def __init__(
        self, default: _T | None = None, required: bool = False, required_default: bool = False
    ) -> None: ...
    @overload
    def __get__(self, instance: None, owner: _type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: _type[Any] | None = None) -> _T | None: ...
    def __set__(self, instance: object, value: _T | None) -> None: ...
    def type(self) -> str: ...
    def python_type(self) -> Any: ...
    def validate_type(self, name: str, val: Any) -> Any: ...
    def schema(self) -> Any: ...
    def schema_info(self, defined_names: set[str]) -> Any: ...
    def default(self) -> _T | None: ...
    def required_default(self) -> bool: ...

class Null(Field[None]): ...

class Boolean(Field[bool]):
    @overload
    def __get__(self, instance: None, owner: _type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: _type[Any] | None = None) -> bool: ...
    def default(self) -> bool: ...

class Integer(Field[int]): ...
class Long(Field[int]): ...
class Float(Field[float]): ...
class Double(Field[float]): ...

class Bytes(Field[bytes]):
    def __init__(
        self,
        default: bytes | str | None = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None: ...
    def __set__(self, instance: object, value: bytes | str | None) -> None: ...

class String(Field[str]):
    def __init__(
        self,
        default: str | bytes | None = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None: ...
    def __set__(self, instance: object, value: str | bytes | None) -> None: ...

class CustomEnum(Field[_E]):
    enum_type: _type[_E]
    values: dict[Any, _E]
    def __init__(
        self,
        enum_type: _type[_E],
        default: _E | str | int | None = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None: ...
    def __set__(self, instance: object, value: _E | str | int | None) -> None: ...

class Array(Field[list[_V]]):
    array_type: Field[_V] | Record
    @overload
    def __init__(
        self: Array[_R],
        array_type: _R,
        default: list[_R] | None = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self,
        array_type: Field[_V],
        default: list[_V] | None = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None: ...

class Map(Field[dict[str, _V]]):
    value_type: Field[_V] | Record
    @overload
    def __init__(
        self: Map[_R],
        value_type: _R,
        default: dict[str, _R] | None = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self,
        value_type: Field[_V],
        default: dict[str, _V] | None = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None: ...

class Schema(Generic[_T]):
    def __init__(
        self,
        record_cls: _type[_T] | None,
        schema_type: Any,
        schema_definition: Any,
        schema_name: str,
    ) -> None: ...
    def encode(self, obj: _T) -> bytes: ...
    def decode(self, data: bytes) -> _T: ...
    def decode_message(self, msg: Any) -> _T: ...
    def schema_info(self) -> Any: ...
    def attach_client(self, client: Any) -> None: ...

class BytesSchema(Schema[bytes]):
    def __init__(self) -> None: ...
    def encode(self, data: bytes) -> bytes: ...

class StringSchema(Schema[str]):
    def __init__(self) -> None: ...

class JsonSchema(Schema[_R], metaclass=_RecordSchemaType):
    def __init__(self, record_cls: _type[_R]) -> None: ...

class AvroSchema(Schema[_T], metaclass=_RecordSchemaType):
    @overload
    def __init__(
        self: AvroSchema[_R],
        record_cls: _type[_R],
        schema_definition: Mapping[str, Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: AvroSchema[dict[str, Any]],
        record_cls: None,
        schema_definition: Mapping[str, Any],
    ) -> None: ...
    def encode_dict(self, d: Mapping[str, Any]) -> dict[str, Any]: ...

class ProtobufNativeSchema(Schema[_P]):
    def __init__(self, record_cls: _type[_P]) -> None: ...
