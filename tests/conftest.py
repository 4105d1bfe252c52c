"""Shared by all tests: no event loop is left over, and hypothesis tests are repeatable."""

from __future__ import annotations

import asyncio
import os

from hypothesis import settings

# The plugin of looptime asks for an event loop before every synchronous test. Without this line it
# creates one and never closes it, which warns in a later test.
asyncio.set_event_loop(None)

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.register_profile("searching", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
