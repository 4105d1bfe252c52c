"""Errors of payloads that do not decode, and paths of fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..errors import DecodeError

_SHOWN_BYTES: Final = 64


def codec_name(codec: Any) -> str:
    """Return the name of a codec in messages, also of one without a `__repr__`."""
    kind = type(codec)
    has_repr: Any = kind.__repr__ is not object.__repr__  # type: ignore[comparison-overlap]
    return repr(codec) if has_repr else kind.__name__


def decode_error(codec: Any, data: bytes, reason: str, field: str = "") -> DecodeError:
    """Return the error of a payload.

    Args:
        field: Path of the field that does not fit, such as ``lines[2].price``.
    """
    name = codec_name(codec)
    start = bytes(data[:_SHOWN_BYTES])
    at = f"field {field}: " if field else ""
    # The evidence of a letter ignores text in quotes, so that failures of one kind are alike.
    shown = start.decode("ascii", "backslashreplace").replace("'", '"')
    return DecodeError(
        f"the payload does not decode as {name}: {at}{reason}"
        + (f". The payload begins with '{shown}'" if data else ""),
        reason=reason,
        schema=name,
        field=field,
        payload=start,
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
