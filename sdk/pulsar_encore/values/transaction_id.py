"""Ids of transactions (PIP-31)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_FORM: Final = re.compile(r"\(([0-9]{1,20}), ?([0-9]{1,20})\)")
_MAX_U64: Final = (1 << 64) - 1


class TxnId(NamedTuple):
    """The id of a transaction, written as ``(most,least)`` as in Java.

    Ids begin again at ``(0,0)`` in a new cluster, so an id that was stored long ago may belong to
    another transaction.

    Attributes:
        most: The number of the transaction coordinator, from 0.
        least: A counter of that coordinator, from 0. It survives restarts of the brokers.

    Example:
        >>> TxnId.parse("(0,48)")
        TxnId(most=0, least=48)
    """

    most: int
    least: int

    def __str__(self) -> str:
        return f"({self.most},{self.least})"

    @classmethod
    def parse(cls, text: str) -> TxnId:
        """Return the id that `str` wrote.

        Raises:
            ValueError: if the text is not ``(most,least)``, or a number is over 64 bits.
        """
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError(f"the transaction id {text!r} must be (most,least), such as (0,48)")
        most, least = int(found[1]), int(found[2])
        if max(most, least) > _MAX_U64:
            raise ValueError(f"the transaction id {text!r} has a number over 64 bits")
        return cls(most, least)
