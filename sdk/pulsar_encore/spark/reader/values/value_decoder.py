"""Protocols of the decoders, and the decoder of raw values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql.types import DataType

from ....values.message_id import MessageId
from ...source_columns import VALUE
from ..message_blocks import MessageBlock
from ..payloads import Payloads

Malformed: TypeAlias = dict[int, str]
"""Errors of malformed values, by index."""

Ids: TypeAlias = Callable[[], Iterable[MessageId]]
"""Returns the ids of some messages, created on demand."""


class ValueDecoder(Protocol):
    def note(self, block: MessageBlock, ids: Ids) -> None:
        """Note messages; the next `columns` call gets their values."""

    def columns(self, payloads: Payloads) -> tuple[dict[str, pa.Array], list[bool] | None]:
        """Return the columns of values by name, and which rows stay; None if all stay."""


class PartDecoder(Protocol):
    """Decodes a value, or one half of a pair, to the Spark type `type`."""

    type: DataType

    def decode(
        self, data: Sequence[bytes | None], versions: Sequence[int]
    ) -> tuple[pa.Array, Malformed]:
        """Return an array of `type`; null for None and for malformed values.

        `versions` has the schema version of each value; -1 for a message without a version.
        """


class RawValues:
    def note(self, block: MessageBlock, ids: Ids) -> None:
        """Do nothing: raw values need no schema version."""

    def columns(self, payloads: Payloads) -> tuple[dict[str, pa.Array], list[bool] | None]:
        return {VALUE: payloads.arrow()}, None


def to_array(rows: list[object], kind: pa.DataType, malformed: Malformed) -> pa.Array:
    """Convert objects; those that do not fit become null and are added to `malformed`."""
    try:
        return pa.array(rows, kind)
    except _CONVERSION_ERRORS:
        pass
    fitting = list(rows)
    for at, row in enumerate(rows):
        try:
            pa.array([row], kind)
        except _CONVERSION_ERRORS as error:
            malformed[at] = f"it does not fit {kind}: {error}"
            fitting[at] = None
    return pa.array(fitting, kind)


# Arrow's errors are subclasses of the first two.
_CONVERSION_ERRORS = (ValueError, TypeError, ArithmeticError)
