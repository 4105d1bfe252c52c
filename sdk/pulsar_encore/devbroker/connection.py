"""One client connection: bytes in and out, handshake, keep-alive, faults, the record.

Commands are handled at once, in order, without awaiting: all state is in memory. What breaks the
protocol closes the connection without an answer, as Pulsar does; what is merely refused is
answered. Output is collected and written once per loop turn; while the client does not read, its
consumers get nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ..errors import EncoreError, ProtocolError
from ..wire import answers, commands
from ..wire import pulsar_pb2 as pb
from ..wire.frames import FRAME_OVERHEAD, Frame, FrameDecoder, FrameError
from . import consuming, discovery, producing
from .faulty import receive_faulty, send_faulty
from .refusal import Refusal
from .refusing import refuse

if TYPE_CHECKING:
    from .hub import Attached, Hub, Publishing

log: logging.Logger = logging.getLogger("pulsar_encore.devbroker")

PROTOCOL_VERSION = 21
WRITE_HIGH_WATER = 4_000_000

Handler = Callable[["Connection", Frame], None]
_NAMES: dict[int, str] = {number: name for name, number in pb.BaseCommand.Type.items()}
_UNSERVED = frozenset(
    name
    for name in pb.BaseCommand.Type.keys()
    if name.startswith("WATCH_TOPIC_LIST") or "TXN" in name or name.startswith("TC_CLIENT")
    if not name.endswith(("_RESPONSE", "_SUCCESS"))
)
_HANDLERS: dict[str, Handler] = {
    **discovery.HANDLERS,
    **producing.HANDLERS,
    **consuming.HANDLERS,
}


class Connection(asyncio.Protocol):
    """The broker's side of one connection."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.id: int = next(hub.connection_ids)
        self.consumers: dict[int, Attached] = {}
        self.producers: dict[int, Publishing] = {}
        self.closed_producers: set[int] = set()
        self.closed: bool = False
        self.writable: bool = True
        self.address: str = ""
        self.url: str = ""
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        limit = hub.settings.max_message_size + FRAME_OVERHEAD
        self._decoder = FrameDecoder(limit, skip_unknown=False)
        self._connected = False
        self._keeps_alive = False
        self._heard = True
        self._probes: list[Callable[[], None]] = []
        self._out: list[bytes] = []
        self._flushing = False
        self._tick: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        host, port = self._transport.get_extra_info("sockname")[:2]
        self.url = f"pulsar://[{host}]:{port}" if ":" in host else f"pulsar://{host}:{port}"
        self.address = "/{}:{}".format(*self._transport.get_extra_info("peername")[:2])
        self.hub.connections.add(self)
        self.hub.sockets.add(self)
        self._tick = self._loop.call_later(self.hub.settings.keep_alive_s, self._keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        self.hub.sockets.discard(self)
        self._leave()

    def _leave(self) -> None:
        """Let go of everything; called once, however the end comes."""
        if self.closed:
            return
        self.closed = True
        if self._tick is not None:
            self._tick.cancel()
        self.hub.connections.discard(self)
        for attached in list(self.consumers.values()):
            self.hub.detach(attached)
        for publishing in list(self.producers.values()):
            self.hub.withdraw(publishing)
        self._probed()

    def close(self) -> None:
        """Write what is queued, then close."""
        self._flush()
        self._leave()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; the client sees a lost connection."""
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    # Receiving

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._probes:
            self._probed()
        broken: FrameError | None = None
        try:
            frames = self._decoder.feed(data)
        except FrameError as error:
            frames, broken = error.frames, error
        for frame in frames:
            if self.closed:
                return
            self._receive(frame)
        if broken is not None and not self.closed:
            self._broken(broken)

    def _broken(self, error: EncoreError) -> None:
        log.warning("connection %d from %s closed: %s", self.id, self.address, error)
        self.close()

    def _receive(self, frame: Frame) -> None:
        name = _NAMES[frame.command.type]
        hub = self.hub
        if hub.recorder is not None:
            now_ms = time.monotonic() * 1000
            hub.recorder.add(now_ms, self.id, "in", name, frame.command)
        if hub.faults is not None:
            receive_faulty(self, hub.faults, name, frame)
        else:
            self.handle(name, frame)

    def handle(self, name: str, frame: Frame, handler: Handler | None = None) -> None:
        """Handle a command, past the faults; answer what is refused, close on what is broken."""
        if self.closed:
            return
        try:
            handler = handler or _HANDLERS.get(name)
            if handler is not None and self._connected:
                handler(self, frame)
            else:
                self._handle_own(name, frame.command)
        except Refusal as refusal:
            self.send(refuse(frame.command, refusal))
        except EncoreError as error:
            self._broken(error)
        except Exception:
            log.exception("connection %d: %s failed in the broker", self.id, name)
            self.close()

    def _handle_own(self, name: str, command: pb.BaseCommand) -> None:
        if name == "PING":
            self.send(commands.pong())
        elif name == "PONG":
            pass
        elif name == "CONNECT" and not self._connected:
            self._connect(command.connect)
        elif not self._connected:
            raise ProtocolError(f"{name} before CONNECT")
        elif name in _UNSERVED:
            raise Refusal("NotAllowedError", f"the development broker does not serve {name}")
        elif name != "AUTH_RESPONSE":
            raise ProtocolError(f"unexpected {name}")

    def retry(self, handler: Callable[[Connection, Frame, bool], None], frame: Frame) -> None:
        """Handle a request again after the holder of what it wants was probed."""
        name = _NAMES[frame.command.type]
        self.handle(name, frame, lambda conn, frame: handler(conn, frame, True))

    def _connect(self, connect: pb.CommandConnect) -> None:
        settings = self.hub.settings
        if settings.token is not None and (
            connect.auth_method_name != "token" or connect.auth_data != settings.token.encode()
        ):
            self.send(answers.error(error=pb.AuthenticationError, message="Failed to authenticate"))
            self.close()
            return
        self._connected = True
        self._keeps_alive = connect.protocol_version >= 1
        flags = pb.FeatureFlags(supports_get_partitioned_metadata_without_auto_creation=True)
        self.send(
            answers.connected(
                server_version="pulsar-encore development broker",
                protocol_version=min(connect.protocol_version, PROTOCOL_VERSION),
                max_message_size=settings.max_message_size,
                feature_flags=flags,
            )
        )

    # Keep-alive

    def _keep_alive(self) -> None:
        if not self._connected:
            self._broken(ProtocolError("no CONNECT within a keep-alive interval"))
            return
        self.closed_producers.clear()
        if self._keeps_alive:
            if not self._heard:
                self._broken(ProtocolError("silent for two keep-alive intervals"))
                return
            self._heard = False
            self.send(commands.ping())
        self._tick = self._loop.call_later(self.hub.settings.keep_alive_s, self._keep_alive)

    def probe(self, then: Callable[[], None]) -> None:
        """Call `then` once this client has shown that it lives, or was dropped for silence."""
        self._probes.append(then)
        if len(self._probes) == 1:
            self.send(commands.ping())
            self._loop.call_later(self.hub.settings.liveness_timeout_s, self._probe_timed_out)

    def _probe_timed_out(self) -> None:
        if self._probes and not self.closed:
            self.abort()

    def _probed(self) -> None:
        probes, self._probes = self._probes, []
        for then in probes:
            then()

    # Sending

    def send(self, command: pb.BaseCommand) -> None:
        """Queue a command."""
        self.send_raw(_NAMES[command.type], command.SerializeToString())

    def send_raw(self, name: str, command: bytes, body: bytes = b"") -> None:
        """Queue an encoded command, with what follows it."""
        hub = self.hub
        if self.closed:
            return
        if hub.faults is not None:
            send_faulty(self, hub.faults, name, command, body)
        else:
            self.queue(name, command, body)

    def queue(self, name: str, command: bytes, body: bytes) -> None:
        """Record and queue, past the faults."""
        if self.closed:
            return
        recorder = self.hub.recorder
        if recorder is not None:
            recorder.add(time.monotonic() * 1000, self.id, "out", name, command)
        size = len(command)
        head = (4 + size + len(body)).to_bytes(4, "big") + size.to_bytes(4, "big")
        self._out.append(head + command)
        if body:
            self._out.append(body)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._out and self._transport is not None:
            out, self._out = self._out, []
            self._transport.write(b"".join(out))

    def pause_writing(self) -> None:
        self.writable = False
        for attached in self.consumers.values():
            attached.consumer.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        for attached in self.consumers.values():
            attached.consumer.writable = True
            self.hub.pump.wake(attached.state, attached.subscription)
