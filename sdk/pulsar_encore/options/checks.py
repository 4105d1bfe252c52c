"""Checks shared by the option groups: each returns the value or raises with the option's name."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigurationError


def integer(value: Any, name: str, *, low: int, high: int | None = None, unit: str = "") -> int:
    """An int from `low` to `high` (no upper bound when None)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{name} must be an int, got {type(value).__name__}")
    if value < low or (high is not None and value > high):
        span = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ConfigurationError(f"{name} must be {span}{unit and ' ' + unit}, got {value}")
    return value


def boolean(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} must be True or False, got {value!r}")
    return value


def text(value: Any, name: str) -> str:
    """A string with something in it."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{name} must be a string that is not blank, got {value!r}")
    return value


def optional_text(value: Any, name: str) -> str | None:
    return None if value is None else text(value, name)


def string_map(value: Any, name: str) -> dict[str, str]:
    """A dict of strings to strings; None is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigurationError(f"{name} must be a dict of strings, got {type(value).__name__}")
    for key, item in value.items():
        if not isinstance(key, str) or not key:
            raise ConfigurationError(f"{name}: key {key!r} must be a string that is not empty")
        if not isinstance(item, str):
            raise ConfigurationError(f"{name}[{key!r}] must be a string, got {item!r}")
    return dict(value)
