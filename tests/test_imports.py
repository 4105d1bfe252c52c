"""Imports point one way, the pure parts are pure, and one package knows the engine.

Order: values -> letters -> core -> store, wire -> transport, timer -> consumer -> client,
runner -> cli, spark.
Imports under `TYPE_CHECKING` are types only and may point back to values and options.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pulsar_encore

ROOT = Path(pulsar_encore.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if not path.name.endswith("_pb2.py"))

# Lower may not import higher. What is in no layer is named in no layer: the test fails for it.
LAYERS: dict[str, int] = {
    "stock": 0,
    "errors": 0,
    "exceptions": 0,
    "ids": 0,
    "backoff": 0,
    "message": 0,
    "outgoing": 0,
    "closing": 0,
    "loops": 0,
    "mailbox": 0,
    "topic_names": 0,
    "version": 0,
    "options": 0,
    "letters": 1,
    "core": 1,
    "store": 2,
    "wire": 2,
    "timer": 3,
    "turn": 3,
    "awaiting": 3,
    "transport": 3,
    "observe": 3,
    "schema": 4,
    "consumer": 4,
    "producer": 4,
    "reader": 4,
    "runner": 5,
    "client": 5,
    "devbroker": 5,
    "deadletters": 6,
    "testing": 6,
    "cli": 7,
    "spark": 7,
    "asyncio": 8,
    "": 8,  # the package's own __init__ and __main__
}

# Types only: a record names its home, a message its entry, the seam the options.
TYPES_ONLY = {("message", "core"), ("message", "transport")}

IMPURE = {"asyncio", "time", "socket", "logging", "threading", "selectors", "random", "anyio"}
LETTERS_NEED = {"errors", "ids", "letters", "outgoing", "topic_names"}
# A pure part may name an impure module where it only passes something of it through.
PURE = ("core/", "letters/", "wire/", "devbroker/rules/", "devbroker/handlers/")
# The engine is imported by its transport, by the one file that names stock's own base classes, and
# by the demo that runs stock beside this package.
ENGINE_ALLOWED = ("stock.py", "transport/stock/", "cli/demo/")


def imports(path: Path) -> Iterator[tuple[str, bool, int]]:
    """(absolute module, under TYPE_CHECKING, line) of each import of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = ("pulsar_encore", *path.relative_to(ROOT).parent.parts)
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        types_only = id(node) in guarded
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, types_only, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            if module == "pulsar_encore" or not node.module:
                for alias in node.names:
                    yield f"{module}.{alias.name}", types_only, node.lineno
            else:
                yield module, types_only, node.lineno


def layer_of(module: str) -> str:
    """The layer's name of an absolute module of this package."""
    parts = module.split(".")
    name = parts[1] if len(parts) > 1 else ""
    is_ours = (ROOT / name).is_dir() or (ROOT / f"{name}.py").exists()
    return name if name and is_ours else ""  # a name of the package's own __init__


def own_layer(path: Path) -> str:
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return "" if part in ("__init__", "__main__") else part


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    own = own_layer(path)
    assert own in LAYERS, f"{own} is in no layer: give it a place in LAYERS"
    for module, types_only, line in imports(path):
        if not module.startswith("pulsar_encore"):
            continue
        other = layer_of(module)
        if types_only and (own, other) in TYPES_ONLY:
            continue
        if own == "cli" and other == "":
            continue  # the command line uses the package as its users do
        assert other in LAYERS, f"{other} is in no layer: give it a place in LAYERS"
        assert LAYERS[other] <= LAYERS[own], f"line {line}: {own} imports {module}"


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if str(path.relative_to(ROOT)).startswith(PURE)],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_the_pure_parts_are_pure(path: Path) -> None:
    for module, _, line in imports(path):
        assert module.split(".")[0] not in IMPURE, f"line {line} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_its_transport_knows_the_engine(path: Path) -> None:
    if str(path.relative_to(ROOT)).startswith(ENGINE_ALLOWED):
        return
    for module, _, line in imports(path):
        assert module.split(".")[0] not in ("pulsar", "_pulsar"), f"line {line} imports {module}"


@pytest.mark.parametrize("path", sorted(ROOT.glob("letters/*.py")), ids=lambda path: path.name)
def test_letters_need_values_alone(path: Path) -> None:
    """Neither `Message` nor the core: whoever has rows instead writes and reads letters too."""
    for module, _, line in imports(path):
        if module.startswith("pulsar_encore"):
            assert layer_of(module) in LETTERS_NEED, f"line {line} imports {module}"


def test_the_walk_sees_the_imports_it_is_about() -> None:
    seen = {module for path in FILES for module, _, _ in imports(path)}
    assert {"asyncio", "_pulsar", "pulsar_encore.core.entry", "pulsar_encore.errors"} <= seen
    own = {layer_of(module) for module in seen if module.startswith("pulsar_encore")}
    assert {"core", "wire", "transport", "consumer", "options", "devbroker"} <= own
