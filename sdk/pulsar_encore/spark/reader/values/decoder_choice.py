"""The choice of the decoder and the value columns of a read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructField, StructType

from ....errors import ConfigurationError
from ...source_columns import CORRUPT, VALUE
from ...source_options import Shape
from .avro_types import read_avro, spark_type
from .avro_values import AvroPart
from .ddl import read_ddl
from .decoded_columns import KEY, DecodedValues, PairValues
from .json_values import JsonPart
from .primitives import FIXED, BytesPart, FixedPart, StringPart
from .value_decoder import PartDecoder, RawValues, ValueDecoder
from .value_plan import RAW, ValueForm, ValuePlan

WriterTexts = tuple[Callable[[int], str], Callable[[int], str], Callable[[int], str]]
"""See `schema_registry.writer_texts`."""

_USER_SCHEMA: Final = "valueSchema"
_REGISTRY_SCHEMA: Final = "the topic's schema"


def plan_of(shape: Shape) -> ValuePlan:
    form, schema = RAW, shape.value_schema or ""
    if shape.value_format == "string":
        form = ValueForm(kind="string")
    elif shape.value_format == "json":
        form = ValueForm(kind="json", fields=json.dumps(read_ddl(schema).jsonValue()))
    elif shape.value_format == "avro":
        read_avro(schema, _USER_SCHEMA)
        form = ValueForm(kind="avro", definition=schema)
    return ValuePlan(value=form, mode=shape.mode)


def value_fields(plan: ValuePlan) -> list[StructField]:
    """Return the columns of values, or raise ConfigurationError if two have the same name."""
    kind = _type(plan.value)
    if plan.key is not None:
        fields = [StructField(KEY, _type(plan.key)), StructField(VALUE, kind)]
    elif isinstance(kind, StructType):
        fields = list(kind.fields)
    else:
        return [StructField(VALUE, kind)]  # primitives have no column for malformed values
    if plan.mode == "PERMISSIVE":
        fields.append(StructField(CORRUPT, BinaryType()))
    _check_names([each.name for each in fields])
    return fields


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(
                f"the values have two fields {name!r}"
                if name != CORRUPT
                else f"the values have a field {CORRUPT!r}, as the column for what is malformed: "
                "set mode=FAILFAST or DROPMALFORMED, which have no such column"
            )


def check_columns(fields: Sequence[StructField], others: Iterable[str]) -> None:
    names = {each.name for each in fields}
    for other in others:
        if other in names:
            raise ConfigurationError(
                f"the values have a field {other!r}, and a metadata column has the name {other!r} "
                "too: set metadataPrefix to another prefix"
            )


def check_nullable(wanted: StructType, fields: Sequence[StructField]) -> None:
    """Raise ConfigurationError if the user's schema has NOT NULL for a field of the values.

    Spark would read a null in such a field as another value.
    """
    names = {each.name for each in fields}
    for field in wanted:
        if field.name in names and not (field.nullable and _all_nullable(field.dataType)):
            raise ConfigurationError(
                f"schema: {field.name} and all in it may be null, as in a message without a value: "
                "leave out NOT NULL"
            )


def _all_nullable(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(each.nullable and _all_nullable(each.dataType) for each in kind)
    if isinstance(kind, ArrayType):
        return kind.containsNull and _all_nullable(kind.elementType)
    if isinstance(kind, MapType):
        return kind.valueContainsNull and _all_nullable(kind.valueType)
    return True


def _type(form: ValueForm) -> DataType:
    if form.definition:
        return spark_type(read_avro(form.definition, _REGISTRY_SCHEMA)[1])
    return _part(form, None, _no_schema).type


def _no_schema(version: int) -> str:
    raise ValueError(f"schema version {version} is not known")


def _part(
    form: ValueForm, only: Sequence[str] | None, writer_text: Callable[[int], str]
) -> PartDecoder:
    if form.kind == "avro":
        return AvroPart(form.definition, only, writer_text, _REGISTRY_SCHEMA)
    if form.kind == "json":
        return _json_part(form, only)
    if form.kind in FIXED:
        return FixedPart(form.kind)
    return StringPart() if form.kind == "string" else BytesPart()


def _json_part(form: ValueForm, only: Sequence[str] | None) -> PartDecoder:
    node = None
    if form.definition:
        node = read_avro(form.definition, _REGISTRY_SCHEMA)[1]
        kind = spark_type(node)
    else:
        kind = StructType.fromJson(json.loads(form.fields))
    if only is None or not isinstance(kind, StructType):
        return JsonPart(kind, node)
    indexes = [at for at, each in enumerate(kind) if each.name in only]
    if node is not None and node.kind == "record":
        node = node.narrowed(set(only))
    return JsonPart(StructType([kind[at] for at in indexes]), node)


def values_of(
    plan: ValuePlan, schema: StructType, topic: str, writers: WriterTexts | None = None
) -> ValueDecoder:
    """Return the decoder of a plan; fields that `schema` lacks are not decoded."""
    wanted = [each.name for each in value_fields(plan) if each.name in schema.names]
    if not wanted or (plan.value == RAW and plan.key is None):
        return RawValues()
    whole, of_key, of_value = writers or (_no_schema, _no_schema, _no_schema)
    if plan.key is not None:
        return PairValues(
            _part(plan.key, None, of_key),
            _part(plan.value, None, of_value),
            topic,
            plan.mode,
            separated=plan.separated,
        )
    return DecodedValues(_part(plan.value, wanted, whole), topic, plan.mode)
