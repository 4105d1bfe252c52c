"""Handlers of the commands of connected clients, without sockets and event loop.

A handler raises `Refusal` to refuse a command, and another `EncoreError` for a protocol error.
"""

from __future__ import annotations

from collections.abc import Callable

from ...wire.frames import Frame
from ..attached import Peer
from ..broker_service import BrokerService
from . import consumer_commands as consuming
from . import producer_commands as producing
from . import topic_commands as discovery
from . import transaction_commands as transactions

HANDLERS: dict[str, Callable[[BrokerService, Peer, Frame], None]] = {
    **discovery.HANDLERS,
    **producing.HANDLERS,
    **consuming.HANDLERS,
    **transactions.HANDLERS,
}
