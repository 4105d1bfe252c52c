"""The schema classes of `pulsar-client`, unchanged.

They need the C++ client, so the first use of a name imports them. `schema.pyi` declares them for
type checkers.
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
    classes = import_module(".transport.stock.stock_schemas", __package__).classes
    globals().update({each: getattr(classes, each) for each in __all__})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
