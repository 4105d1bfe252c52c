"""The files, tests and commands of `docs/tutorial.md` do what the page says."""

from __future__ import annotations

import re
from pathlib import Path

from tests.harness.page_shell import PageShell, follow, installed_environment
from tests.harness.pages import blocks_of, text_of
from tests.harness.pulsar_server import free_port

PAGE = "tutorial.md"


def test_a_reader_of_the_tutorial_gets_the_printed_output(tmp_path: Path) -> None:
    settled = (
        "until grep -q billed output.log && grep -q 'dead letter' output.log; do sleep 0.1; done"
    )
    values = {"6650": str(free_port()), "8080": str(free_port()), "sleep 1": settled}
    with PageShell(tmp_path, values, installed_environment()) as shell:
        follow(PAGE, shell, installed=True)


def test_the_image_has_each_module_that_the_program_imports() -> None:
    saved = set(re.findall(r"^# (\w+\.py)$", text_of(PAGE), flags=re.MULTILINE))
    image = text_of(PAGE).partition("# Dockerfile")[2].partition("```")[0]
    assert set(re.findall(r"\w+\.py", image)) == saved - {"send.py", "test_worker.py"}


def test_the_deployment_waits_for_the_drain_and_asks_the_endpoint() -> None:
    (manifest,) = blocks_of(PAGE, "yaml")
    grace = int(re.findall(r"terminationGracePeriodSeconds: (\d+)", manifest.code)[0])
    drain = int(re.findall(r"drain=(\d+),", text_of(PAGE))[0])
    assert grace >= drain + 2
    assert re.findall(r"path: (/\w+)", manifest.code) == ["/ready", "/live"]
