"""`docs/command-line-reference.md` is the page that the parser of the command line makes."""

from __future__ import annotations

import re

from tests.harness.command_reference import arguments, commands, is_login, lines
from tests.harness.pages import text_of

PAGE = text_of("command-line-reference.md")
GUIDES = "\n".join(
    text_of(page) for page in ("command-line.md", "dead-letters.md", "state.md", "spark-triage.md")
)


def test_the_page_is_made_from_the_parser() -> None:
    advice = "run: python -m tests.harness.command_reference > docs/command-line-reference.md"
    for written, made in zip(PAGE.splitlines(), lines(), strict=False):
        assert written == made, advice
    assert PAGE == "\n".join(lines()) + "\n", advice


def test_each_option_has_a_meaning() -> None:
    for name, command in commands():
        for each in arguments(command):
            assert each.parameter.help, f"pulsar-encore {name} {each.names[0]}"


def test_the_logins_of_all_commands_are_equal() -> None:
    logins = {
        name: [each.names for each in arguments(command) if is_login(each)]
        for name, command in commands()
    }
    assert {str(each) for each in logins.values() if each} == {str(logins["lag"])}
    without = {name for name, each in logins.items() if not each}
    assert without == {"broker", "state export", "state inspect"}


def test_each_option_for_the_address_of_a_cluster_has_its_variable() -> None:
    variables = {"--url": ("PULSAR_URL",), "--admin-url": ("PULSAR_ADMIN_URL",)}
    for name, command in commands():
        for each in arguments(command):
            if each.names[0] in variables and name != "demo":  # it publishes
                assert each.parameter.env_var == variables[each.names[0]], name


def test_the_guides_name_every_command_and_only_options_that_exist() -> None:
    known = {
        option for _, command in commands() for each in arguments(command) for option in each.names
    }
    for line in re.findall(r"^\$? ?pulsar-encore (?!--)(.*)$", GUIDES, re.MULTILINE):
        named = set(re.findall(r"(?<=\s)--[a-z][\w-]*", line.partition("#")[0]))
        assert named <= known, line
    for name, _ in commands():
        assert re.search(rf"`{name}|pulsar-encore {name}|`{name.split()[-1]}`", GUIDES), name
