"""Programs in Java are compiled when their sources have changed. A script replaces Maven."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.benchmarks import java_programs
from integration.benchmarks.java_programs import (
    JavaProgramError,
    class_path,
    fingerprint,
    missing_java,
)

MAVEN = """#!/bin/sh
for each; do case "$each" in -Dbench.build=*) built="${each#*=}";; esac; done
echo run >> "$built/runs"
[ ! -e "$built/broken" ] || { echo "no repository"; exit 1; }
"""


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the compiled program; `mvn` is the script above."""
    program = tmp_path / "bin/mvn"
    program.parent.mkdir()
    program.write_text(MAVEN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(java_programs, "PROGRAMS", tmp_path / "java")
    monkeypatch.setattr(java_programs, "CACHE", tmp_path / "cache")
    (tmp_path / "java/client").mkdir(parents=True)
    (tmp_path / "java/client/Main.java").write_text("class Main {}")
    return tmp_path / "cache/client"


def runs_of(built: Path) -> int:
    return len((built / "runs").read_text().splitlines())


def test_a_program_is_compiled_once_for_each_state_of_its_sources(built: Path) -> None:
    assert class_path("client") == f"{built}/classes:{built}/jars/*"
    class_path("client")
    assert runs_of(built) == 1
    (java_programs.PROGRAMS / "client/Main.java").write_text("class Main { }")
    class_path("client")
    assert runs_of(built) == 2


def test_a_failed_build_is_shown_and_repeated(built: Path) -> None:
    built.mkdir(parents=True)
    (built / "broken").touch()
    with pytest.raises(JavaProgramError, match="no repository"):
        class_path("client")
    (built / "broken").unlink()
    class_path("client")
    assert runs_of(built) == 2


def test_a_renamed_file_changes_the_fingerprint(built: Path) -> None:
    project = java_programs.PROGRAMS / "client"
    before = fingerprint(project)
    (project / "Main.java").rename(project / "Other.java")
    assert fingerprint(project) != before


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing_java() == "java and mvn not found: install Java 17 and Maven"
