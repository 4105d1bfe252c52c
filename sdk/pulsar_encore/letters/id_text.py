"""Message ids as text in letter properties and listings, in Java's format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ..errors import ConfigurationError
from ..values.message_id import MessageId

_ID: Final = re.compile(
    r"(?:(?P<l0>\d{1,19}):(?P<e0>\d{1,19}):(?:-1|\d{1,9});)?"
    r"(?P<l>\d{1,19}):(?P<e>\d{1,19})(?::(?P<p>-1|\d{1,9})(?::(?P<i>\d{1,9}))?)?",
    re.ASCII,
)


def id_text(message_id: MessageId) -> str:
    """Return the text of an id: `L:E:P`, `L:E:P:I` in a batch, `first;last` for chunks."""
    return MessageId.__str__(message_id)


def parse_id(text: str) -> MessageId:
    """Return the id of a text that `id_text` made; ConfigurationError for any other text."""
    match = _ID.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"{text[:100]!r} is not a message id: write ledger:entry:partition, with :index after "
            "it for a message of a batch, such as 4612:0:-1"
        )
    parts: Mapping[str, Any] = match.groupdict()
    partition = int(parts["p"] or -1)
    first = None
    if parts["l0"] is not None:
        first = MessageId(partition, int(parts["l0"]), int(parts["e0"]))
    index = -1 if parts["i"] is None else int(parts["i"])
    return MessageId(partition, int(parts["l"]), int(parts["e"]), index, first_chunk=first)
