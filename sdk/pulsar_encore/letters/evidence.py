"""Evidence: the reason of a failure, as properties of a letter.

Sizes are bounded, because properties travel in the metadata of every message.
"""

from __future__ import annotations

import hashlib
import os
import re
import traceback
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from ..errors import ConfigurationError
from .property_names import ERROR_CLASS, ERROR_MESSAGE, ERROR_STACK, FINGERPRINT, REASON

_MAX_CLASS: Final = 200
_MAX_MESSAGE: Final = 1_000
_MAX_STACK: Final = 4_000
_FRAMES: Final = 12
_PACKAGE: Final = __file__.removesuffix(os.path.join("letters", "evidence.py"))

# The parts of a text that differ between failures of one kind: numbers, hex, quoted values.
_VARYING: Final = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8,}|\d+|'[^']*'|\"[^\"]*\"")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One failure: exception class, message, trimmed stack, and a fingerprint of its kind.

    Attributes:
        reason: The path of the failure, such as "nack", "ack timeout" or "reconsume_later".
        error_class: Qualified name of the exception's class, "" without an exception.
        error_message: Text of the exception, at most 1,000 characters.
        error_stack: The innermost frames, at most 4,000 characters, file names without directories.
        fingerprint: 12 hex digits, equal for failures with the same class, frames and text, where
            numbers and quoted values in the text are ignored.
    """

    reason: str
    error_class: str = ""
    error_message: str = ""
    error_stack: str = ""
    fingerprint: str = ""

    def properties(self) -> dict[str, str]:
        named = {
            REASON: self.reason,
            ERROR_CLASS: self.error_class,
            ERROR_MESSAGE: self.error_message,
            ERROR_STACK: self.error_stack,
            FINGERPRINT: self.fingerprint,
        }
        return {name: value for name, value in named.items() if value}


def check_error(error: Any) -> None:
    """Check an argument `error`: an exception, a text, or None."""
    if error is None or isinstance(error, (BaseException, str)):
        return
    if isinstance(error, type) and issubclass(error, BaseException):
        raise ConfigurationError(
            f"error must be the exception that was raised, not its class {error.__name__}"
        )
    raise ConfigurationError(f"error must be an exception or a str, got {type(error).__name__}")


def text_of(error: BaseException) -> str:
    """Return `str(error)`, which is code of the application and may raise."""
    try:
        return str(error)
    except Exception:
        return "(its text cannot be had)"


def evidence_of(error: BaseException | str | None, reason: str) -> Evidence:
    if error is None:
        return _of_reason(reason)
    if isinstance(error, str):
        text = _cap(error, _MAX_MESSAGE)
        return Evidence(
            reason=reason, error_message=text, fingerprint=_digest(reason, _shape(error))
        )
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    text = text_of(error)
    frames = list(traceback.extract_tb(error.__traceback__))
    # Without the frames of this package that called the application: they change with its releases.
    first = next((at for at, each in enumerate(frames) if not _is_ours(each.filename)), 0)
    frames = frames[first:][-_FRAMES:]
    places = [f"{_file(frame.filename)}:{frame.lineno} in {frame.name}" for frame in frames]
    # The fingerprint leaves line numbers out: they move with every release.
    where = [f"{_file(frame.filename)}:{frame.name}" for frame in frames]
    return Evidence(
        reason=reason,
        error_class=_cap(name, _MAX_CLASS),
        error_message=_cap(text, _MAX_MESSAGE),
        error_stack=_cap("\n".join(reversed(places)), _MAX_STACK),
        fingerprint=_digest(name, _shape(text), *where),
    )


@lru_cache(maxsize=32)
def _of_reason(reason: str) -> Evidence:
    return Evidence(reason=reason, fingerprint=_digest(reason))


def _is_ours(file: str) -> bool:
    return file.startswith(_PACKAGE)


def _file(name: str) -> str:
    return re.split(r"[\\/]", name)[-1]


def _shape(text: str) -> str:
    return _VARYING.sub("#", text[:_MAX_MESSAGE])


def _cap(text: str, most: int) -> str:
    # Lone surrogates cannot be written as UTF-8, and a property must be.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= most else text[: most - 3] + "..."


def _digest(*parts: str) -> str:
    joined = "\0".join(parts).encode("utf-8", "replace")
    return hashlib.blake2b(joined, digest_size=6).hexdigest()
