"""Errors that only dead letters cause."""

from __future__ import annotations

from ..errors import ConfigurationError, EncoreError
from .replay_report import ReplayReport


class LetterNotFoundError(ConfigurationError):
    """The topic has no letter with that id or fingerprint."""

    __module__ = "pulsar_encore.deadletters"


class NothingSelectedError(ConfigurationError):
    """No letter that is left on the subscription was selected. Nothing was sent."""

    __module__ = "pulsar_encore.deadletters"


class NoLettersError(NothingSelectedError, LetterNotFoundError):
    """The topic holds no letters: it is empty, has other messages, or did not exist.

    With topic auto-creation a broker creates a missing topic when a client asks for it, and the C++
    client cannot ask without that. These cases therefore cannot be told apart.
    """

    __module__ = "pulsar_encore.deadletters"


class ReplayStoppedError(EncoreError):
    """The client was closed during a replay. Run it again to continue.

    The failure is the `__cause__`.

    Args:
        message: What happened and what to change.
        report: Letters replayed before.
    """

    __module__ = "pulsar_encore.deadletters"

    def __init__(self, message: str, report: ReplayReport) -> None:
        super().__init__(message)
        self.report = report
