"""Texts of Spark's options as values, with errors that name the option.

Owns the parsers, `nearest`, the word that was probably meant, and `load_function`.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from ..errors import ConfigurationError

T = TypeVar("T")
Parser = Callable[[str, str], T]
"""From what an option says, and its name, to its value; a ConfigurationError for all else."""

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?", re.IGNORECASE)
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_FUNCTION: Final = re.compile(r"[\w.]+:\w+")
_BYTES: Final = re.compile(r"(\d{1,12})\s*([kmgt]?)i?b?", re.IGNORECASE)
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_MOST_MS: Final = 1 << 53  # more than a clock tells
_SHOWN: Final = 120


def shown(value: object) -> str:
    """A value for an error, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def nearest(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)``, or nothing."""
    spelled = {each.lower(): each for each in known}
    close = get_close_matches(name.lower(), list(spelled), n=1)
    return f" (did you mean {spelled[close[0]]!r}?)" if close else ""


def words(value: str, name: str) -> str:
    """A text with something in it."""
    if not value.strip():
        raise ConfigurationError(f"{name} must not be blank")
    return value.strip()


def function_name(value: str, name: str) -> str:
    """The name of a function, module:function."""
    text = value.strip()
    if not _FUNCTION.fullmatch(text):
        raise ConfigurationError(f"{name} must be module:function, got {shown(value)}")
    return text


def load_function(function: str, option: str) -> Callable[..., Any]:
    """The function of a `function_name`.

    Args:
        function: Its name.
        option: That named it, for errors.

    Raises:
        ConfigurationError: It is not there.
    """
    module, _, name = function.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{option} {function} cannot be imported ({error}): install it where the job's "
            "processes run, as with spark.submit.pyFiles"
        ) from error
    return found


def flag(value: str, name: str) -> bool:
    """true or false."""
    lowered = value.strip().lower()
    if lowered not in ("true", "false"):
        raise ConfigurationError(f"{name} must be true or false, got {shown(value)}")
    return lowered == "true"


def at_least(low: int, high: int | None = None) -> Parser[int]:
    """A whole number from `low`, to `high` if there is one."""

    def parse(value: str, name: str) -> int:
        text = value.strip()
        number = int(text) if _WHOLE.fullmatch(text) else low - 1
        if number < low or (high is not None and number > high):
            span = f"at least {low}" if high is None else f"from {low} to {high}"
            raise ConfigurationError(f"{name} must be a whole number, {span}; got {shown(value)}")
        return number

    return parse


def size(value: str, name: str) -> int:
    """A number of bytes, such as 1048576, 100k or 1g (of 1024)."""
    match = _BYTES.fullmatch(value.strip())
    if match is None or int(match[1]) < 1:
        raise ConfigurationError(
            f"{name} must be a number of bytes such as 100m, got {shown(value)}"
        )
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2].lower()]


def duration_ms(unit: str = "ms", low: int = 0) -> Parser[int]:
    """A time such as 15m, 30s or 250ms; a bare number is in `unit`, and it is `low` ms at least."""

    def parse(value: str, name: str) -> int:
        match = _DURATION.fullmatch(value.strip())
        time_ms = -1.0
        if match is not None:
            time_ms = float(match[1]) * _UNITS_MS[(match[2] or unit).lower()]
        if not low <= time_ms < _MOST_MS:
            least = f", at least {low} ms" if low else ""
            raise ConfigurationError(
                f"{name} must be a time such as 250ms, 30s or 15m{least}: {shown(value)}"
            )
        return round(time_ms)

    return parse


def one_of(*choices: str) -> Parser[str]:
    """One of some words, in any case, as it is spelled here."""
    spelled = {each.lower(): each for each in choices}

    def parse(value: str, name: str) -> str:
        found = spelled.get(value.strip().lower())
        if found is None:
            raise ConfigurationError(
                f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}, got {shown(value)}"
                f"{nearest(value, choices)}"
            )
        return found

    return parse


def names(value: str, name: str) -> tuple[str, ...]:
    """Some words, separated by commas."""
    found = tuple(each.strip() for each in value.split(",") if each.strip())
    if not found:
        raise ConfigurationError(f"{name} must name something, got {shown(value)}")
    return found


def json_object(value: str, name: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{name} must be a JSON object, got {shown(value)}") from error
    if not isinstance(parsed, dict):
        raise ConfigurationError(f"{name} must be a JSON object, got {shown(value)}")
    return parsed
