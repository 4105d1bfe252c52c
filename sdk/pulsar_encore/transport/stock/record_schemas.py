"""The record schemas of `pulsar-client`, which refuse a class that is not a `Record`.

The classes of `pulsar-client` accept a pydantic model, because that has a method `schema` too, and
raise an AttributeError for a dataclass.
"""

from __future__ import annotations

from typing import Any, Final

from pulsar import schema as classes

from ...codecs.bound_codec import check_record

_HERE: Final = "pulsar_encore.schema"  # where applications import them


class _RecordSchemaType(type):
    """Makes schemas of `pulsar-client` instances of the classes here, as its own classes do."""

    def __instancecheck__(cls, value: object) -> bool:
        if cls.__module__ == _HERE:
            return isinstance(value, cls.__mro__[1])
        return super().__instancecheck__(value)  # a class of the application

    def __subclasscheck__(cls, kind: type) -> bool:
        if cls.__module__ == _HERE:
            return issubclass(kind, cls.__mro__[1])
        return super().__subclasscheck__(kind)


class _JsonSchema(classes.JsonSchema, metaclass=_RecordSchemaType):  # type: ignore[misc]
    __doc__ = classes.JsonSchema.__doc__
    __module__ = _HERE
    __qualname__ = "JsonSchema"

    def __init__(self, record_cls: Any) -> None:
        check_record("JsonSchema", record_cls)
        super().__init__(record_cls)


class _AvroSchema(classes.AvroSchema, metaclass=_RecordSchemaType):  # type: ignore[misc]
    __doc__ = classes.AvroSchema.__doc__
    __module__ = _HERE
    __qualname__ = "AvroSchema"

    def __init__(self, record_cls: Any, schema_definition: Any = None) -> None:
        check_record("AvroSchema", record_cls)
        super().__init__(record_cls, schema_definition)


# Their bases are untyped, so `schema.pyi` declares them for type checkers.
record_schemas: Final[dict[str, Any]] = {"JsonSchema": _JsonSchema, "AvroSchema": _AvroSchema}
for _name, _schema in record_schemas.items():
    _schema.__name__ = _name
