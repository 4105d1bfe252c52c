"""Dead letters after their death: count them, read them, send them back.

`DeadLetters` is the entry point; `pulsar-encore dlq` is a thin layer over it. Letters of Java and
other clients work too, they only have no evidence to show.
"""

from .dead_letter import Letter
from .dead_letter_topic import DeadLetters
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
