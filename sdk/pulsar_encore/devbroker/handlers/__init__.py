"""What is done for each command that a client sends once it is connected.

Written against a `Peer`, as which a session shows its client, and the service that all sessions
share; no sockets, no event loop. What a handler refuses it raises as `Refusal`, what breaks the
protocol as another `EncoreError`.
"""

from __future__ import annotations

from collections.abc import Callable

from ...wire.frames import Frame
from ..attached import Peer
from ..broker_service import BrokerService
from . import consumer_commands as consuming
from . import producer_commands as producing
from . import topic_commands as discovery

HANDLERS: dict[str, Callable[[BrokerService, Peer, Frame], None]] = {
    **discovery.HANDLERS,
    **producing.HANDLERS,
    **consuming.HANDLERS,
}
