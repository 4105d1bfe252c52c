"""Declared dependencies equal the imported ones, and NOTICE names all installed packages."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pulsar
import pytest

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
DEV: list[str] = PYPROJECT["dependency-groups"]["dev"]

#: Members of the dependency group "dev" that are run and not imported.
TOOLS = {
    "anyio",
    "grpcio-tools",
    "mypy",
    "mypy-protobuf",
    "podman-compose",
    "pyright",
    "pytest-randomly",
    "pytest-timeout",
    "ruff",
    "sortedcontainers-stubs",
    "types-protobuf",
    "types-psutil",
    "types-pyyaml",
    "uvicorn",
}


def names(requirements: Iterable[str]) -> set[str]:
    """Return the names of distributions, as PyPI spells them."""
    found = (re.match(r"[\w.-]+", requirement) for requirement in requirements)
    return {re.sub(r"[-_.]+", "-", each[0]).lower() for each in found if each}


#: Requirements of an extra, or for a Python version that this package does not support.
NOT_INSTALLED = re.compile(r"extra ==|python_(full_)?version < ['\"]3\.(\d|10|11)(\.0)?['\"]")

REQUIRED = names(PROJECT["dependencies"])
#: By extra, without the requirements of another extra that it includes.
OPTIONAL = {extra: names(each) - {"pulsar-encore"} for extra, each in EXTRAS.items()}


def imported(files: Iterable[Path]) -> set[str]:
    """Return the distributions that the files import (also by `import_module` of a literal)."""
    modules: set[str] = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import(names=aliases):
                    modules |= {alias.name for alias in aliases}
                case ast.ImportFrom(module=str(module), level=0):
                    modules.add(module)
                case ast.Call(func=func, args=[ast.Constant(value=str(module))]):
                    if ast.unparse(func).endswith("import_module"):
                        modules.add(module)
                case _:
                    pass
    shared = {name for name in modules if name.partition(".")[0] == "opentelemetry"}
    tops = {module.partition(".")[0] for module in modules - shared} - sys.stdlib_module_names
    known = packages_distributions()
    found = names(each for top in tops for each in known.get(top, ())) - {"pulsar-encore"}
    # Several distributions have a part of the package "opentelemetry".
    return found | {
        "opentelemetry-sdk" if name.startswith("opentelemetry.sdk") else "opentelemetry-api"
        for name in shared
    }


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def installed_with(distributions: Iterable[str]) -> set[str]:
    """Return the distributions and all their requirements, without those of extras."""
    found: set[str] = set()
    waiting = list(distributions)
    while waiting:
        name = waiting.pop()
        try:
            needs = requires(name) or []
        except PackageNotFoundError:  # for another platform or Python
            continue
        found.add(name)
        waiting += names(each for each in needs if not NOT_INSTALLED.search(each)) - found
    return found


#: The pytest plugin. Only pytest loads it, so its imports are installed where it runs.
PLUGIN = ROOT / "sdk" / "pulsar_encore_pytest.py"


def test_the_package_declares_exactly_its_imports() -> None:
    optional = set().union(*OPTIONAL.values())
    found = imported(each for each in python_files("sdk") if each != PLUGIN)
    assert REQUIRED.isdisjoint(optional)
    assert found - optional == REQUIRED
    assert optional == found - REQUIRED
    # The extra "avro" is for the AvroSchema of pulsar-client and for AutoConsume.
    stock = imported(Path(pulsar.__file__).parent.rglob("*.py"))
    assert OPTIONAL["avro"] <= stock


def test_only_the_command_line_needs_its_extra() -> None:
    cli = ROOT / "sdk" / "pulsar_encore" / "cli"
    others = [path for path in python_files("sdk") if cli not in path.parents]
    assert imported(others) & OPTIONAL["cli"] == set()


def test_the_dev_group_declares_exactly_the_imports_of_the_tests() -> None:
    dev = names(DEV) - {"pulsar-encore"}
    found = imported(python_files("tests", "integration", "docker", "examples"))
    assert found <= REQUIRED | dev | set().union(*OPTIONAL.values())
    assert dev - found == TOOLS


@pytest.mark.parametrize("block", ["always", *OPTIONAL])
def test_the_notice_names_the_installed_packages(block: str) -> None:
    title = block if block == "always" else f'extra "{block}"'
    text = (ROOT / "NOTICE").read_text(encoding="utf-8")
    lines = re.search(rf"^  {title}\n((?:    .+\n)+)", text, re.MULTILINE)
    assert lines is not None
    named = names(line.strip() for line in lines[1].splitlines())
    base = installed_with(REQUIRED)
    assert named == (base if block == "always" else installed_with(OPTIONAL[block]) - base)


def test_the_dev_group_installs_every_extra_and_is_not_an_extra() -> None:
    (whole,) = [each for each in DEV if each.startswith("pulsar-encore[")]
    assert set(whole.removeprefix("pulsar-encore[").rstrip("]").split(",")) == EXTRAS.keys()
    assert "dev" not in EXTRAS


def test_the_versions_of_python_agree() -> None:
    minors = [
        int(found[1])
        for each in PROJECT["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", each))
    ]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"Python 3.{minors[0]} to 3.{minors[-1]}." in readme
