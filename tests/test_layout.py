"""Check names of files, the imports of fast tests, and their reads of private attributes."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("docker", "examples", "integration", "sdk", "tests")
FILES = sorted(
    path.relative_to(ROOT)
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if not any(part.startswith(".") or part == "__pycache__" for part in path.parts[-4:])
)
TESTS = [path for path in FILES if path.parts[0] == "tests"]
FAST = [path for path in FILES if path.parts[0] == "tests"]
TREES = {path: ast.parse((ROOT / path).read_text("utf-8")) for path in FAST}
COUNTS = Path("tests/private_reads.txt")

#: A word in "ing" that may be part of a name, and why it is not a gerund for an activity.
ALLOWED_WORDS = {
    "batching": "the batching of a producer is a feature with this name",
    "coming": "a page of the documentation: Coming from Kafka, NATS or Pub/Sub",
    "encoding": "a noun: the encoding of a message",
    "failing": "an adjective: these parts fail",
    "forwarding": "the glossary's word for a message on its way to a letter topic",
    "incoming": "an adjective",
    "logging": "the name of Python's module",
    "migrating": "a page of the documentation, and the test of its blocks",
    "missing": "an adjective",
    "ordering": "a noun: the order of messages, and a page of the documentation",
    "outgoing": "an adjective",
    "packing": "the packing of partly acknowledged batches is a feature with this name",
    "pending": "an adjective",
    "producing": "a page of the documentation, and a benchmark",
    "recording": "an adjective: these parts record",
    "routing": "a noun in Pulsar: the routing mode",
    "spilling": "a public name: `SpillingIndex`",
    "testing": "a public package: `pulsar_encore.testing`",
    "tracing": "a public name: `Tracing`, and a page of the documentation",
    "tracking": "a noun: the tracking state of a topic",
    "troubleshooting": "a page of the documentation, and the test of its blocks",
    "waiting": "an adjective",
}
#: Tests of the report of `make bench`, which need no broker.
BENCHMARK_TESTS = ("tests/benchmarks/", "tests/docs/test_figures.py")
#: Programs that a user could have written; their names are theirs.
FREE_FOLDERS = ("integration/dropin/programs", "tests/type_checkers/programs")


def test_no_base_name_is_in_three_folders() -> None:
    folders: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        if path.stem not in ("__init__", "__main__", "conftest"):
            folders[path.name].add(str(path.parent))
    assert {name: sorted(where) for name, where in folders.items() if len(where) > 2} == {}


def names() -> Iterator[tuple[Path, str]]:
    """(path, its own name) of each file and of each folder with a file."""
    for path in FILES:
        if not str(path).startswith(FREE_FOLDERS):
            yield path, path.stem
            for folder in path.parents:
                yield folder, folder.name


def test_no_name_is_a_gerund() -> None:
    gerunds = {
        str(path)
        for path, name in names()
        for word in name.split("_")
        if word.endswith("ing") and word not in ALLOWED_WORDS
    }
    assert gerunds == set(), "name the content with a noun, or add the word to ALLOWED_WORDS"


def test_every_allowed_word_is_used() -> None:
    used = {word for _, name in names() for word in name.split("_")}
    assert used >= ALLOWED_WORDS.keys()


@pytest.mark.parametrize("path", FAST, ids=str)
def test_fast_tests_do_not_import_integration(path: Path) -> None:
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            pure = module.startswith("integration.benchmarks")
            if pure and str(path).startswith(BENCHMARK_TESTS):
                continue
            assert module.split(".")[0] != "integration", (
                f"{path}:{node.lineno} imports {module}: move the shared part to tests/harness/"
            )


def is_private(name: str) -> bool:
    # `_replace` and its like are public methods of named tuples; `_check` walks the invariants of
    # an object and exists for tests alone.
    public = ("_asdict", "_fields", "_make", "_replace", "_check", "_exit")
    return name.startswith("_") and not name.startswith("__") and name not in public


def private_reads(tree: ast.Module) -> list[int]:
    """Return the line of each private attribute that a test reads of an object of other code.

    Attributes of `self`, and those that the file defines itself, do not count.
    """
    own = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }
    own |= {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and is_private(node.attr)
        and node.attr not in own
        and ast.unparse(node.value) not in ("self", "cls", "super()")
    ]


def allowed_reads() -> dict[str, int]:
    lines = (ROOT / COUNTS).read_text("utf-8").splitlines()
    pairs = (line.split() for line in lines if line and not line.startswith("#"))
    return {path: int(count) for count, path in pairs}


ALLOWED_READS = allowed_reads()


@pytest.mark.parametrize("path", TESTS, ids=str)
def test_private_attributes_are_read_no_more_than_listed(path: Path) -> None:
    lines = private_reads(TREES[path])
    allowed = ALLOWED_READS.get(str(path), 0)
    assert len(lines) <= allowed, (
        f"{path} reads private attributes of other objects in lines {lines}, and {COUNTS} allows "
        f"{allowed}: use a snapshot() or another public method"
    )
    assert len(lines) == allowed, f"write {len(lines)} instead of {allowed} for {path} in {COUNTS}"


def test_every_listed_file_exists() -> None:
    assert ALLOWED_READS.keys() <= {str(path) for path in TESTS}
    assert 0 not in ALLOWED_READS.values(), "remove a file that reads none"


def test_the_count_sees_private_reads() -> None:
    tree = ast.parse("consumer._entries\nself._mine = 1\nother._mine\nself._x\nsource._check()")
    assert private_reads(tree) == [1]
