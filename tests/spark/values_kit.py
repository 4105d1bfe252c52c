"""Values decoded like in a task, without Spark: bytes in, rows out, types checked."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from pulsar_encore import MessageId
from pulsar_encore.spark.compat import arrow_schema
from pulsar_encore.spark.reader.message_blocks import MessageBlock
from pulsar_encore.spark.reader.payloads import Payloads
from pulsar_encore.spark.reader.values.decoder_choice import plan_of, value_fields, values_of
from pulsar_encore.spark.reader.values.value_plan import ValuePlan
from pulsar_encore.spark.source_options import read_options
from pulsar_encore.transport.interface import Delivery

TOPIC = "persistent://public/default/t"


class SchemaAndKey:
    """A message's metadata beside its value."""

    def __init__(self, version: int, key: bytes | None) -> None:
        self._version = version
        self._key = key

    def int_schema_version(self) -> int:
        return self._version

    def partition_key_bytes(self) -> bytes | None:
        return self._key


def plan_with(**changes: str) -> ValuePlan:
    """Return the plan of a read, with changes to the default fields of `Shape`."""
    given = {"service.url": "pulsar://localhost:6650", "topic": TOPIC}
    return plan_of(replace(read_options(given, streaming=False).shape, **changes))


def json_plan(ddl: str, mode: str = "PERMISSIVE") -> ValuePlan:
    return plan_with(value_format="json", value_schema=ddl, mode=mode)


def avro_plan(schema: str, mode: str = "PERMISSIVE") -> ValuePlan:
    return plan_with(value_format="avro", value_schema=schema, mode=mode)


def decoded(
    plan: ValuePlan,
    data: Sequence[bytes | None],
    *,
    only: Sequence[str] | None = None,
    versions: Sequence[int] | None = None,
    writers: Mapping[int, str] | None = None,
    keys: Sequence[bytes | None] | None = None,
) -> pa.RecordBatch:
    """Return the columns of some values with exactly Spark's types. Dropped rows are left out.

    Args:
        plan: The plan, which is pickled as between processes.
        data: The values, each an entry of its own.
        only: The selected columns, or None for all.
        versions: The schema version of each value.
        writers: Avro's JSON by version.
        keys: Partition keys.
    """
    plan = pickle.loads(pickle.dumps(plan))
    fields = [each for each in value_fields(plan) if only is None or each.name in only]
    schema = StructType(fields)
    values = values_of(plan, schema, TOPIC, _writers(writers or {}))
    for at in range(len(data)):
        metadata: Any = SchemaAndKey(versions[at] if versions else -1, keys[at] if keys else None)
        block = MessageBlock([(Delivery(0, 7, at, 0, 0, (0,), [metadata]), 0, 1)])
        values.note(block, lambda at=at: [MessageId(-1, 7, at)])  # type: ignore[misc]
    payloads = Payloads()
    payloads.add(data)
    made, kept = values.columns(payloads)
    expected = arrow_schema(schema)
    batch = pa.RecordBatch.from_arrays([made[name] for name in expected.names], expected.names)
    assert batch.schema == expected
    batch.validate(full=True)
    assert batch.num_rows == len(data)
    return batch if kept is None else batch.filter(pa.array(kept))


def _writers(texts: Mapping[int, str]) -> Any:
    def find(version: int) -> str:
        if version not in texts:
            raise ValueError(f"schema version {version} is does not exist any more")
        return texts[version]

    each: Callable[[int], str] = find
    return each, each, each
