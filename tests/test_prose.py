"""The prose check itself, on small repositories of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from prose import FREE_HITS, PENDING, check, main, measure, measure_folders

CLEAN = (
    '"""Return the next due time."""\n\n# The broker resends unacked messages after a reconnect.\n'
)
CLUMSY = "What is acked is sent.\n\n" * (FREE_HITS + 1)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "sdk").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "tests").mkdir()
    return tmp_path


def patterns_in(name: str, source: str) -> list[str]:
    return [hit.pattern for hit in measure(Path(name), source).hits]


def test_clear_docstrings_and_comments_pass(repository: Path) -> None:
    (repository / "sdk" / "clear.py").write_text(CLEAN)
    assert check(repository) == []
    assert measure_folders(repository)["sdk"].words == 13


def test_a_fault_names_file_line_pattern_and_sentence(repository: Path) -> None:
    (repository / "sdk" / "clumsy.py").write_text(
        '"""Send acks.\n\nIt is fast. Only what is acked\nis sent, once more.\n"""\n'
        + "# Of those, none.\n" * 4
    )
    faults = check(repository)
    assert faults[0].startswith('sdk: 40.0 "what" per 1,000 words (at most 2.0)')
    assert "  sdk/clumsy.py:3: what: Only what is acked is sent, once more." in faults
    assert "  sdk/clumsy.py:4: calque: Only what is acked is sent, once more." in faults
    assert "  sdk/clumsy.py:9: of-opening: Of those, none." in faults


def test_a_few_hits_are_free_in_a_short_folder(repository: Path) -> None:
    page = repository / "docs" / "page.md"
    page.write_text("What is acked is sent.\n\n" * FREE_HITS)
    assert check(repository) == []
    page.write_text(CLUMSY)
    assert check(repository)


@pytest.mark.parametrize(
    "text",
    [
        'The broker answers "what is acked is sent".',
        "The broker answers “what is acked is sent”.",
        "> What is acked is sent.",
        "```\nwhat is acked is sent\n```",
        "Call `what(whose, anew)` first.",
        "Call ``what(whose, anew)`` first.",
        "What is a lease?",
        "The log says what happened.",
        "<!-- what is acked\nis sent -->",
    ],
)
def test_quotations_code_and_questions_are_exempt(text: str) -> None:
    assert patterns_in("page.md", text) == []
    if "<!--" not in text:
        assert patterns_in("module.py", f"'''{text}'''") == []


def test_string_literals_and_tool_directives_are_not_prose() -> None:
    assert patterns_in("module.py", 'text = "what is acked"  # noqa: what\n') == []


def test_hits_are_found_across_line_breaks() -> None:
    assert patterns_in("module.py", "# It is sent once\n# more. Of\n# those, it keeps one.\n") == [
        "of-opening",
        "calque",
        "the-one",
    ]


def test_comments_that_do_not_touch_are_separate_paragraphs() -> None:
    assert patterns_in("module.py", "# It is sent once\n\n# more often.\n") == []


def test_the_glossary_and_generated_files_are_exempt(repository: Path) -> None:
    (repository / "docs" / "glossary.md").write_text(CLUMSY)
    (repository / "sdk" / "wire_pb2.py").write_text(f'"""{CLUMSY}"""')
    assert check(repository) == []


def test_pages_at_the_top_level_are_one_folder(repository: Path) -> None:
    (repository / "README.md").write_text(CLUMSY)
    assert check(repository)[0].startswith(".: ")


def test_a_pending_folder_may_exceed_the_ceilings_until_it_passes(repository: Path) -> None:
    (repository / PENDING).write_text("# to do\nsdk\n")
    module = repository / "sdk" / "module.py"
    module.write_text(f'"""{CLUMSY}"""')
    assert check(repository) == []
    module.write_text(CLEAN)
    assert check(repository) == ["sdk: passes the check; remove it from tests/prose_pending.txt"]


def test_a_pending_folder_that_does_not_exist_is_a_fault(repository: Path) -> None:
    (repository / PENDING).write_text("sdk/gone\n")
    assert check(repository) == [
        "sdk/gone: is not a checked folder; remove it from tests/prose_pending.txt"
    ]


def test_one_file_can_be_checked_alone(repository: Path) -> None:
    (repository / PENDING).write_text("docs\n")
    (repository / "docs" / "clear.md").write_text("The broker resends the message.\n")
    (repository / "docs" / "clumsy.md").write_text(CLUMSY)
    assert check(repository, [Path("docs/clear.md")]) == []
    assert check(repository, [Path("docs/clumsy.md")])[0].startswith("docs/clumsy.md: ")


def test_the_command_prints_hits_rates_and_failing_folders(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "docs" / "page.md").write_text(CLUMSY + "The message is sent anew.\n")
    assert main(["docs"], root=repository) == 1
    assert "docs/page.md:1: what: What is acked is sent." in capsys.readouterr().out
    assert main(["docs", "--show", "calque"], root=repository) == 0
    assert capsys.readouterr().out == "docs/page.md:13: calque: The message is sent anew.\n"
    assert main(["--failing"], root=repository) == 0
    assert capsys.readouterr().out == "docs\n"
    assert main(["--by-folder"], root=repository) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("  docs")
