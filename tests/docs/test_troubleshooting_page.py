"""Every error text on `docs/troubleshooting.md` is in the source, and its program runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import pulsar_encore
from pulsar_encore import Client
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import blocks_of, run_block, text_of

PAGE = text_of("troubleshooting.md")
PACKAGE = Path(pulsar_encore.__file__).parent
TABLES = PAGE.partition("\n## Symptoms without an error\n")[0]
TEXTS = re.findall(r"^\| `(.*?)` \|", TABLES, flags=re.MULTILINE)
VARIES = "…"
FIELD = re.compile(r"%(?:[-+0-9.*]*[sdrgf])")


def text_of_node(node: ast.AST) -> str | None:
    """Return the text of a literal, with an ellipsis for each field."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return FIELD.sub(VARIES, node.value)
    if isinstance(node, ast.JoinedStr):
        parts = (text_of_node(each) or VARIES for each in node.values)
        return "".join(parts)
    return None


@cache
def source_texts() -> tuple[str, ...]:
    """All literals of the package with more than one word."""

    def found() -> Iterator[str]:
        for path in PACKAGE.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                text = text_of_node(node)
                if text and " " in text.strip():
                    yield text

    return tuple(found())


def test_the_page_lists_many_texts_and_each_once() -> None:
    assert len(TEXTS) > 50
    assert len(set(TEXTS)) == len(TEXTS)


@pytest.mark.parametrize("text", TEXTS)
def test_an_error_text_of_the_page_is_in_the_source(text: str) -> None:
    fragments = [re.escape(each) for each in text.split(VARIES)]
    pattern = re.compile(".*".join(fragments), flags=re.DOTALL)
    assert any(pattern.search(each) for each in source_texts())


async def test_the_program_prints_the_state_of_a_consumer(
    client: Client, transport: MemoryTransport, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = blocks_of("troubleshooting.md")
    async with client.subscribe("orders", "billing") as consumer:
        transport.put("orders", b"one", b"two")
        await consumer.receive()
        await run_block(block, {"consumer": consumer})
    state, counts, counters = capsys.readouterr().out.splitlines()
    assert state == "memory True () None"
    assert counts.startswith("1 1 0 ")
    assert "received=1" in counters
