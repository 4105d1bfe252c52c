"""`pulsar-encore broker`: the development broker in the foreground."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

from ..devbroker.main import serve
from ..devbroker.settings import BrokerSettings


def run_broker(**settings: Any) -> int:
    """Serve until interrupted.

    Args:
        settings: As in `BrokerSettings`; commands are not recorded, nobody could look at them.

    Raises:
        ConfigurationError: A setting is out of range.
        TransportError: The address cannot be had.
    """
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.INFO)
    asyncio.run(serve(BrokerSettings(record=False, **settings)))
    return 0
