"""Checks of option values: each returns the value, or raises ConfigurationError."""

from __future__ import annotations

import os
import re
from dataclasses import fields
from datetime import timedelta
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigurationError, InvalidTopicName

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_NAME_PART: Final = r"[-=:.A-Za-z0-9_]+"  # a tenant or a namespace
# The names that the C++ client accepts, except names with a cluster from before Pulsar 2: brokers
# reject these, and the C++ client retries until the call fails with "Timeout".
_TOPIC: Final = re.compile(
    rf"[^/]+|(?:(?:non-)?persistent://)?{_NAME_PART}/{_NAME_PART}/[^/]+", re.DOTALL
)


def integer(value: Any, name: str, *, low: int, high: int | None = None, unit: str = "") -> int:
    """Return an int from `low` to `high`; None means no upper bound."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{name} must be an int, got {type(value).__name__}")
    if value < low or (high is not None and value > high):
        allowed = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ConfigurationError(f"{name} must be {allowed}{unit and ' ' + unit}, got {value}")
    return value


def seconds(
    value: Any, name: str, *, low: float = 0.001, high: float = 1e9, hint: str = ""
) -> float:
    """Return a number of seconds or a timedelta as seconds. `hint` follows the error's range."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(
            f"{name} must be a number of seconds (int or float) or a timedelta, got "
            f"{type(value).__name__}"
        )
    if not low <= value <= high:  # NaN fails this comparison too
        allowed = f"from {low:g} to {high:g} s"
        raise ConfigurationError(f"{name} must be {allowed}{hint}, got {value}")
    return float(value)


def boolean(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} must be True or False, got {value!r}")
    return value


def check_booleans(options: DataclassInstance) -> None:
    """Check every field of an option class that is declared as `bool`."""
    for field in fields(options):
        if field.type in ("bool", bool):
            boolean(getattr(options, field.name), field.name)


def check_choice(value: Any, name: str, *choices: str | None) -> None:
    """Check that a value is one of two or more choices."""
    if value not in choices:
        *others, last = (f'"{each}"' if each is not None else "None" for each in choices)
        raise ConfigurationError(f"{name} must be {', '.join(others)} or {last}, got {value!r}")


def text(value: Any, name: str, *, blank: type[Exception] = ConfigurationError) -> str:
    """Return a non-blank string without lone surrogates; `blank` is the error for blank ones."""
    _not_blank(value, name, blank)
    encodable(value, name, blank)
    return str(value)


def encodable(value: str, name: str, error: type[Exception] = ConfigurationError) -> None:
    """Raise an error if a string contains a lone surrogate, which UTF-8 cannot encode."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as cause:
            raise error(
                f"{name} contains a lone surrogate, U+{ord(value[cause.start]):04X} at index "
                f"{cause.start}, which is no character and cannot be encoded as UTF-8, got "
                f"{value!r}. Use a name of whole characters"
            ) from cause


def _not_blank(value: Any, name: str, blank: type[Exception] = ConfigurationError) -> None:
    if not isinstance(value, str) or not value.strip():
        kind = blank if isinstance(value, str) else ConfigurationError
        raise kind(f"{name} must be a string that is not blank, got {value!r}")


def optional_text(value: Any, name: str) -> str | None:
    return None if value is None else text(value, name)


def string_map(value: Any, name: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigurationError(f"{name} must be a dict of strings, got {type(value).__name__}")
    for key, item in value.items():
        if not isinstance(key, str) or not key:
            raise ConfigurationError(f"{name}: key {key!r} must be a string that is not empty")
        if not isinstance(item, str):
            raise ConfigurationError(f"{name}[{key!r}] must be a string, got {item!r}")
        encodable(key, f"{name}: a key")
        encodable(item, f"{name}[{key!r}]")
    return dict(value)


def topic_name(value: Any, name: str) -> str:
    if not _TOPIC.fullmatch(text(value, name, blank=InvalidTopicName)):
        raise InvalidTopicName(
            f"{name} must be a name, tenant/namespace/name, or persistent:// or non-persistent:// "
            f"before that, got {value!r}"
        )
    return str(value)


def readable_file(value: Any, name: str) -> str | None:
    """Return the path of a file that can be opened, or None."""
    if value is None:
        return None
    _not_blank(value, name)  # not `text`: a path of raw bytes has lone surrogates
    path: str = value
    try:
        os.close(os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{name}: cannot read {path!r}: {reason}") from error
    if not os.path.isfile(path):
        raise ConfigurationError(f"{name}: {path!r} is not a file")
    return path


def directory(value: Any, owner: str) -> Path:
    """Return the path of a directory, which need not exist, for the option class `owner`."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path:
        raise ConfigurationError(f"{owner} needs the path of a directory, got {value!r}")
    if "\0" in path:
        raise ConfigurationError(f"the path of {owner} must not contain NUL, got {value!r}")
    return Path(path)


def check_crypto_key_reader(reader: Any) -> None:
    # `cryptoKeyReader` last: on our own class, reading that attribute loads the C++ client.
    attributes = ("private_key", "cryptoKeyReader")
    if reader is not None and not any(hasattr(reader, each) for each in attributes):
        raise ConfigurationError(
            f"crypto_key_reader must be a CryptoKeyReader, got {type(reader).__name__}"
        )


def check_event_listener(listener: Any) -> None:
    if listener is not None and (
        not callable(listener)
        or iscoroutinefunction(listener)
        or iscoroutinefunction(listener.__call__)
    ):
        raise ConfigurationError(
            "event_listener must be a plain function, because its result is not awaited. "
            "It can start a task"
        )
