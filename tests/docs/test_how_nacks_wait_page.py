"""The Python block of `docs/how-nacks-wait.md` runs: ids wait until the edge of their bucket."""

from __future__ import annotations

from typing import Any

from tests.harness.pages import blocks_of, run_block

(INDEX,) = blocks_of("how-nacks-wait.md")


async def test_ids_are_taken_at_the_edge_of_their_bucket_in_order() -> None:
    names: dict[str, Any] = {}
    await run_block(INDEX, names)
    assert names["early"] == []
    assert names["edge"] == 3_072
    assert names["due"] == [(7, 1, -1), (7, 2, -1), (7, 3, -1), (7, 4, 0)]
