"""Type checkers accept programs that use this package correctly and report the mistakes in others.

mypy runs as for a user: strict, and without the settings of this repository. `make types` runs
pyright, which checks that the whole public interface has known types, and checks the correct
program in strict mode.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pulsar.schema
import pytest

import pulsar_encore
from pulsar_encore import schema, testing

PROGRAMS = Path(__file__).parent / "programs"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("spark_*.py"))
WORKERS = sorted(EXAMPLES.glob("*worker*.py"))
PACKAGE = Path(pulsar_encore.__file__).parent
LONGEST_S = 240

# The stub differs from the C++ client's classes here: descriptors declare how fields of a record
# are read and set. `Record.type` is omitted because a field may have that name. Abstract classes of
# the C++ client are not abstract, because the stub does not use their metaclass.
DEPARTURES = r"""
pulsar_encore\.schema\.\w+\.__(get|set)__
pulsar_encore\.schema\.Record\.type
pulsar_encore\.schema\.Field\.(python_)?type
pulsar_encore\.schema\.Schema\.(en|de)code
"""


def python(*args: str, longest_s: float = LONGEST_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        cwd=PACKAGE.parents[1],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=longest_s,
        check=False,
    )


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write mypy's settings: it finds the tested package as an installed one."""
    path = tmp_path_factory.mktemp("mypy") / "mypy.ini"
    path.write_text(f"[mypy]\nmypy_path = {PACKAGE.parent.name}\nfollow_imports = silent\n")
    return path


@pytest.fixture(scope="module")
def reported(settings: Path) -> set[tuple[str, int]]:
    """Return (file, line) of each error of mypy --strict in the programs and the examples."""
    programs = sorted(str(path) for path in (*PROGRAMS.glob("*.py"), *NOTEBOOKS, *WORKERS))
    ran = python(
        *("-m", "mypy", "--strict", "--config-file", str(settings)),
        *("--cache-dir", str(settings.parent / "cache"), *programs),
    )
    found = re.findall(r"^(?:.*[\\/])?(\w+\.py):(\d+): error:", ran.stdout, re.MULTILINE)
    assert found, ran.stdout + ran.stderr
    return {(name, int(line)) for name, line in found}


def marked(name: str) -> Iterator[tuple[str, int]]:
    lines = (PROGRAMS / name).read_text(encoding="utf-8").splitlines()
    yield from ((name, n) for n, line in enumerate(lines, 1) if line.endswith("  # wrong"))


@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize("program", ["service.py", "typed_messages.py"])
def test_a_correct_program_passes_strict(reported: set[tuple[str, int]], program: str) -> None:
    assert [line for name, line in sorted(reported) if name == program] == []


@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize("examples", [NOTEBOOKS, WORKERS], ids=["notebooks", "workers"])
def test_examples_pass_strict(reported: set[tuple[str, int]], examples: list[Path]) -> None:
    names = {path.name for path in examples}
    assert names
    assert [(name, line) for name, line in sorted(reported) if name in names] == []


@pytest.mark.timeout(LONGEST_S)
def test_each_mistake_is_reported(reported: set[tuple[str, int]]) -> None:
    for program, least in (("mistakes.py", 20), ("typed_mistakes.py", 8)):
        expected = set(marked(program))
        assert len(expected) > least
        assert {each for each in reported if each[0] == program} == expected


async def test_the_program_runs() -> None:
    async with testing.broker() as url:
        # The limit is shorter than the test's own, so that the failure of a hanging program shows
        # its output.
        ran = await asyncio.to_thread(python, str(PROGRAMS / "service.py"), url, longest_s=45)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == (
        "first is True\n"
        "2 handled, 0 queued at persistent://public/default/typed-service\n"
        "persistent://public/default/typed-service poison b'{'\n"
        "listening to [0, 1, 2]\n"
        "plainly to [0, 1, 2]\n"
        "read [\"0 Ada None [] False None ['one']\", \"1 busy None [] False None ['one']\", "
        "\"2 poison None [] False None ['one']\"] 1.5\n"
    )


@pytest.mark.timeout(LONGEST_S)
def test_the_schema_classes_equal_the_stub(settings: Path, tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    allowed.write_text(DEPARTURES)
    ran = python(
        *("-m", "mypy.stubtest", "pulsar_encore.schema", "--mypy-config-file", str(settings)),
        *("--allowlist", str(allowed), "--ignore-positional-only", "--concise"),
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_schema_classes_are_those_of_the_c_client() -> None:
    for name in schema.__all__:
        mine, theirs = getattr(schema, name), getattr(pulsar.schema, name)
        if name in ("AvroSchema", "JsonSchema"):  # derived, to refuse a class that is no Record
            assert mine.__mro__[1] is theirs
        else:
            assert mine is theirs, name
