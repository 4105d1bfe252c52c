"""`pulsar-encore broker`: the development broker in the foreground."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from typing import Any

from ..devbroker.broker_settings import BrokerSettings
from ..devbroker.main import serve


def run_broker(*, until_eof: bool = False, **settings: Any) -> int:
    """Serve until interrupted, or until stdin ends with `until_eof`. Commands are not recorded."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.INFO)
    # The process may be restarted. If it used the same ids again, clients would take new messages
    # for those that they acked before.
    first_ledger = time.time_ns() // 1_000_000
    checked = BrokerSettings(record=False, first_ledger=first_ledger, **settings)
    if until_eof:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    asyncio.run(serve(checked))
    return 0


def _end_with_stdin() -> None:
    while os.read(0, 4096):  # not sys.stdin: its lock would be held when the process ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)
