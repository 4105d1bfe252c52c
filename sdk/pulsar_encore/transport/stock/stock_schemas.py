"""The schema classes of `pulsar-client`, and the schema information for the C++ client."""

from __future__ import annotations

from typing import Any

from pulsar import schema as classes


def schema_info(schema: Any) -> Any:
    return (classes.BytesSchema() if schema is None else schema).schema_info()


def attach(schema: Any, native_client: Any) -> None:
    """Attach the client to a schema that can fetch older versions of itself."""
    if schema is not None and hasattr(schema, "attach_client"):
        schema.attach_client(native_client)
