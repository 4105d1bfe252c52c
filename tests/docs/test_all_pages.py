"""Every page with Python blocks has a test that runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.harness.pages import DOCS, Block, blocks_of, run_block

PAGES = sorted(
    str(path.relative_to(DOCS))
    for path in DOCS.rglob("*.md")
    if "_build" not in path.parts and blocks_of(str(path.relative_to(DOCS)))
)
TESTS = Path(__file__).parent

#: Blocks that need Java run in `integration/spark`, in `test_docs_pages.py` and
#: `test_parquet_page.py`.
ELSEWHERE = {"spark-parquet.md", "spark-triage.md", "spark.md"}


@pytest.mark.parametrize("page", PAGES)
def test_the_python_blocks_of_a_page_are_run_by_a_test(page: str) -> None:
    name = Path(page).with_suffix("").as_posix().replace("-", "_")
    name = name.replace("recipes/", "recipe_").replace("/", "_")
    has_test = (TESTS / f"test_{name}_page.py").exists()
    assert has_test != (page in ELSEWHERE)


async def test_a_block_has_only_the_future_features_that_it_imports() -> None:
    names: dict[str, Any] = {}
    await run_block(Block("worker.md", "", "def double(number: int): ..."), names)
    assert names["double"].__annotations__ == {"number": int}
