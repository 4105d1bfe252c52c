"""The first cells of the tables of `docs/options.md`, from the signatures."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

_MIB: Final = 1 << 20
_KIB: Final = 1 << 10
_SEPARATED_FROM: Final = 10_000


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters that the caller of a function or class passes, and their names."""
    found = dict(inspect.signature(function).parameters)
    found.pop("self", None)
    return found


def type_text(annotation: object) -> str:
    """Return the text of a type, in which no `|` would end the cell of a table."""
    text = str(annotation)
    text = re.sub(r"(?:typing\.)?Literal\[([^]]*)\]", r"\1", text)
    text = re.sub(r"Callable\[.*?\], \w+\]|Callable\[\.\.\., \w+\]", "function", text)
    text = re.sub(r"re\.Pattern\[str\]", "re.Pattern", text)
    text = text.replace("BackoffLike", "Backoff | list")
    text = text.replace("'", '"').replace('", "', '" | "')
    return " or ".join(dict.fromkeys(each.strip() for each in text.split(" | ")))


def default_text(value: object, name: str) -> str:
    """Return the text of a default, or "required" if the caller must pass the parameter."""
    if value is inspect.Parameter.empty:
        return "required"
    if isinstance(value, Enum):
        return f"`{type(value).__name__}.{value.name}`"
    if isinstance(value, int) and not isinstance(value, bool):
        if re.search("bytes|size$", name) and value >= _KIB and value % _KIB == 0:
            return f"{value // _MIB} MiB" if value % _MIB == 0 else f"{value // _KIB} KiB"
        return f"{value:,}" if value >= _SEPARATED_FROM else str(value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, tuple) and not value:
        return "none"
    if callable(value):
        return f"`{value.__name__}`"
    if value is None or isinstance(value, bool):
        return str(value)
    return f"`{value!r}`"


def cells_of(parameter: inspect.Parameter) -> tuple[str, str, str]:
    """Return name, type and default of a parameter, as its row shows them."""
    return (
        f"`{parameter.name}`",
        type_text(parameter.annotation),
        default_text(parameter.default, parameter.name),
    )
