"""The loggers of one client, by its option `logger`."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

from ..errors import ConfigurationError
from .enums import coerce
from .loggers import LoggerLevel

_LEVELS: Final = {
    LoggerLevel.Debug: logging.DEBUG,
    LoggerLevel.Info: logging.INFO,
    LoggerLevel.Warn: logging.WARNING,
    LoggerLevel.Error: logging.ERROR,
}
# As the C++ client writes them.
_LINE: Final = (
    "%(asctime)s.%(msecs)03d %(levelname)-5s [%(thread)d] %(name)s:%(lineno)d | %(message)s"
)
_TIME: Final = "%Y-%m-%d %H:%M:%S"


class ClientLogs:
    """The loggers of one client.

    Args:
        given: None for the loggers of this package, a `logging.Logger` for that one, or a
            `ConsoleLogger` or `FileLogger` of this package or of `pulsar-client`.

    Raises:
        ConfigurationError: if the file of a `FileLogger` cannot be opened.
    """

    def __init__(self, given: Any) -> None:
        self._given: logging.Logger | None = given if isinstance(given, logging.Logger) else None
        self._handler: logging.Handler | None = None
        self._level = logging.NOTSET
        self._own: dict[str, logging.Logger] = {}
        if given is None or self._given is not None:
            return
        self._level = _LEVELS[coerce(LoggerLevel, given.log_level, "log_level")]
        path = getattr(given, "log_file", None)
        self._handler = _StdoutHandler() if path is None else _open_file(path)
        self._handler.setFormatter(logging.Formatter(_LINE, _TIME))

    def named(self, name: str) -> logging.Logger:
        """Return the logger of this client for the name of a logger of this package."""
        if self._given is not None:
            return self._given
        if self._handler is None:
            return logging.getLogger(name)
        logger = self._own.get(name)
        if logger is None:
            # Not of `logging.getLogger`, because another client may log elsewhere.
            logger = self._own[name] = logging.Logger(name, self._level)
            logger.addHandler(self._handler)
        return logger

    def close(self) -> None:
        """Close the file of a `FileLogger`. A later record opens it again."""
        if self._handler is not None:
            self._handler.close()


class _StdoutHandler(logging.StreamHandler[Any]):
    """Writes to `sys.stdout` of the moment, which a program may replace."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stdout


class _AppendHandler(logging.FileHandler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # the file cannot be opened again
            self.handleError(record)


def _open_file(path: str) -> logging.Handler:
    try:
        return _AppendHandler(path, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"FileLogger: cannot open {path!r}: {error.strerror or error}. Give the path of a file "
            "that this process can write"
        ) from error
