"""Where a client logs, with the names of `pulsar-client`."""

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
    """The client logs to standard output.

    Args:
        log_level: The lowest level that is logged.

    Raises:
        ConfigurationError: if it is not a `LoggerLevel`.
    """

    def __init__(self, log_level: LoggerLevel = LoggerLevel.Info) -> None:
        self._level = coerce(LoggerLevel, log_level, "log_level")

    @property
    def log_level(self) -> LoggerLevel:
        return self._level

    def __repr__(self) -> str:
        return f"ConsoleLogger({self._level})"


class FileLogger:
    """The client logs to a file.

    Args:
        log_level: The lowest level that is logged.
        log_file: Path of the file, which is created or appended to.

    Raises:
        ConfigurationError: if a value has the wrong type.
    """

    def __init__(self, log_level: LoggerLevel, log_file: str) -> None:
        self._level = coerce(LoggerLevel, log_level, "log_level")
        self.log_file: str = text(log_file, "log_file")

    @property
    def log_level(self) -> LoggerLevel:
        return self._level

    def __repr__(self) -> str:
        return f"FileLogger({self._level}, {self.log_file!r})"
