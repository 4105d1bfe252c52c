"""The fixture `inner`, which runs pytest inside a test."""

from __future__ import annotations

from typing import Any

import pytest

from tests.testing_plugin.inner_run import Inner, inner_run


@pytest.fixture
def inner(pytester: Any, monkeypatch: pytest.MonkeyPatch) -> Inner:
    return inner_run(pytester, monkeypatch)
