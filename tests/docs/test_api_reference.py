"""The API reference documents every public name. `make docs` checks that each of them exists."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from tests.harness.pages import DOCS, text_of
from tests.harness.public_modules import MODULES

PAGES = sorted(path.name for path in (DOCS / "api").glob("*.md"))
TEXTS = {page: text_of(f"api/{page}") for page in PAGES}
DIRECTIVE = re.compile(r"^\.\. (?:auto\w+|py:\w+):: (\S+)", re.MULTILINE)
DOCUMENTED = [name for text in TEXTS.values() for name in DIRECTIVE.findall(text)]


def found(name: str) -> object:
    """Return the object with a full name."""
    module, _, last = name.rpartition(".")
    return getattr(import_module(module), last)


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_documented(module: str) -> None:
    missing = []
    documented = {id(found(name)) for name in DOCUMENTED}
    for name in import_module(module).__all__:
        full = f"{module}.{name}"
        if full not in DOCUMENTED and id(found(full)) not in documented:
            missing.append(full)
    # Modules, the version and a class of pulsar-client are explained in a table.
    in_tables = {
        "__version__",
        "BytesSchema",
        "asyncio",
        "deadletters",
        "exceptions",
        "health",
        "schema",
        "testing",
    }
    assert [each for each in missing if each not in {f"pulsar_encore.{n}" for n in in_tables}] == []
    text = TEXTS["modules.md"] + TEXTS["schemas.md"]
    assert [each for each in in_tables if not re.search(rf"`(pulsar_encore\.)?{each}`", text)] == []


def test_every_class_of_pulsar_client_is_named() -> None:
    section = TEXTS["schemas.md"].partition("## Classes of pulsar-client")[2]
    assert set(re.findall(r"`(\w+)`", section)) >= set(
        import_module("pulsar_encore.schema").__all__
    )


def test_the_page_of_module_names_lists_those_of_pulsar_asyncio() -> None:
    line = TEXTS["modules.md"].partition("`pulsar_encore.asyncio`: ")[2].partition("\n- ")[0]
    assert re.findall(r"`(\w+)`", line) == import_module("pulsar_encore.asyncio").__all__


def test_no_name_is_documented_twice() -> None:
    assert sorted(DOCUMENTED) == sorted(set(DOCUMENTED))


def test_every_page_is_in_the_table_and_in_the_tree() -> None:
    index = TEXTS["index.md"]
    pages = {page.removesuffix(".md") for page in PAGES} - {"index"}
    assert set(re.findall(r"\]\((\w+)\.md\)", index)) == pages
    tree = index.partition("```{toctree}\n:hidden:\n\n")[2].partition("```")[0]
    assert set(tree.split()) == pages
