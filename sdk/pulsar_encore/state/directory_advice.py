"""Advice for errors in which the system refuses access to a directory."""

from __future__ import annotations

import errno
from typing import Final

_NOT_WRITABLE: Final = (
    "the user of this process must be allowed to write to that directory and its files, which must "
    "be on a local file system that is not mounted read-only"
)
_NOT_A_DIRECTORY: Final = "it is a file, or is below one: name a directory"
_DISK_FULL: Final = "make room there, or name a directory on another disk"

_BY_ERRNO: Final = {
    errno.EACCES: _NOT_WRITABLE,
    errno.EPERM: _NOT_WRITABLE,
    errno.EROFS: _NOT_WRITABLE,
    errno.EEXIST: _NOT_A_DIRECTORY,
    errno.ENOTDIR: _NOT_A_DIRECTORY,
    errno.ENOSPC: _DISK_FULL,
    errno.EDQUOT: _DISK_FULL,
}
_BY_TEXT: Final = {
    "Permission denied": _NOT_WRITABLE,
    "Read-only file system": _NOT_WRITABLE,
    "No space left": _DISK_FULL,
    "Not a directory": _NOT_A_DIRECTORY,
}


def advised(error: Exception | str) -> str:
    """Return the text of an error, followed by advice if there is any for it."""
    text = str(error)
    advice = None
    if isinstance(error, OSError):
        advice = _BY_ERRNO.get(error.errno or 0)
    else:
        advice = next(
            (advice_text for fragment, advice_text in _BY_TEXT.items() if fragment in text), None
        )
    return text if advice is None else f"{text}: {advice}"


def advised_to_make(error: OSError) -> str:
    """Return the text of an error of `mkdir`, followed by advice if there is any for it."""
    if error.errno == errno.ENOENT:  # `mkdir(parents=True)` could not make the parents either
        return f"{error}: no directory can be made at that place, name another one"
    return advised(error)
