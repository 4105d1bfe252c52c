"""Parsers of option texts. Spark passes every option value as text."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from ..errors import ConfigurationError
from ..options.checks import topic_name
from ..values.topic_names import full_name

T = TypeVar("T")
Parser = Callable[[str, str], T]
"""Converts an option's text to a value, or raises ConfigurationError with the option's name."""

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?", re.IGNORECASE)
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_FUNCTION: Final = re.compile(r"[\w.]+:\w+")
_BYTES: Final = re.compile(r"(\d{1,12})\s*([kmgt]?)i?b?", re.IGNORECASE)
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_MAX_MS: Final = 1 << 53  # a float holds every whole number below
_SHOWN: Final = 120


def shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the most similar known name, or an empty text."""
    spelled = {each.lower(): each for each in known}
    close = get_close_matches(name.lower(), list(spelled), n=1)
    return f" (did you mean {spelled[close[0]]!r}?)" if close else ""


def words(value: str, name: str) -> str:
    if not value.strip():
        raise ConfigurationError(f"{name} must not be blank")
    return value.strip()


def function_name(value: str, name: str) -> str:
    text = value.strip()
    if not _FUNCTION.fullmatch(text):
        raise ConfigurationError(f"{name} must be module:function, got {shortened(value)}")
    return text


def load_function(function: str, option: str) -> Callable[..., Any]:
    """Import a function named ``module:function``, or raise ConfigurationError."""
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
    lowered = value.strip().lower()
    if lowered not in ("true", "false"):
        raise ConfigurationError(f"{name} must be true or false, got {shortened(value)}")
    return lowered == "true"


def at_least(low: int, high: int | None = None) -> Parser[int]:
    def parse(value: str, name: str) -> int:
        text = value.strip()
        number = int(text) if _WHOLE.fullmatch(text) else low - 1
        if number < low or (high is not None and number > high):
            span = f"at least {low}" if high is None else f"from {low} to {high}"
            raise ConfigurationError(
                f"{name} must be a whole number, {span}; got {shortened(value)}"
            )
        return number

    return parse


def size(value: str, name: str) -> int:
    """Parse a number of bytes such as 1048576, 100k or 1g, in powers of 1024."""
    match = _BYTES.fullmatch(value.strip())
    if match is None or int(match[1]) < 1:
        raise ConfigurationError(
            f"{name} must be a number of bytes such as 100m, got {shortened(value)}"
        )
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2].lower()]


def duration_ms(unit: str = "ms", low: int = 0) -> Parser[int]:
    """Return a parser of times such as 15m, 30s or 250ms, in ms; `unit` is for a bare number."""

    def parse(value: str, name: str) -> int:
        match = _DURATION.fullmatch(value.strip())
        time_ms = -1.0
        if match is not None:
            time_ms = float(match[1]) * _UNITS_MS[(match[2] or unit).lower()]
        if not low <= time_ms < _MAX_MS:
            least = f", at least {low} ms" if low else ""
            raise ConfigurationError(
                f"{name} must be a time such as 250ms, 30s or 15m{least}: {shortened(value)}"
            )
        return round(time_ms)

    return parse


def choice(values: Mapping[str, T]) -> Parser[T]:
    """Return a parser of the words in `values`, in any case."""
    spelled = {each.lower(): each for each in values}

    def parse(value: str, name: str) -> T:
        found = spelled.get(value.strip().lower())
        if found is None:
            *others, last = values
            raise ConfigurationError(
                f"{name} must be {', '.join(others)} or {last}, got {shortened(value)}"
                f"{nearest(value, values)}"
            )
        return values[found]

    return parse


def one_of(*words: str) -> Parser[str]:
    return choice({each: each for each in words})


def names(value: str, name: str) -> tuple[str, ...]:
    found = tuple(each.strip() for each in value.split(",") if each.strip())
    if not found:
        raise ConfigurationError(f"{name} must name something, got {shortened(value)}")
    return found


def json_object(value: str, name: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ConfigurationError(f"{name} must be a JSON object, got {shortened(value)}")
    return parsed


def web_address(value: str, name: str) -> str:
    value = value.strip()
    scheme, mark, host = value.partition("://")
    if scheme not in ("http", "https") or not mark or not host.strip("/"):
        raise ConfigurationError(
            f"{name} must be like http://host:8080 or https://host:8443, got {value!r}"
        )
    return value


def topic(value: str, name: str) -> str:
    """Parse a topic name, short or full, to the full name."""
    return full_name(topic_name(value.strip(), name))
