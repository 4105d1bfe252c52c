"""Programs that measure when they are asked: in Java, compiled once by Maven into `.bench` of the
checkout, or in another language.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAMS: Final = Path(__file__).resolve().with_name("java")
CACHE: Final = ROOT / ".bench"
Answer = dict[str, float]
_BUILD_S: Final = 600.0  # an empty cache of Maven downloads 60 MB, and 150 MB for Spark
_SHOWN: Final = 20  # last lines of the output in an error


class JavaProgramError(RuntimeError):
    """Maven or a program failed. The message contains the end of its output."""


def missing_java(*, build: bool = True) -> str:
    """Return why Java programs cannot run on this machine, or "". To `build` them takes Maven."""
    needed = ("java", "mvn") if build else ("java",)
    missing = [name for name in needed if shutil.which(name) is None]
    return f"{' and '.join(missing)} not found: install Java 17 and Maven" if missing else ""


def class_path(program: str) -> str:
    """Return the class path of a program, which is compiled if its sources have changed.

    Args:
        program: A folder of `integration/benchmarks/java` with a `pom.xml` that builds into
            `${bench.build}`: `classes`, and `jars` for the libraries.

    Raises:
        JavaProgramError: if Maven failed.
    """
    project, built = PROGRAMS / program, CACHE / program
    built.mkdir(parents=True, exist_ok=True)
    stamp, wanted = built / "sources.sha256", fingerprint(project)
    with (built / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            _build(project, built)
            stamp.write_text(wanted)
    return os.pathsep.join([str(built / "classes"), str(built / "jars" / "*")])


def fingerprint(project: Path) -> str:
    """Return a hash of the names and contents of the files of a project."""
    digest = hashlib.sha256()
    for path in sorted(each for each in project.rglob("*") if each.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(project)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _build(project: Path, built: Path) -> None:
    for folder in (built / "classes", built / "jars"):
        shutil.rmtree(folder, ignore_errors=True)
    options = ("--batch-mode", "--quiet", f"-Dbench.build={built}")
    made = subprocess.run(
        ["mvn", *options, f"--file={project / 'pom.xml'}", "prepare-package"],
        capture_output=True,
        text=True,
        timeout=_BUILD_S,
        stdin=subprocess.DEVNULL,
    )
    if made.returncode != 0:
        raise JavaProgramError(
            f"Maven failed (exit {made.returncode}):\n{_end(made.stdout + made.stderr)}"
        )


def _end(text: str) -> str:
    return "\n".join(text.splitlines()[-_SHOWN:])


@contextmanager
def java_program(
    program: str, main: str, *arguments: str, options: tuple[str, ...] = ()
) -> Iterator[Callable[..., Answer]]:
    """Start a program in Java, as `answering_program` does.

    Args:
        program: See `class_path`.
        main: The main class in the package `encore.benchmarks`.
        options: Options of the JVM.

    Raises:
        JavaProgramError: also if the program cannot be compiled.
    """
    command = ["java", *options, "-cp", class_path(program), f"encore.benchmarks.{main}"]
    with answering_program(main, *command, *arguments) as ask:
        yield ask


@contextmanager
def answering_program(name: str, *command: str) -> Iterator[Callable[..., Answer]]:
    """Start a program, and kill it at the end.

    The function sends a line of words and returns the answer, which is a line of JSON.

    Args:
        name: For the text of errors.

    Raises:
        JavaProgramError: if the program ended without an answer.
    """
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        lines_in, lines_out = process.stdin, process.stdout

        def ask(*words: object) -> Answer:
            try:
                lines_in.write(" ".join(map(str, words)) + "\n")
                lines_in.flush()
            except BrokenPipeError:
                pass  # the process has ended, and its errors say why
            line = lines_out.readline()
            if not line.startswith("{"):
                errors.seek(0)
                raise JavaProgramError(f"{name} ended:\n{line}{_end(errors.read())}")
            answer: Answer = json.loads(line)
            return answer

        try:
            yield ask
        finally:
            process.kill()
