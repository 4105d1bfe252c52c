"""How values are decoded, decided when a query is planned and carried to its tasks.

Owns `ValuePlan` and `ValueForm`: values that can be pickled, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueForm:
    """How one thing is encoded.

    Attributes:
        kind: "raw", "json", "avro", or a primitive as the registry names it, lower-cased:
            "string", "int32" and so on.
        definition: Avro's JSON, of "avro", and of "json" where the registry says what is in it.
        fields: JSON of Spark's `StructType`, of "json" where the user says it.
    """

    kind: str
    definition: str = ""
    fields: str = ""


RAW = ValueForm(kind="raw")


@dataclass(frozen=True, kw_only=True, slots=True)
class ValuePlan:
    """What is done with the values of a read.

    Attributes:
        value: Of the value, or of the value of a pair.
        mode: "PERMISSIVE", "FAILFAST" or "DROPMALFORMED".
        key: Of the key, where a value is a pair of key and value.
        separated: The key of a pair is the message's partition key; else both are in the payload.
    """

    value: ValueForm = RAW
    mode: str = "PERMISSIVE"
    key: ValueForm | None = None
    separated: bool = False
