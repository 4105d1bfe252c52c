"""What decodes values, and what decodes one of their parts.

Owns the protocols `ValueDecoder`, which `Rows` calls, and `PartDecoder`, and the bytes as they are
(`RawValues`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql.types import DataType

from ....values.message_id import MessageId
from ...compat import arrow_type
from ...source_columns import VALUE
from ..message_blocks import MessageBlock
from ..payloads import Payloads

Malformed: TypeAlias = dict[int, str]
"""What is wrong with a value, by its place."""

Ids: TypeAlias = Callable[[], Iterable[MessageId]]
"""Ids of some messages, made when they are asked for."""


class ValueDecoder(Protocol):
    """Decodes values."""

    def note(self, block: MessageBlock, ids: Ids) -> None:
        """These messages' values are among the next that `columns` gets, in this order."""

    def columns(self, payloads: Payloads) -> tuple[dict[str, pa.Array], list[bool] | None]:
        """The columns of some values, by name, and which rows stay; None for all.

        Raises:
            MalformedValueError: One cannot be decoded, and the mode is FAILFAST.
            TransportError: The schema that one was written with cannot be had now.
        """


class PartDecoder(Protocol):
    """Decodes one thing: a value, or the key of a pair.

    Attributes:
        type: What it becomes.
    """

    type: DataType

    def decode(
        self, data: Sequence[bytes | None], versions: Sequence[int]
    ) -> tuple[pa.Array, Malformed]:
        """An array of `type`, null where there is nothing, and where something is malformed.

        Args:
            data: The bytes.
            versions: Of the topic's schema, that each was written with; -1 where it does not say.

        Raises:
            TransportError: The schema of a version cannot be had now.
        """


class RawValues:
    """The bytes as they are."""

    def note(self, block: MessageBlock, ids: Ids) -> None:
        """Nothing but their values is needed."""

    def columns(self, payloads: Payloads) -> tuple[dict[str, pa.Array], list[bool] | None]:
        """All of them, in one column."""
        return {VALUE: payloads.arrow()}, None


def arrow(kind: DataType) -> pa.DataType:
    """As Spark takes it."""
    return arrow_type(kind)


def gathered(rows: list[object], kind: pa.DataType, malformed: Malformed) -> pa.Array:
    """An array of Python's objects; what does not fit is null, and noted.

    Args:
        rows: None for null.
        kind: Of the array.
        malformed: Is added to.
    """
    try:
        return pa.array(rows, kind)
    except _MISFITS:
        pass
    fitting = list(rows)
    for at, row in enumerate(rows):
        try:
            pa.array([row], kind)
        except _MISFITS as error:
            malformed[at] = f"it does not fit {kind}: {error}"
            fitting[at] = None
    return pa.array(fitting, kind)


_MISFITS = (ValueError, TypeError, ArithmeticError)  # Arrow's own are of the first two
