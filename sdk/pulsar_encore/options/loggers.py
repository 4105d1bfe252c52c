"""Where stock's library shall log, under stock's names; no other transport reads these.

Owns `LoggerLevel`, `ConsoleLogger`, `FileLogger`.
"""

from __future__ import annotations

from ..values.pulsar_enum import PulsarEnum
from .checks import text
from .enums import coerce


class LoggerLevel(PulsarEnum):
    Debug = 0
    Info = 1
    Warn = 2
    Error = 3


class ConsoleLogger:
    """Has the library log to standard output.

    Args:
        log_level: The least that is logged.

    Raises:
        ConfigurationError: It is no `LoggerLevel`.
    """

    def __init__(self, log_level: LoggerLevel = LoggerLevel.Info) -> None:
        self._level = coerce(LoggerLevel, log_level, "log_level")

    @property
    def log_level(self) -> LoggerLevel:
        return self._level

    def __repr__(self) -> str:
        return f"ConsoleLogger({self._level})"


class FileLogger:
    """Has the library log into a file.

    Args:
        log_level: The least that is logged.
        log_file: Its path; it is made, or appended to.

    Raises:
        ConfigurationError: Either is of another kind.
    """

    def __init__(self, log_level: LoggerLevel, log_file: str) -> None:
        self._level = coerce(LoggerLevel, log_level, "log_level")
        self.log_file: str = text(log_file, "log_file")

    @property
    def log_level(self) -> LoggerLevel:
        return self._level

    def __repr__(self) -> str:
        return f"FileLogger({self._level}, {self.log_file!r})"
