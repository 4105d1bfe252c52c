"""The commands and programs of `docs/quickstart.md` do as the page says.

The installation is left out here: `.ci/run` follows the page from an empty environment.
"""

from __future__ import annotations

from pathlib import Path

from tests.harness.page_shell import PageShell, follow, installed_environment
from tests.harness.pages import all_blocks
from tests.harness.pulsar_server import free_port

PAGE = "quickstart.md"


def test_a_reader_of_the_quick_start_gets_the_printed_output(tmp_path: Path) -> None:
    port = str(free_port())
    environment = installed_environment() | {"PULSAR_URL": f"pulsar://localhost:{port}"}
    with PageShell(tmp_path, {"6650": port}, environment) as shell:
        follow(PAGE, shell, installed=True)
        assert "1 letters sent and acked" in shell.output()


def test_only_the_first_commands_install_something() -> None:
    commands = [block.code for language, block in all_blocks(PAGE) if language == "sh"]
    assert ["pip" in each for each in commands] == [True, *[False] * (len(commands) - 1)]
