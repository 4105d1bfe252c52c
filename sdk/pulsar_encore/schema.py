"""The schema classes of `pulsar-client`.

`JsonSchema` and `AvroSchema` refuse a class that is not a `Record`. The others are unchanged. They
need the C++ client, so the first use of a name imports them. `schema.pyi` declares them for type
checkers.
"""

from importlib import import_module
from typing import Any

__all__ = [  # noqa: F822
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    schemas = import_module(".transport.stock.record_schemas", __package__)
    globals().update({each: getattr(schemas.classes, each) for each in __all__})
    globals().update(schemas.record_schemas)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
