"""What to change where the system does not let a directory be used."""

from __future__ import annotations

import errno
from typing import Final

_MAY_NOT_WRITE: Final = (
    "the user of this process must be allowed to write to that directory and its files, which must "
    "be on a local file system that is not mounted read-only"
)
_NO_DIRECTORY: Final = "it is a file, or is below one: name a directory"
_FULL: Final = "make room there, or name a directory on another disk"

_BY_ERRNO: Final = {
    errno.EACCES: _MAY_NOT_WRITE,
    errno.EPERM: _MAY_NOT_WRITE,
    errno.EROFS: _MAY_NOT_WRITE,
    errno.EEXIST: _NO_DIRECTORY,
    errno.ENOTDIR: _NO_DIRECTORY,
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
}
_BY_TEXT: Final = {
    "Permission denied": _MAY_NOT_WRITE,
    "Read-only file system": _MAY_NOT_WRITE,
    "No space left": _FULL,
    "Not a directory": _NO_DIRECTORY,
}


def advised(error: Exception | str) -> str:
    """The text of an error, or one, and behind it what to change, where that is known."""
    text = str(error)
    advice = None
    if isinstance(error, OSError):
        advice = _BY_ERRNO.get(error.errno or 0)
    else:
        advice = next((said for sign, said in _BY_TEXT.items() if sign in text), None)
    return text if advice is None else f"{text}: {advice}"


def advised_to_make(error: OSError) -> str:
    """Return the text of an error of making a directory, and behind it what to change."""
    if error.errno == errno.ENOENT:  # its parents are made first, and the system refused that
        return f"{error}: no directory can be made at that place, name another one"
    return advised(error)
