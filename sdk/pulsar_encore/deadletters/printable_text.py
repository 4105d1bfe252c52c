"""Make untrusted text safe to print on a terminal.

Whoever published a message chose the texts of its letter. Control characters, ANSI escapes and
characters that change the reading direction are shown as escapes.
"""

from __future__ import annotations

import unicodedata
from typing import Final

# Controls, formats (with the bidirectional ones), surrogates, private, unassigned, line separators.
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: str, most: int | None = None) -> str:
    """Return the text on one line, without characters that control a terminal.

    Args:
        most: Maximum length of the result. A cut text ends in "...".
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
