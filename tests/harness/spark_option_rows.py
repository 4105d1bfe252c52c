"""The first cells of the tables of `docs/spark-options.md`, from the declared options."""

from __future__ import annotations

import inspect
from typing import Any, Final

from pulsar_encore.spark.option_table import MODES, Option, Scope

#: The types of values by the name of their parser.
_TYPES: Final = {
    "_blocks": "`true`",
    "_columns": "text or list",
    "_fails": "`FAIL`",
    "_micros_as_ms": "int from 1",
    "_seconds": "int from 1",
    "_send_timeout_ms": "time",
    "_topics": "list",
    "duration_ms": "time",
    "flag": "`true` or `false`",
    "function_name": "module:function",
    "json_object": "JSON",
    "key_path": "path",
    "names": "list",
    "retry_delays": "list of times",
    "size": "size",
    "topic": "topic",
    "web_address": "URL",
    "words": "text",
}


def type_text(option: Option) -> str:
    """Return the text of the type of an option."""
    parser: Any = option.parse
    name = parser.__qualname__.partition(".")[0]
    values = inspect.getclosurevars(parser).nonlocals if parser.__closure__ else {}
    if name == "choice":
        return " or ".join(f"`{each}`" for each in values["values"])
    if name == "at_least":
        low, high = values["low"], values["high"]
        return f"int from {low:,}" if high is None else f"int, {low:,} to {high:,}"
    return _TYPES[name]


def use_text(option: Option) -> str:
    """Return the text that says where an option applies: kinds of queries, or `sinkMode`s."""
    if option.scope & Scope.SINK and not option.scope & Scope.SOURCE:
        return "all" if option.modes == MODES else ", ".join(f"`{each}`" for each in option.modes)
    if option.scope & Scope.CLIENT:
        return "source and sink"
    return {Scope.BATCH: "batch", Scope.STREAM: "stream"}.get(option.scope, "batch and stream")


def cells_of(option: Option) -> tuple[str, str, str, str]:
    """Return name, type, default and use of an option, as its row shows them."""
    default = "" if option.default is None else f"`{option.default}`"
    return f"`{option.name}`", type_text(option), default, use_text(option)
