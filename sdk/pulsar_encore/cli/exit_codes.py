from __future__ import annotations

from typing import Final

from ..deadletters import NoLettersError
from ..errors import EncoreError, TransportError

NOTHING_THERE: Final = 3
INTERRUPTED: Final = 130  # as shells report SIGINT
CLOSED_PIPE: Final = 141  # as shells report SIGPIPE
TERMINATED: Final = 143  # as shells report SIGTERM
WRONG: Final = 2

_MISSING: Final = frozenset({"TopicNotFound", "TransactionNotFound"})


def exit_code(error: EncoreError) -> int:
    missing = isinstance(error, TransportError) and error.result in _MISSING
    return NOTHING_THERE if missing or isinstance(error, NoLettersError) else WRONG
