"""The page `docs/command-line-reference.md`, made from the parser of the command line.

Run `python -m tests.harness.command_reference > docs/command-line-reference.md` to write it again.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final, get_args

from cyclopts import App
from cyclopts.argument import Argument

from pulsar_encore.cli.app import app as APP
from pulsar_encore.cli.login import CLUSTER

_HEAD: Final = """\
# Command line reference

Every command of `pulsar-encore` with its options, made from the parser.
[Command line](command-line.md) shows the commands at work, and has the exit codes.
`pulsar-encore COMMAND --help` prints the same, and `pulsar-encore --version` the version.

If an option is not given, its variable in the environment stands for it. An argument in capitals
can be given without the name of its option. A repeated option takes one value each time.
"""
_LOGIN: Final = """\
## Login

Commands with "login" in their last line take these options. Secrets are in files or variables.
"""
#: A default that depends on other options is described at the end of the help.
_DESCRIBED_DEFAULT: Final = re.compile(r"\s*\[default:\s([^\]]*)\]\s*$")
_TABLE: Final = ("| option | type | default | variable | meaning |", "|---|---|---|---|---|")


def commands(parent: App = APP, path: tuple[str, ...] = ()) -> Iterator[tuple[str, App]]:
    """Yield (name, command) of each command, such as "dlq replay", in alphabetical order."""
    for name in sorted(each for each in parent if not each.startswith("-")):
        found = parent[name]
        if found.default_command is None:
            yield from commands(found, (*path, name))
        else:
            yield " ".join((*path, name)), found


def arguments(command: App) -> list[Argument]:
    """Return the arguments of a command that a user can give."""
    collection = command.assemble_argument_collection(parse_docstring=True)
    return [each for each in collection if each.names != ("*",)]


def is_login(argument: Argument) -> bool:
    """Return True for the options that all commands with a login share."""
    return CLUSTER in (argument.parameter.group or ()) and "url" not in argument.names[0]


def lines() -> Iterator[str]:
    yield from _HEAD.splitlines()
    yield ""
    yield from _LOGIN.splitlines()
    yield ""
    yield from _rows(each for each in arguments(APP["lag"]) if is_login(each))
    for name, command in commands():
        yield ""
        yield f"## `pulsar-encore {name}`"
        found = arguments(command)
        yield from _description(command)
        yield ""
        yield from _rows(each for each in found if not is_login(each))
        if any(is_login(each) for each in found):
            yield ""
            yield "And the options of the [login](#login)."


def _description(command: App) -> Iterator[str]:
    text = inspect.getdoc(command.default_command) or ""
    for paragraph in text.partition("\nArgs:")[0].strip().split("\n\n"):
        joined = _escaped(" ".join(paragraph.split()))
        yield ""
        yield re.sub(r"^Example: (.*)$", r"Example: `\1`", joined)


def _rows(found: Iterator[Argument]) -> Iterator[str]:
    yield from _TABLE
    for each in found:
        cells = (_names(each), _type(each), _default(each), _variables(each), _help(each))
        yield "| " + " | ".join(cells) + " |"


def _names(argument: Argument) -> str:
    names = [f"`{each}`" for each in argument.names]
    if argument.field_info.is_positional:
        names.insert(0, f"`{argument.names[0].removeprefix('--').upper()}`")
    return ", ".join(names)


def _type(argument: Argument) -> str:
    hint = str(argument.hint)
    if "bool" in hint:
        return "flag"
    if "Literal" in hint:
        return " or ".join(f"`{each}`" for each in get_args(argument.hint))
    names = {"Path": "path", "int": "int", "float": "float", "str": "str"}
    text = next(shown for name, shown in names.items() if name in hint)
    return f"{text}, repeated" if re.search("list|tuple|Sequence", hint) else text


def _default(argument: Argument) -> str:
    value: Any = argument.field_info.default
    described = _DESCRIBED_DEFAULT.search(argument.parameter.help or "")
    if described:
        return _escaped(" ".join(described[1].split()))
    if value is inspect.Parameter.empty:
        return "required"
    if value is None or value is False or value in ("", ()):
        return ""
    return "on" if value is True else f"`{value}`"


def _variables(argument: Argument) -> str:
    return ", ".join(f"`{each}`" for each in argument.parameter.env_var or ())


def _help(argument: Argument) -> str:
    text = _DESCRIBED_DEFAULT.sub("", argument.parameter.help or "")
    return _escaped(" ".join(text.split()).removesuffix(" May be repeated."))


def _escaped(text: str) -> str:
    """Escape characters that mean something else in Markdown, outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        each if each.startswith("`") else re.sub(r"([|<>*\[\]])", r"\\\1", each) for each in parts
    )


if __name__ == "__main__":
    print("\n".join(lines()))
