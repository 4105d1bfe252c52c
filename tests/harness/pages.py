"""The blocks of a page of the documentation. A test runs those in Python as programs."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Final

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"


@dataclass(frozen=True)
class Block:
    """A code block of a page.

    Attributes:
        page: The page's path in `docs`, such as "worker.md".
        title: The heading above the block.
        code: The text of the block.
    """

    page: str
    title: str
    code: str

    def __str__(self) -> str:
        return self.title


def text_of(page: str) -> str:
    """Return the text of a page."""
    return (DOCS / page).read_text(encoding="utf-8")


def all_blocks(page: str) -> list[tuple[str, Block]]:
    """Return (language, block) of each block of a page, in order."""
    text = text_of(page)
    found = []
    for each in re.finditer(r"^```(\w+)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        before = re.sub(r"^```.*?^```", "", text[: each.start()], flags=re.MULTILINE | re.DOTALL)
        headings = re.findall(r"^#+ (.*)$", before, flags=re.MULTILINE)
        found.append((each[1], Block(page, headings[-1] if headings else "", each[2])))
    return found


def blocks_of(page: str, language: str = "python") -> list[Block]:
    """Return the blocks of a page in one language, in order."""
    return [block for each, block in all_blocks(page) if each == language]


def compiled(block: Block) -> CodeType:
    """Compile a block. It may await outside of functions."""
    # Without `dont_inherit` the block would get the `from __future__ import annotations` above.
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(block.code, f"docs/{block.page}", "exec", flags=flags, dont_inherit=True)


async def run_block(block: Block, names: dict[str, Any]) -> None:
    """Run a block. Names that it defines are added to `names`, for the blocks behind it."""
    code = compiled(block)
    if code.co_flags & inspect.CO_COROUTINE:
        await eval(code, names)
    else:
        exec(code, names)
