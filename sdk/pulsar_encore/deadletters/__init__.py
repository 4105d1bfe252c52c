"""Count, read and replay the letters of a dead letter topic.

`DeadLetters` is the entry point, and `pulsar-encore dlq` is a thin layer over it. Letters that Java
and other clients wrote work too, but show no evidence.
"""

from .dead_letter import Letter
from .dead_letter_topic import DeadLetters
from .discard import DiscardReport
from .letter_errors import (
    LetterNotFoundError,
    NoLettersError,
    NothingSelectedError,
    ReplayStoppedError,
)
from .letter_groups import NO_FINGERPRINT, LetterGroup
from .printable_text import printable
from .replay_report import RefusedLetter, ReplayReport
from .selection import Selection

__all__ = [
    "NO_FINGERPRINT",
    "DeadLetters",
    "DiscardReport",
    "Letter",
    "LetterGroup",
    "LetterNotFoundError",
    "NoLettersError",
    "NothingSelectedError",
    "RefusedLetter",
    "ReplayReport",
    "ReplayStoppedError",
    "Selection",
    "printable",
]
