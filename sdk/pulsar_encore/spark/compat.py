"""Fallbacks for PySpark 4.0 and 4.1.

Nothing calls the stand-in of a missing class, because a release that lacks the class lacks its
callers too.

- 4.0 pushes no filters, and passes Arrow data only to a `DataSourceArrowWriter`.
- 4.0 and 4.1 do not say where a stream's next batch begins. They have no limits of a batch, and
  sources cannot take part in `Trigger.AvailableNow`.
"""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import pyspark

_MIN_VERSION: Final = "4.0"

if int(pyspark.__version__.partition(".")[0]) < 4:
    raise ImportError(
        f"pulsar_encore.spark needs PySpark {_MIN_VERSION} or later, this is "
        f'{pyspark.__version__}: pip install "pyspark>={_MIN_VERSION}"'
    )

import pyarrow as pa  # noqa: E402
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter  # noqa: E402
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type  # noqa: E402
from pyspark.sql.types import DataType, StructType  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceStreamArrowWriter,
        EqualNullSafe,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        IsNull,
        LessThan,
        LessThanOrEqual,
        Not,
        StringContains,
        StringEndsWith,
        StringStartsWith,
    )
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:
    try:
        from pyspark.sql.datasource import (
            DataSourceStreamArrowWriter,
            EqualNullSafe,
            EqualTo,
            Filter,
            GreaterThan,
            GreaterThanOrEqual,
            In,
            IsNotNull,
            IsNull,
            LessThan,
            LessThanOrEqual,
            Not,
            StringContains,
            StringEndsWith,
            StringStartsWith,
        )
    except ImportError:  # 4.0

        class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """4.0 passes Arrow data to a writer that is a `DataSourceArrowWriter`."""

        class Filter:
            """4.0 pushes no filters."""

        def _kind(name: str) -> type:
            return type(name, (Filter,), {})

        EqualNullSafe, EqualTo = _kind("EqualNullSafe"), _kind("EqualTo")
        GreaterThan, GreaterThanOrEqual = _kind("GreaterThan"), _kind("GreaterThanOrEqual")
        LessThan, LessThanOrEqual = _kind("LessThan"), _kind("LessThanOrEqual")
        In, Not = _kind("In"), _kind("Not")
        IsNotNull, IsNull = _kind("IsNotNull"), _kind("IsNull")
        StringContains = _kind("StringContains")
        StringEndsWith, StringStartsWith = _kind("StringEndsWith"), _kind("StringStartsWith")

    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:  # 4.0 and 4.1

        class ReadLimit:
            """4.0 and 4.1 pass no limits."""

        ReadAllAvailable = type("ReadAllAvailable", (ReadLimit,), {})
        ReadMaxRows = type("ReadMaxRows", (ReadLimit,), {})

        class SupportsTriggerAvailableNow:
            """4.0 and 4.1 freeze the end of a stream without its help."""


__all__ = [
    "HAS_LIMITS",
    "DataSourceStreamArrowWriter",
    "EqualNullSafe",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "IsNotNull",
    "IsNull",
    "LessThan",
    "LessThanOrEqual",
    "Not",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "StringContains",
    "StringEndsWith",
    "StringStartsWith",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "arrow_type",
]

HAS_LIMITS: Final = find_spec("pyspark.sql.streaming.datasource") is not None
"""True if PySpark says where a stream's next batch begins (4.2), without which no limit holds."""

# The time zone is an argument from 4.2 on. Before, it is always UTC.
_UTC: Final[dict[str, str]] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
)


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type that Spark takes for a type of its own; times are in UTC."""
    return to_arrow_type(kind, **_UTC)  # type: ignore[arg-type]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark takes for a schema of its own; times are in UTC."""
    return to_arrow_schema(schema, **_UTC)  # type: ignore[arg-type]
