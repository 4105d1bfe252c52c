"""Fallbacks for PySpark 4.0 and 4.1.

A release that lacks a class lacks its callers too, so nothing calls the empty class in its stead.

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
    from pyspark.sql import datasource

    try:
        from pyspark.sql.streaming import datasource as limits
    except ImportError:  # 4.0 and 4.1
        limits = None

    class _StreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """4.0 passes Arrow data to a writer that is a `DataSourceArrowWriter`."""

    def _class(module: object, name: str, base: type = object) -> type:
        return getattr(module, name, None) or type(name, (base,), {})

    def _filter(name: str) -> type:
        return _class(datasource, name, Filter)

    DataSourceStreamArrowWriter = getattr(
        datasource, "DataSourceStreamArrowWriter", _StreamArrowWriter
    )
    Filter = _class(datasource, "Filter")
    EqualNullSafe, EqualTo = _filter("EqualNullSafe"), _filter("EqualTo")
    GreaterThan, GreaterThanOrEqual = _filter("GreaterThan"), _filter("GreaterThanOrEqual")
    LessThan, LessThanOrEqual = _filter("LessThan"), _filter("LessThanOrEqual")
    In, Not = _filter("In"), _filter("Not")
    IsNotNull, IsNull = _filter("IsNotNull"), _filter("IsNull")
    StringContains = _filter("StringContains")
    StringEndsWith, StringStartsWith = _filter("StringEndsWith"), _filter("StringStartsWith")
    ReadLimit = _class(limits, "ReadLimit")
    ReadAllAvailable = _class(limits, "ReadAllAvailable", ReadLimit)
    ReadMaxRows = _class(limits, "ReadMaxRows", ReadLimit)
    SupportsTriggerAvailableNow = _class(limits, "SupportsTriggerAvailableNow")


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
    return to_arrow_type(kind, **_UTC)  # type: ignore[arg-type]


def arrow_schema(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, **_UTC)  # type: ignore[arg-type]
