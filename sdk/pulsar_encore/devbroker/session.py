"""The broker's side of one connection: handshake, keep-alive, faults, recording.

Commands are handled at once and in order. A protocol error closes the connection without an answer,
as on Pulsar; a refused command gets an answer. Output is collected and written once per pass.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Protocol

from google.protobuf.message import Message

from ..errors import EncoreError, ProtocolError
from ..wire import PROTOCOL_VERSION, base_command, pb
from ..wire.frames import FRAME_OVERHEAD, Frame, FrameDecoder, FrameError
from .attached import AttachedConsumer, AttachedProducer
from .broker_service import BrokerService
from .clock import Timer
from .fault_injection import inject, topic_of
from .handlers import HANDLERS
from .handlers.refusals import refuse
from .login import Login
from .rules.faults import Fault, FaultPlan
from .rules.refusal import Refusal
from .rules.topic_watchers import Watcher

log: logging.Logger = logging.getLogger("pulsar_encore.devbroker")

_NAMES: dict[int, str] = {number: name for name, number in pb.BaseCommand.Type.items()}


class ByteTransport(Protocol):
    """Sends bytes like `asyncio.Transport`."""

    def write(self, data: bytes) -> None:
        """Send bytes, in order."""

    def close(self) -> None:
        """Close after the written bytes were sent."""

    def abort(self) -> None:
        """Close at once."""


class Session:
    """The broker's side of one connection; a `Peer` to the handlers.

    Args:
        transport: Sends bytes. Its owner calls `receive` with incoming bytes and, at last, `lost`.
        certificate: Common name of the client's TLS certificate.
    """

    def __init__(
        self,
        service: BrokerService,
        transport: ByteTransport,
        *,
        url: str,
        address: str,
        certificate: str | None = None,
    ) -> None:
        self.id: int = next(service.connection_ids)
        self.url: str = url
        self.address: str = address
        self.consumers: dict[int, AttachedConsumer] = {}
        self.producers: dict[int, AttachedProducer] = {}
        self.closed_producers: set[int] = set()
        self.watchers: dict[int, Watcher] = {}
        self.closed: bool = False
        self.writable: bool = True
        self._service = service
        self._clock = service.clock
        self._transport = transport
        limit = service.settings.max_message_size + FRAME_OVERHEAD
        self._decoder = FrameDecoder(limit, skip_unknown=False)
        self._login = Login(service, certificate, self.send, self._close_on_error)
        self._connected = False
        self._keeps_alive = False
        self._received_any = True
        self._probes: list[Callable[[], None]] = []
        self._output: list[bytes] = []
        self._flushing = False
        self._tick: Timer | None = None
        self._await_tick()
        service.sessions.add(self)

    def lost(self) -> None:
        """End the session: the connection was closed."""
        if self.closed:
            return
        self.closed = True
        if self._tick is not None:
            self._tick.cancel()
        self._login.close()
        self._service.sessions.discard(self)
        for consumer in list(self.consumers.values()):
            self._service.detach(consumer)
        for producer in list(self.producers.values()):
            self._service.detach_producer(producer)
        self._run_probes()

    def close(self) -> None:
        self._flush()
        self.lost()
        self._transport.close()

    def abort(self) -> None:
        self.lost()
        self._transport.abort()

    def receive(self, data: bytes) -> None:
        """Handle received bytes, split anywhere."""
        self._received_any = True
        if self._probes:
            self._run_probes()
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
            self._close_on_error(broken)

    def _close_on_error(self, reason: EncoreError | str) -> None:
        log.warning("connection %d from %s closed: %s", self.id, self.address, reason)
        self.close()

    def _receive(self, frame: Frame) -> None:
        name = _NAMES[frame.command.type]
        service = self._service
        if service.records is not None:
            now_ms, body = self._clock.now_ms(), frame.body or b""
            service.records.add(now_ms, self.id, "in", name, frame.command, body)
        if service.faults is not None:
            self._receive_faulty(service.faults, name, frame)
        else:
            self._handle(name, frame)

    def _receive_faulty(self, plan: FaultPlan, name: str, frame: Frame) -> None:
        def answer_refused(fault: Fault) -> None:
            refusal = Refusal(fault.error, f"refused by the fault plan: {name}")
            self.send(refuse(frame.command, refusal))

        topic = topic_of(self, name, frame.command) if plan.by_topic else None
        faults = plan.step("in", name, topic)
        inject(self._service, self, faults, lambda: self._handle(name, frame), answer_refused)

    def _handle(self, name: str, frame: Frame) -> None:
        if self.closed:
            return
        try:
            handler = HANDLERS.get(name)
            if handler is not None and self._connected:
                handler(self._service, self, frame)
            else:
                self._handle_own(name, frame.command)
        except Exception as error:
            self._answer_error(name, frame, error)

    def retry(self, frame: Frame, handle: Callable[[], None]) -> None:
        if self.closed:
            return
        try:
            handle()
        except Exception as error:
            self._answer_error(_NAMES[frame.command.type], frame, error)

    def _answer_error(self, name: str, frame: Frame, error: Exception) -> None:
        """Answer a refused command; close the connection after any other error."""
        if isinstance(error, Refusal):
            self.send(refuse(frame.command, error))
        elif isinstance(error, EncoreError):
            self._close_on_error(error)
        else:
            log.error("connection %d: %s failed in the broker", self.id, name, exc_info=error)
            self.close()

    def _handle_own(self, name: str, command: pb.BaseCommand) -> None:
        if name == "PING":
            self.send(pb.CommandPong())
        elif name == "PONG":
            pass
        elif name == "CONNECT" and not self._connected:
            self._connect(command.connect)
        elif not self._connected:
            raise ProtocolError(f"{name} before CONNECT")
        elif name == "AUTH_RESPONSE":
            self._login.respond(command.authResponse)
        else:
            raise ProtocolError(f"unexpected {name}")

    def _connect(self, connect: pb.CommandConnect) -> None:
        settings = self._service.settings
        if not self._login.connect(connect):
            return
        self._connected = True
        self._keeps_alive = connect.protocol_version >= 1
        flags = pb.FeatureFlags(
            supports_get_partitioned_metadata_without_auto_creation=True,
            supports_topic_watchers=settings.topic_watchers,
            supports_topic_watcher_reconcile=settings.topic_watchers,
        )
        self.send(
            pb.CommandConnected(
                server_version="pulsar-encore development broker",
                protocol_version=min(connect.protocol_version, PROTOCOL_VERSION),
                max_message_size=settings.max_message_size,
                feature_flags=flags,
            )
        )

    def _await_tick(self) -> None:
        keep_alive_s = self._service.settings.keep_alive_s
        if math.isfinite(keep_alive_s):
            self._tick = self._clock.call_later(keep_alive_s, self._keep_alive)

    def _keep_alive(self) -> None:
        if not self._connected:
            self._close_on_error("no CONNECT within a keep-alive interval")
            return
        self.closed_producers.clear()
        if self._keeps_alive:
            if not self._received_any:
                self._close_on_error("silent for two keep-alive intervals")
                return
            self._received_any = False
            self.send(pb.CommandPing())
        self._await_tick()

    def probe(self, then: Callable[[], None]) -> None:
        self._probes.append(then)
        if len(self._probes) == 1:
            self.send(pb.CommandPing())
            timeout_s = self._service.settings.liveness_timeout_s
            self._clock.call_later(timeout_s, self._probe_timed_out)

    def _probe_timed_out(self) -> None:
        if self._probes and not self.closed:
            self.abort()

    def _run_probes(self) -> None:
        probes, self._probes = self._probes, []
        for then in probes:
            then()

    def send(self, command: Message) -> None:
        wrapped = base_command(command)
        self.send_raw(_NAMES[wrapped.type], wrapped.SerializeToString())

    def send_raw(self, name: str, command: bytes, body: bytes = b"") -> None:
        if self.closed:
            return
        faults = self._service.faults
        if faults is not None:
            self._send_faulty(faults, name, command, body)
        else:
            self._queue(name, command, body)

    def _send_faulty(self, plan: FaultPlan, name: str, command: bytes, body: bytes) -> None:
        topic = None
        if plan.by_topic:
            topic = topic_of(self, name, pb.BaseCommand.FromString(command))
        faults = plan.step("out", name, topic)
        inject(self._service, self, faults, lambda: self._queue(name, command, body))

    def _queue(self, name: str, command: bytes, body: bytes) -> None:
        if self.closed:
            return
        records = self._service.records
        if records is not None:
            records.add(self._clock.now_ms(), self.id, "out", name, command, body)
        size = len(command)
        head = (4 + size + len(body)).to_bytes(4, "big") + size.to_bytes(4, "big")
        self._output.append(head + command)
        if body:
            self._output.append(body)
        if not self._flushing:
            self._flushing = True
            self._clock.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._output:
            out, self._output = self._output, []
            self._transport.write(b"".join(out))

    def pause_writing(self) -> None:
        """Stop deliveries to a client that does not read."""
        self.writable = False
        for attached in self.consumers.values():
            attached.consumer.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        for attached in self.consumers.values():
            attached.consumer.writable = True
            self._service.scheduler.wake(attached.state, attached.subscription)
