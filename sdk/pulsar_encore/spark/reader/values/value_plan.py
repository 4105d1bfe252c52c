"""How values are decoded: decided when a query is planned, and pickled for its tasks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueForm:
    """The encoding of a value or of one half of a pair.

    Attributes:
        kind: "raw", "json", "avro", or a primitive by its lower-cased name in the registry, such as
            "string" or "int32".
        definition: Avro's JSON, for "avro", and for "json" with a schema from the registry.
        fields: JSON of Spark's `StructType`, for "json" with a schema from the user.
    """

    kind: str
    definition: str = ""
    fields: str = ""


RAW = ValueForm(kind="raw")


@dataclass(frozen=True, kw_only=True, slots=True)
class ValuePlan:
    """How the values of a read are decoded.

    Attributes:
        mode: "PERMISSIVE", "FAILFAST" or "DROPMALFORMED".
        key: Encoding of the key of a pair; None if values are not pairs.
        separated: The key of a pair is the message's partition key; else the payload holds both.
    """

    value: ValueForm = RAW
    mode: str = "PERMISSIVE"
    key: ValueForm | None = None
    separated: bool = False
