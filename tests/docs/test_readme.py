"""The README is short, its programs run, and its table answers questions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.page_shell import PageShell, follow, installed_environment
from tests.harness.pulsar_server import free_port

README = Path(__file__).resolve().parents[2] / "README.md"
TEXT = README.read_text("utf-8")


def test_the_readme_has_at_most_160_lines_and_1200_words() -> None:
    assert 120 <= len(TEXT.splitlines()) <= 160
    assert len(TEXT.split()) <= 1200


def test_a_reader_of_the_readme_bills_an_order_and_ends_the_worker(tmp_path: Path) -> None:
    billed = "until grep -q charged output.log; do sleep 0.1; done"
    values = {"6650": str(free_port()), "sleep 1": billed}
    with PageShell(tmp_path, values, installed_environment()) as shell:
        follow("../README.md", shell, installed=True)  # `wait` fails if the worker does
        assert "charged 20 to Ada" in shell.output()


@pytest.mark.parametrize(
    "question",
    [
        "concurrency",
        "SIGTERM",
        "metrics",
        "FastAPI",
        "typed messages",
        "pytest fixtures",
        "dead letters",
        "authentication",
    ],
)
def test_the_table_of_pages_answers_a_question(question: str) -> None:
    table = TEXT.partition("## Where to look")[2].partition("\n## ")[0]
    (row,) = [each for each in table.splitlines() if re.match(rf"\| [^|]*\b{question}\b", each)]
    assert "](docs/" in row


def test_brokers_and_versions_have_headings() -> None:
    assert "\n## Supported versions\n" in TEXT
    assert "\n## Versioning\n" in TEXT
