"""Build the package, and try it in clean environments: `python -m tests.harness.package_check`.

    python -m tests.harness.package_check                          # every Python that is found
    python -m tests.harness.package_check --python /path/to/python3.14 --cases none state
    python -m tests.harness.package_check --wheels                 # also ask for wheels elsewhere

The check builds a wheel and an sdist, and runs `twine check --strict` on both. For each Python it
makes one environment for each case: the wheel without extras, the wheel with each extra, and the
sdist. The case "oldest" is for the oldest Python: the lowest versions that pyproject.toml accepts,
for all extras but Spark's. In each one it runs `package_program.py`. It prints a table of the
results, the output of each failure, and the Pythons of the classifiers that it did not find. The
exit code is 1 if a case failed, or if `--strict` is given and a Python was not found.

With `--wheels` pip resolves all requirements for other platforms from wheels alone, and installs
nothing. The build and twine come from the dependency group `release`, into an environment of their
own.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAM: Final = Path(__file__).with_name("package_program.py")
VERSION_FILE: Final = ROOT / "sdk/pulsar_encore/version.py"

INSTALL_S: Final = 1200.0
RUN_S: Final = 180.0
SHOWN_LINES: Final = 25

#: The cases that are not the wheel with one extra.
NO_EXTRA: Final = "none"
SDIST: Final = "sdist"
OLDEST: Final = "oldest"
#: Extras that the case "oldest" leaves out: `integration/spark/versions.py` tests older PySparks.
NOT_OLDEST: Final = ("spark", "triage")

#: Files that a wheel must have, and folders that may be at its top.
IN_WHEEL: Final = ("pulsar_encore/py.typed", "pulsar_encore/__init__.py", "pulsar_encore_pytest.py")
WHEEL_TOPS: Final = {"pulsar_encore", "pulsar_encore_pytest.py", "pyspark_pulsar_encore.py"}
SDIST_TOPS: Final = {
    "sdk",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "NOTICE",
    "PKG-INFO",
    "pyproject.toml",
    ".gitignore",
}

#: Tags of pip for each platform of `--wheels`: glibc of Debian 10 and RHEL 8, musl of Alpine 3.13.
PLATFORMS: Final = {
    "Linux x86_64": ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"),
    "Linux aarch64": ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"),
    "Alpine x86_64": ("musllinux_1_2_x86_64", "musllinux_1_1_x86_64"),
    "Alpine aarch64": ("musllinux_1_2_aarch64", "musllinux_1_1_aarch64"),
    "macOS 14 arm64": ("macosx_14_0_arm64",),
    "macOS 14 x86_64": ("macosx_14_0_x86_64",),
    "Windows x86_64": ("win_amd64",),
    "Windows arm64": ("win_arm64",),
}
#: Its sdist is pure Python: pip makes a wheel of it on every platform, without a compiler.
PURE_SDISTS: Final = ("pyspark",)


class CheckError(Exception):
    """A step failed. The text has the command and the end of its output."""


@dataclass(frozen=True)
class Interpreter:
    """A Python on this machine, with its version such as "3.12" and "3.12.1"."""

    path: str
    minor: str
    version: str


@dataclass(frozen=True)
class Result:
    """The outcome of one case on one Python. `failure` is empty for a success."""

    case: str
    python: str
    seconds: float
    failure: str = ""
    installed: str = ""

    def __str__(self) -> str:
        return "FAILED" if self.failure else f"ok, {self.seconds:.0f} s"


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return found


def declared_minors() -> list[str]:
    """Return the Pythons of the classifiers, such as "3.11"."""
    pattern = r"Programming Language :: Python :: (3\.\d+)"
    matches = (re.fullmatch(pattern, each) for each in project()["classifiers"])
    return [each[1] for each in matches if each]


def run(command: Sequence[str | Path], within_s: float, cwd: Path | None = None) -> str:
    """Run a command, and return its output.

    Raises:
        CheckError: if it fails, or does not end in time.
    """
    words = [str(each) for each in command]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=within_s,
        )
    except subprocess.TimeoutExpired:
        raise CheckError(f"{' '.join(words)}\nnot within {within_s:g} s") from None
    except OSError as error:
        raise CheckError(f"{' '.join(words)}\n{error}") from None
    if done.returncode != 0:
        end = "\n".join(done.stdout.splitlines()[-SHOWN_LINES:])
        raise CheckError(f"{' '.join(words)}\nended with {done.returncode}:\n{end}")
    return done.stdout


def interpreter_at(path: str) -> Interpreter:
    """Ask a Python for its version.

    Raises:
        CheckError: if it does not run.
    """
    version = run([path, "-I", "-c", "import platform; print(platform.python_version())"], 30)
    version = version.strip()
    return Interpreter(path, ".".join(version.split(".")[:2]), version)


def candidates(minor: str) -> Iterator[str]:
    """Yield the places where a Python may be: PATH, pyenv and uv."""
    name = f"python{minor}"
    if sys.version_info[:2] == tuple(map(int, minor.split("."))):
        yield sys.executable
    on_path = shutil.which(name)
    if on_path:
        yield on_path
    for folder in (".pyenv/versions", ".local/share/uv/python"):
        yield from sorted(map(str, Path.home().glob(f"{folder}/*/bin/{name}")), reverse=True)


def found_interpreters(minors: Iterable[str]) -> tuple[list[Interpreter], list[str]]:
    """Return one Python for each version that is on this machine, and the missing versions."""
    found, missing = [], []
    for minor in minors:
        for path in candidates(minor):
            try:
                each = interpreter_at(path)
            except CheckError:  # for example a shim of pyenv without a version
                continue
            if each.minor == minor:
                found.append(each)
                break
        else:
            missing.append(minor)
    return found, missing


def script(environment: Path, name: str) -> Path:
    """Return the path of a program of a virtual environment."""
    folder = environment / ("Scripts" if sys.platform == "win32" else "bin")
    return folder / (f"{name}.exe" if sys.platform == "win32" else name)


def build(folder: Path) -> tuple[Path, Path]:
    """Build the distributions into a folder and check them.

    Returns:
        The wheel and the sdist.

    Raises:
        CheckError: if the build or `twine check` fails, or a file is missing or does not belong.
    """
    tools = folder / "tools"
    run([sys.executable, "-m", "venv", tools], INSTALL_S)
    python = script(tools, "python")
    run([python, "-m", "pip", "install", "--quiet", "--upgrade", "pip>=25.1"], INSTALL_S)
    group = f"{ROOT / 'pyproject.toml'}:release"
    run([python, "-m", "pip", "install", "--quiet", "--group", group], INSTALL_S)
    dist = folder / "dist"
    run([python, "-m", "build", "--outdir", dist, ROOT], INSTALL_S)
    (wheel,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    print(
        run([python, "-m", "twine", "--no-color", "check", "--strict", wheel, sdist], RUN_S).strip()
    )
    check_contents(wheel, sdist)
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path) -> None:
    """Raise CheckError if a file of a distribution is missing, or does not belong."""
    version = re.search(r'^VERSION.*"(.+)"', VERSION_FILE.read_text("utf-8"), re.MULTILINE)
    assert version is not None
    info = f"pulsar_encore-{version[1]}.dist-info"
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {*IN_WHEEL, f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"}
    missing = wanted - names
    foreign = {each.partition("/")[0] for each in names} - WHEEL_TOPS - {info}
    with tarfile.open(sdist) as archive:
        tops = {each.partition("/")[2].partition("/")[0] for each in archive.getnames()} - {""}
    missing |= SDIST_TOPS - {".gitignore"} - tops
    foreign |= tops - SDIST_TOPS
    foreign |= {each for each in names if each.endswith(".pyc")}
    if missing or foreign:
        raise CheckError(f"{wheel.name}, {sdist.name}: missing {missing}, foreign {foreign}")


def oldest_extras() -> list[str]:
    return [each for each in project()["optional-dependencies"] if each not in NOT_OLDEST]


def lowest_versions() -> list[str]:
    """Return the lower ends of all ranges that the case "oldest" installs, as requirements."""
    known = project()
    every = [*known["dependencies"]]
    for extra in oldest_extras():
        every += known["optional-dependencies"][extra]
    pairs = (re.match(r"([\w.-]+)>=([\w.]+)", each) for each in every)
    return sorted({f"{each[1]}=={each[2]}" for each in pairs if each})


def requirements_of(case: str, wheel: Path, sdist: Path) -> list[str]:
    if case == SDIST:
        return [str(sdist)]
    if case == OLDEST:
        return [f"{wheel}[{','.join(oldest_extras())}]", *lowest_versions()]
    return [str(wheel) if case == NO_EXTRA else f"{wheel}[{case}]"]


def uses_of(case: str) -> list[str | None]:
    """Return the extras that the program uses in a case. None is a run without one."""
    if case == OLDEST:
        return [None, *oldest_extras()]
    return [None if case in (NO_EXTRA, SDIST) else case]


def try_case(python: Interpreter, case: str, requirements: list[str], folder: Path) -> Result:
    """Install requirements into a new environment, run the program, and remove the environment."""
    environment = folder / f"{python.minor}-{case}"
    begin = time.monotonic()
    failure, installed = "", ""
    try:
        run([python.path, "-m", "venv", environment], INSTALL_S)
        inner = script(environment, "python")
        run([inner, "-m", "pip", "install", "--quiet", *requirements], INSTALL_S)
        run([inner, "-m", "pip", "check"], RUN_S)
        # In isolated mode neither PYTHONPATH nor the working directory can show this checkout.
        for extra in uses_of(case):
            output = run([inner, "-I", PROGRAM, *([extra] if extra else [])], RUN_S, cwd=folder)
            place = re.search(r"in (.+) works", output)
            if place is None or not Path(place[1]).is_relative_to(environment):
                raise CheckError(f"the program did not use the installed package:\n{output}")
        installed = run([inner, "-m", "pip", "list", "--format", "freeze"], RUN_S)
    except CheckError as error:
        failure = str(error)
    finally:
        shutil.rmtree(environment, ignore_errors=True)
    return Result(case, python.minor, time.monotonic() - begin, failure, installed)


def table(rows: Sequence[str], columns: Sequence[str], cells: dict[tuple[str, str], str]) -> str:
    """Return a Markdown table; `cells` is by (row, column)."""
    lines = [["", *columns], ["---"] * (len(columns) + 1)]
    lines += [[row, *(cells.get((row, each), "-") for each in columns)] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def outside_requirements() -> list[str]:
    """Return the requirements of the package and of all extras that must have wheels."""
    known = project()
    every = [*known["dependencies"]]
    for extra in known["optional-dependencies"].values():
        every += extra
    left_out = (*PURE_SDISTS, "pulsar-encore")
    return sorted({each for each in every if not each.startswith(left_out)})


def wheel_answer(python: Path, minor: str, tags: Sequence[str], folder: Path) -> str:
    """Return "yes" if wheels serve all requirements of a platform, else the reason in one line."""
    options = [word for tag in tags for word in ("--platform", tag)]
    command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    command += ["--only-binary", ":all:", "--python-version", minor, "--target", folder / "target"]
    try:
        run([*command, *options, *outside_requirements()], INSTALL_S)
    except CheckError as error:
        lacking = re.findall(r"No matching distribution found for ([\w.-]+)", str(error))
        return f"no: {lacking[-1]}" if lacking else "no: " + str(error).splitlines()[-1]
    return "yes"


def print_wheels(minors: Sequence[str], folder: Path) -> None:
    """Print for which platforms wheels serve every requirement, extras included."""
    python = script(folder / "tools", "python")
    cells = {
        (name, minor): wheel_answer(python, minor, tags, folder)
        for name, tags in PLATFORMS.items()
        for minor in minors
    }
    print("\nwheels of all requirements:\n" + table(list(PLATFORMS), list(minors), cells))


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.harness.package_check")
    extras = list(project()["optional-dependencies"])
    cases = [NO_EXTRA, SDIST, OLDEST, *extras]
    parser.add_argument("--python", nargs="+", metavar="PATH", help="these interpreters only")
    parser.add_argument("--cases", nargs="+", choices=cases, default=cases, help="these cases only")
    parser.add_argument("--wheels", action="store_true", help="ask for wheels of other platforms")
    parser.add_argument(
        "--strict", action="store_true", help="a Python that is missing is a failure"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check, and return the exit code."""
    options = parsed(arguments)
    declared = declared_minors()
    try:
        if options.python:
            pythons = [interpreter_at(path) for path in options.python]
            missing = [each for each in declared if each not in {one.minor for one in pythons}]
        else:
            pythons, missing = found_interpreters(declared)
    except CheckError as error:
        print(error)
        return 1
    for each in pythons:
        print(f"Python {each.version}: {each.path}")
    with tempfile.TemporaryDirectory(prefix="package-check-") as name:
        folder = Path(name).resolve()
        try:
            wheel, sdist = build(folder)
        except CheckError as error:
            print(f"The build FAILED: {error}")
            return 1
        results = []
        for python in pythons:
            for case in options.cases:
                if case == OLDEST and python.minor != declared[0]:
                    continue
                requirements = requirements_of(case, wheel, sdist)
                results.append(try_case(python, case, requirements, folder))
                print(f"Python {python.version}, {case}: {results[-1]}", flush=True)
                if results[-1].failure:
                    print(results[-1].failure, flush=True)
        if options.wheels:
            print_wheels(declared, folder)
    failed = [each for each in results if each.failure]
    for result in failed:
        print(f"\nPython {result.python}, {result.case} FAILED: its output is above")
    for result in results:
        if result.case == NO_EXTRA and result.installed:
            print(f"\ninstalled on Python {result.python}: {' '.join(result.installed.split())}")
    cells = {(each.case, each.python): str(each) for each in results}
    print("\n" + table(options.cases, [each.minor for each in pythons], cells))
    if missing:
        print(f"not found, and so not tried: {', '.join(f'Python {each}' for each in missing)}")
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or not results or (options.strict and missing) else 0


if __name__ == "__main__":
    sys.exit(main())
