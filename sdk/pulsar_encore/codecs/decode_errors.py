"""Errors of payloads that do not decode, and paths of fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from ..errors import DecodeError

_KEPT_BYTES: Final = 64
# Keys of maps in a path. A key may have quotes and brackets, so the match is as long as possible.
_KEYS: Final = re.compile(r"\['.*'\]|\[\".*\"\]", re.DOTALL)


def codec_name(codec: Any) -> str:
    """Return the name of a codec in messages, also of one without a `__repr__`."""
    kind = type(codec)
    has_repr: Any = kind.__repr__ is not object.__repr__  # type: ignore[comparison-overlap]
    return repr(codec) if has_repr else kind.__name__


def decode_error(codec: Any, data: bytes, reason: str, field: str = "") -> DecodeError:
    """Return the error of a payload.

    The text has the size of the payload and nothing of its values, also not the keys of maps: it
    goes to logs and to the properties of letters, and a payload may have personal data.

    Args:
        field: Path of the field that does not fit, such as ``lines[2].price``.
    """
    name = codec_name(codec)
    at = f"field {_KEYS.sub('[...]', field)}: " if field else ""
    return DecodeError(
        f"the payload of {len(data)} bytes does not decode as {name}: {at}{reason}",
        reason=reason,
        schema=name,
        field=field,
        payload=bytes(data[:_KEPT_BYTES]),
    )


def field_path(parts: Sequence[str | int]) -> str:
    """Return a path as text: names of fields, and indexes of lists or keys of maps as ints."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text and not part.startswith("[") else part
    return text
