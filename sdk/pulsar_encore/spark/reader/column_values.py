"""The values of one column, until they become an Arrow array."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa


class ColumnValues:
    """Values of one column. A value of many rows is stored once with its count."""

    __slots__ = ("_arrays", "_counts", "_kind", "_values")

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._arrays: list[pa.Array] = []
        self._values: list[Any] = []
        self._counts: list[int] = []

    def add(self, value: Any) -> None:
        self._values.append(value)
        self._counts.append(1)

    def extend(self, values: Sequence[Any], counts: Sequence[int] | None = None) -> None:
        self._values += values
        self._counts += repeat(1, len(values)) if counts is None else counts

    def repeat(self, value: Any, count: int) -> None:
        if self._values and self._values[-1] is value:
            self._counts[-1] += count
        else:
            self._values.append(value)
            self._counts.append(count)

    def append(self, array: pa.Array) -> None:
        """Add an array of the column's type, or of a type that casts to it."""
        self._close_run()
        self._arrays.append(array.cast(self._kind))

    def take(self) -> pa.Array:
        self._close_run()
        arrays, self._arrays = self._arrays, []
        if len(arrays) == 1:
            return arrays[0]
        return pa.concat_arrays(arrays) if arrays else pa.array([], self._kind)

    def _close_run(self) -> None:
        if not self._values:
            return
        values, counts = self._values, self._counts
        self._values, self._counts = [], []
        array = pa.array(values, self._kind)
        if sum(counts) != len(counts):
            array = array.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
        self._arrays.append(array)
