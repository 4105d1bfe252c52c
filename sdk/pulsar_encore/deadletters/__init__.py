"""Dead letters after their death: count them, read them, send them back.

`DeadLetters` is the entry point; `pulsar-encore dlq` is a thin layer over it. Letters of Java and
other clients work too, they only have no evidence to show.
"""

from .errors import (
    LetterNotFoundError,
    NoLettersError,
    NothingSelectedError,
    ReplayStoppedError,
)
from .groups import NO_FINGERPRINT, LetterGroup
from .letter import Letter
from .printing import printable
from .report import Refusal, ReplayReport
from .selection import Selection
from .topic import DeadLetters

__all__ = [
    "NO_FINGERPRINT",
    "DeadLetters",
    "Letter",
    "LetterGroup",
    "LetterNotFoundError",
    "NoLettersError",
    "NothingSelectedError",
    "Refusal",
    "ReplayReport",
    "ReplayStoppedError",
    "Selection",
    "printable",
]
