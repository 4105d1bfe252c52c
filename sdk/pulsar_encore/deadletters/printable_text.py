"""Text of strangers, made safe for a terminal.

A letter's texts come from whoever published the message. Control characters, ANSI escapes and
characters that turn the reading direction are shown as escapes, so that what is printed is what
there is.
"""

from __future__ import annotations

import unicodedata
from typing import Final

# Controls, formats (the bidirectional ones are among them), surrogates, private, unassigned, and
# the separators that break lines.
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: str, most: int | None = None) -> str:
    """The text on one line with nothing in it that a terminal obeys.

    Args:
        most: Cut after so many characters of the result, marked by "...".
    """
    if not text.isprintable() or not text.isascii():
        text = "".join(
            _escaped(each) if unicodedata.category(each) in _UNSAFE else each
            for each in (text if most is None else text[: most + 1])
        )
    return text if most is None or len(text) <= most else text[: max(0, most - 3)] + "..."


def _escaped(character: str) -> str:
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
