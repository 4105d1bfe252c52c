"""The check of the distributions: which Pythons and cases it has, and the faults that it finds."""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from pulsar_encore import __version__
from tests.harness import package_check as check
from tests.harness import package_program as program

INFO = f"pulsar_encore-{__version__}.dist-info"


def distributions(folder: Path, *wheel_files: str, sdist_tops: set[str]) -> tuple[Path, Path]:
    """Make a wheel and an sdist with empty files."""
    wheel, sdist = folder / "a.whl", folder / "a.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in wheel_files:
            archive.writestr(name, "")
    with tarfile.open(sdist, "w:gz") as tar:
        for name in sdist_tops:
            tar.addfile(tarfile.TarInfo(f"pulsar_encore-{__version__}/{name}"), io.BytesIO())
    return wheel, sdist


COMPLETE = (*check.IN_WHEEL, f"{INFO}/licenses/LICENSE", f"{INFO}/licenses/NOTICE")


def test_the_program_uses_each_extra() -> None:
    assert program.USES.keys() == set(check.project()["optional-dependencies"])
    assert program.MODULES_OF.keys() <= program.USES.keys()


def test_complete_distributions_pass(tmp_path: Path) -> None:
    check.check_contents(*distributions(tmp_path, *COMPLETE, sdist_tops=check.SDIST_TOPS))


@pytest.mark.parametrize("name", COMPLETE)
def test_a_missing_file_is_found(tmp_path: Path, name: str) -> None:
    files = [each for each in COMPLETE if each != name]
    made = distributions(tmp_path, *files, sdist_tops=check.SDIST_TOPS)
    with pytest.raises(check.CheckError, match="missing"):
        check.check_contents(*made)


@pytest.mark.parametrize("name", ["tests/conftest.py", "pulsar_encore/__pycache__/a.pyc"])
def test_a_foreign_file_of_the_wheel_is_found(tmp_path: Path, name: str) -> None:
    made = distributions(tmp_path, *COMPLETE, name, sdist_tops=check.SDIST_TOPS)
    with pytest.raises(check.CheckError, match="foreign"):
        check.check_contents(*made)


def test_a_foreign_folder_of_the_sdist_is_found(tmp_path: Path) -> None:
    made = distributions(tmp_path, *COMPLETE, sdist_tops={*check.SDIST_TOPS, "docker"})
    with pytest.raises(check.CheckError, match="docker"):
        check.check_contents(*made)


def test_this_python_is_found_and_an_unknown_one_is_named() -> None:
    minor = f"3.{sys.version_info.minor}"
    found, missing = check.found_interpreters([minor, "3.99"])
    assert [(each.path, each.minor) for each in found] == [(sys.executable, minor)]
    assert missing == ["3.99"]


def test_a_failed_case_has_the_command_and_its_output(tmp_path: Path) -> None:
    python = check.interpreter_at(sys.executable)
    broken = check.Interpreter(str(tmp_path / "python3.99"), python.minor, python.version)
    result = check.try_case(broken, check.NO_EXTRA, [], tmp_path)
    assert str(result) == "FAILED"
    assert "python3.99 -m venv" in result.failure


def test_a_command_that_fails_shows_the_end_of_its_output() -> None:
    with pytest.raises(check.CheckError, match=r"ended with 3:\nwhy"):
        check.run([sys.executable, "-c", "print('why'); raise SystemExit(3)"], 60)


def test_the_lowest_versions_are_the_lower_ends_of_the_ranges() -> None:
    lowest = check.lowest_versions()
    assert "pulsar-client==3.13" in lowest
    assert not [each for each in lowest if each.startswith(("pyspark", "numpy"))]


def test_a_table_has_a_dash_where_nothing_was_tried() -> None:
    assert check.table(["none"], ["3.11", "3.12"], {("none", "3.11"): "ok"}).splitlines() == [
        "|  | 3.11 | 3.12 |",
        "| --- | --- | --- |",
        "| none | ok | - |",
    ]
