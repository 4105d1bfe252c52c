"""Random histories of workers: every message is settled by a rule, and none is lost.

`WORKER_HISTORIES=5000` plays more of them, and `WORKER_HISTORIES_FIRST=123` begins with that seed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from worker_history import History

COUNT = int(os.environ.get("WORKER_HISTORIES", "40"))
FIRST = int(os.environ.get("WORKER_HISTORIES_FIRST", "1"))


@pytest.mark.parametrize("part", range(4))
def test_each_message_of_a_random_history_is_settled_by_a_rule(part: int, tmp_path: Path) -> None:
    for seed in range(FIRST + part, FIRST + COUNT, 4):
        History(seed, tmp_path / str(seed)).run()
