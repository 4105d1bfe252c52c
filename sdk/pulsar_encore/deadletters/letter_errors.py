"""What can go wrong with dead letters, besides what every client can meet."""

from __future__ import annotations

from ..errors import ConfigurationError, EncoreError
from .replay_report import ReplayReport


class LetterNotFoundError(ConfigurationError):
    """No letter of the topic has that id or fingerprint."""


class NothingSelectedError(ConfigurationError):
    """No letter that the subscription still holds was selected; nothing was sent."""


class NoLettersError(NothingSelectedError, LetterNotFoundError):
    """The topic holds no letters at all: it is empty, another topic, or was not there.

    A broker that makes topics by itself makes one of any name that is asked for, and the native
    library has no way to ask without that; so these three cannot be told apart.
    """


class ReplayStoppedError(EncoreError):
    """The client was closed while letters were replayed; what failed is the `__cause__`.

    Running it again goes on where it stopped.

    Args:
        message: What happened and what to change.
        report: What was done before.
    """

    def __init__(self, message: str, report: ReplayReport) -> None:
        super().__init__(message)
        self.report = report
