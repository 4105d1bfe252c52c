"""Shared by all tests: no event loop is left over, and hypothesis tests are repeatable."""

from __future__ import annotations

import asyncio
import gc
import os

import pytest
from hypothesis import settings

# The plugin of looptime asks for an event loop before every synchronous test. Without this line it
# creates one and never closes it, which warns in a later test.
asyncio.set_event_loop(None)

# The same hundred examples in each run; `HYPOTHESIS_PROFILE=searching` looks for new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.register_profile("searching", deadline=None, print_blob=True, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


# Tests of these folders take up to 12 s each.
_LONG = ("worlds", "type_checkers")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long tests first, so that at the end no worker is busy alone with one of them."""
    items.sort(key=lambda item: item.path.parent.name not in _LONG)


def pytest_collection_finish() -> None:
    # About fifty tests call `gc.collect()`, which walks every object of the process: half a second
    # after the import of all test modules. Frozen objects are left out of that walk.
    gc.collect()
    gc.freeze()
