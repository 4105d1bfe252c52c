"""The client's side of one connection, without a socket: handshake, keep-alive, requests, dispatch.

A violation of the protocol ends the connection; a broken entry does not. At the end, all requests
fail first. Then each attached handler is notified exactly once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from ....errors import (
    AuthenticationError,
    ConnectError,
    NotConnected,
    PulsarException,
    TransportTimeout,
)
from ....errors import LookupError as TopicLookupError
from ....wire import NO_REQUEST, PROTOCOL_VERSION, pb
from ....wire.ack_set_words import from_words
from ....wire.entries import text
from ....wire.frames import (
    DEFAULT_MAX_MESSAGE_SIZE,
    FRAME_OVERHEAD,
    FrameError,
    decode_command,
    encode,
)
from ..client_settings import CLIENT_VERSION
from .addresses import broker_address
from .fast_path import MessageTemplate
from .handlers import ConsumerHandler, ProducerHandler, WatchHandler
from .requests import ANSWERS, Requests, refusal

LOG_NAME: Final = "pulsar_encore.connection"

_U32: Final = Struct(">I")
_SIZES: Final = Struct(">II")
_ENTRY_METADATA_MAGIC: Final = b"\x0e\x02"
_MAX_SINGLE_FRAMES: Final = 64  # frames
_Type = pb.BaseCommand
_BUSY_BYTES: Final = 65_536  # received between two ticks: the broker is sending
# Written at once, because other tasks may keep the loop busy.
_WRITE_NOW_BYTES: Final = 64 * 1024
#: CPU time in s for a read in one step of the loop. A read of 256 KiB holds 3,700 small messages,
#: and a redelivered one takes 6 us.
PART_S: Final = 0.004
# Frames and bytes before the clock is read.
PART_FRAMES: Final = 64
PART_BYTES: Final = 32 * 1024
# Plain messages of one run before the clock is read. Each run costs 10 us in addition, so runs of
# large messages are not cut at `PART_BYTES`.
PART_RUN: Final = 400
# Time in s after which entries are handed over within a read, because the hand-over takes up to six
# times as long as reading. One hand-over for a shorter read is a tenth cheaper.
_HAND_OVER_S: Final = 0.0005
# After a hand-over that took so many times as long as reading, the parts are shorter. Messages that
# a reconnect or a rewind repeats are checked one by one, and 400 of them took up to 7 ms.
_SLOW_HAND_OVER: Final = 1.5
_SLOW_CUT: Final = 4
_RECEIPTS_PER_FRAME: Final = 16  # messages of a receipt that count as one frame
_SHORT_READ_BYTES: Final = 4_096  # the clock is not read for shorter reads: about 0.4 ms
_NO_TEMPLATE: Final = MessageTemplate(b"\xff\xff\xff\xff", 0, b"")


class ByteTransport(Protocol):
    """The output of a session; `asyncio.Transport` is one."""

    def write(self, data: bytes) -> None:
        """Send bytes, in order."""

    def close(self) -> None:
        """End the connection once the written bytes are sent."""

    def abort(self) -> None:
        """End the connection at once."""


class Session:
    """The client's side of one connection.

    Args:
        transport: The output. Its `pause_reading` and `resume_reading`, if it has them, are called
            while a long read is handled.
        renew: Called at an AUTH_CHALLENGE. It must lead to a call of `authenticate`.
        tls: True if the client uses TLS. Brokers name one address for TLS and one without.

    Attributes:
        ready: Done when the broker has accepted the connection; fails otherwise.
        gone: Done when the connection is closed, a moment after `close`.
        max_message_size: Largest payload that the broker accepts, in bytes.
        drop: Closes the socket without the event loop, for `sever`.
        writable: False while the socket's buffer is full.
        credentials_digest: Of the last credentials that the broker was shown; b"" before.
    """

    def __init__(
        self,
        transport: ByteTransport,
        *,
        loop: asyncio.AbstractEventLoop,
        request_ids: Iterator[int],
        keep_alive_s: float,
        peer: str,
        renew: Callable[[Session], None],
        on_end: Callable[[Session], None],
        tls: bool = False,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._log = logger_of(LOG_NAME)
        self.peer: str = peer
        self.ready: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE
        self.features: pb.FeatureFlags = pb.FeatureFlags()
        self.drop: Callable[[], None] = _nothing
        self.writable: bool = True
        self.closed: bool = False
        self.received_any: bool = False
        self.credentials_digest: bytes = b""
        self.requests: Requests = Requests(loop, request_ids)
        self._transport = transport
        self._pause: Callable[[], object] = getattr(transport, "pause_reading", _nothing)
        self._resume: Callable[[], object] = getattr(transport, "resume_reading", _nothing)
        self._loop = loop
        # CPU time: a thread that waits for a processor does not use up its step. Under virtual time
        # the loop's clock decides.
        common = type(loop).time is asyncio.BaseEventLoop.time
        self._clock: Callable[[], float] = time.thread_time if common else loop.time
        self._cut = 1
        self._keep_alive_s = keep_alive_s
        self._renew = renew
        self._on_end = on_end
        self._tls = tls
        self._anonymous = True
        self._proxied = False
        # Of a frame, without its size field.
        self._max_total = DEFAULT_MAX_MESSAGE_SIZE + FRAME_OVERHEAD - 4
        self._rest = b""
        # An incomplete frame, and how many bytes it lacks. A list of reads could take fifty times
        # the memory.
        self._partial = bytearray()
        self._missing = 0
        self._deferred: list[bytes] = []  # read, for a later step of the loop
        self._deferred_handle: asyncio.Handle | None = None
        self._receipts = 0  # messages with a receipt since the clock was read
        # The argument of `lost`, until `_deferred` is handled.
        self._lost: tuple[Exception | None] | None = None
        self._consumers: dict[int, ConsumerHandler] = {}
        self._producers: dict[int, ProducerHandler] = {}
        self._with_entries: dict[ConsumerHandler, None] = {}  # from this read
        self._template = _NO_TEMPLATE
        self._template_values: tuple[ConsumerHandler, int, int, int] | None = None
        self._out: list[bytes] = []
        self._unwritten = 0
        self._flushing = False
        self._answered = True  # a PING, since the last tick
        self._received_bytes = 0  # since the last tick
        self._was_writable = True  # at some time since the last tick
        self._tick: asyncio.TimerHandle | None = None
        self._await_tick()
        self._watchers: dict[int, WatchHandler] = {}
        self._command_handlers: dict[int, Callable[[pb.BaseCommand], None]] = {
            _Type.CONNECTED: self._connected,
            _Type.PING: self._ping,
            _Type.PONG: self._pong,
            _Type.SEND_ERROR: self._send_error,
            _Type.CLOSE_PRODUCER: self._close_producer,
            _Type.CLOSE_CONSUMER: self._close_consumer,
            _Type.REACHED_END_OF_TOPIC: self._end_of_topic,
            _Type.ACTIVE_CONSUMER_CHANGE: self._active_change,
            _Type.AUTH_CHALLENGE: self._challenge,
            _Type.WATCH_TOPIC_UPDATE: self._topics_changed,
            _Type.TOPIC_MIGRATED: self._migrated,
        }

    def __repr__(self) -> str:
        state = "closed" if self.closed else "ready" if self.ready.done() else "connecting"
        return f"<Session with {self.peer}, {state}>"

    # Attaching

    def attach_consumer(self, consumer_id: int, handler: ConsumerHandler) -> None:
        self._check_open()
        self._consumers[consumer_id] = handler

    def detach_consumer(self, consumer_id: int) -> None:
        self._consumers.pop(consumer_id, None)
        self.forget_template()

    def attach_producer(self, producer_id: int, handler: ProducerHandler) -> None:
        self._check_open()
        self._producers[producer_id] = handler

    def detach_producer(self, producer_id: int) -> None:
        self._producers.pop(producer_id, None)

    def attach_watcher(self, watcher_id: int, handler: WatchHandler) -> None:
        self._check_open()
        self._watchers[watcher_id] = handler

    def detach_watcher(self, watcher_id: int) -> None:
        self._watchers.pop(watcher_id, None)

    def holds_consumer(self, consumer_id: int) -> bool:
        """Return True if a consumer is attached: not detached, closed by the broker, or lost."""
        return consumer_id in self._consumers

    @property
    def idle(self) -> bool:
        return not (self._consumers or self._producers or self._watchers or self.requests)

    def forget_template(self) -> None:
        self._template, self._template_values = _NO_TEMPLATE, None

    def _check_open(self) -> None:
        if self.closed:
            raise NotConnected(f"the connection to {self.peer} has ended")

    # Sending

    def write(self, data: bytes) -> None:
        """Queue encoded frames, to be written once per pass of the loop."""
        self._out.append(data)
        self._unwritten += len(data)
        if self._unwritten >= _WRITE_NOW_BYTES:
            self._write_out()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def send(self, command: Message) -> None:
        self.write(encode(command))

    def _flush(self) -> None:
        self._flushing = False
        self._write_out()

    def _write_out(self) -> None:
        out, self._out = self._out, []
        self._unwritten = 0
        if out and not self.closed:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def request(
        self, make: Callable[[int], Message], purpose: str, timeout_s: float | None
    ) -> asyncio.Future[Any]:
        """Send a request, and return a future for the body of the answer.

        The future fails with the error for the broker's refusal, with `TransportTimeout`, or with
        `NotConnected` if the connection ends. Without `timeout_s` there is no timeout.
        """
        self._check_open()
        request_id = self.requests.new_id()
        self.send(make(request_id))
        return self.requests.begin(request_id, purpose, timeout_s)

    def connect(self, *, method: str, data: bytes, proxy_to: str | None) -> None:
        """Send CONNECT. `ready` gives the result. `proxy_to` is the ``host:port`` of a broker
        behind a proxy."""
        flags = pb.FeatureFlags(
            supports_auth_refresh=True,
            supports_broker_entry_metadata=True,
            supports_topic_watchers=True,
            supports_get_partitioned_metadata_without_auto_creation=True,
        )
        self._proxied = proxy_to is not None
        self._anonymous = plain = method == "none"
        self.send(
            pb.CommandConnect(
                client_version=CLIENT_VERSION,
                auth_method_name=None if plain else method,
                auth_data=None if plain else data,
                proxy_to_broker_url=proxy_to,
                feature_flags=flags,
                protocol_version=PROTOCOL_VERSION,
            )
        )

    def authenticate(self, *, method: str, data: bytes) -> None:
        """Answer a challenge. Success has no answer."""
        if not self.closed:
            self.send(
                pb.CommandAuthResponse(
                    client_version=CLIENT_VERSION,
                    response=pb.AuthData(auth_method_name=method, auth_data=data),
                    protocol_version=PROTOCOL_VERSION,
                )
            )

    def _await_tick(self) -> None:
        if math.isfinite(self._keep_alive_s):
            self._tick = self._loop.call_later(self._keep_alive_s, self._keep_alive)

    def _keep_alive(self) -> None:
        # Received bytes alone prove nothing: the client never parses bytes after a corrupted size,
        # and its output may be lost. While much arrives, the PONG may be queued behind it.
        if not self._answered and self._received_bytes < _BUSY_BYTES:
            silent = f"{self.peer} has not answered for {2 * self._keep_alive_s:g} s"
            self.fail(TransportTimeout(silent))
            return
        if not (self.writable or self._was_writable):
            # The output would grow without limit: producers pause, but acks go on.
            self.fail(TransportTimeout(f"{self.peer} reads nothing"))
            return
        self._answered, self._received_bytes, self._was_writable = False, 0, self.writable
        self.send(pb.CommandPing())
        self._await_tick()

    # The end

    def close(self) -> None:
        if not self.closed:
            if self._out:
                self._flush()
            self._end(NotConnected(f"the connection to {self.peer} was closed"))
            self._transport.close()

    def fail(self, error: PulsarException) -> None:
        if not self.closed:
            self._log.warning("the connection to %s ends: %s", self.peer, error)
            self._end(error)
            self._transport.abort()

    def sever(self) -> None:
        """Close the socket of a connection with a closed event loop. Handlers are not called."""
        if not self.closed:
            self.closed = True
            self._consumers.clear()
            self._producers.clear()
            self._watchers.clear()
            self.drop()

    def lost(self, error: Exception | None) -> None:
        """Note the end of the connection. Bytes that were read before are handled first."""
        if self._deferred_handle is not None:
            self._lost = (error,)
            return
        if not self.closed:
            self._log.warning(
                "the connection to %s was lost%s", self.peer, f": {error}" if error else ""
            )
        self._end(error)
        if not self.gone.done():
            self.gone.set_result(None)

    def _end(self, error: Exception | None) -> None:
        if self.closed:
            return
        self.closed = True
        if self._tick is not None:
            self._tick.cancel()
        self._out.clear()
        self._rest = b""
        self._partial = bytearray()
        self._deferred.clear()
        self.forget_template()
        cause = f"the connection to {self.peer} was lost" + (f": {error}" if error else "")
        reason = error if isinstance(error, PulsarException) else NotConnected(cause)
        if not self.ready.done():
            self.ready.set_exception(reason)
            self.ready.exception()  # marks it as retrieved
        self.requests.fail(cause)
        handlers: list[ConsumerHandler | ProducerHandler | WatchHandler] = [
            *self._consumers.values(),
            *self._producers.values(),
            *self._watchers.values(),
        ]
        self._consumers, self._producers, self._watchers = {}, {}, {}
        for handler in handlers:
            handler.on_lost(reason)
        self._on_end(self)

    def pause_writing(self) -> None:
        self._set_writable(False)

    def resume_writing(self) -> None:
        self._set_writable(True)

    def _set_writable(self, writable: bool) -> None:
        self.writable = writable
        self._was_writable = True
        for handler in list(self._producers.values()):
            handler.on_writable(writable)

    # Receiving

    def receive(self, data: bytes) -> None:
        """Handle bytes from the broker, cut anywhere.

        A read that takes longer than `PART_S` is handled in several steps of the loop, in order.
        Nothing more is read meanwhile.
        """
        if self.closed:
            return
        self.received_any = True
        self._received_bytes += len(data)
        if self._deferred_handle is not None:
            self._deferred.append(data)  # read before the pause
            return
        if self._handle(data):
            self._pause()

    def _handle(self, data: bytes) -> bool:
        """Handle the next bytes; return True if some wait for a later step."""
        if self._missing:
            self._partial += data
            self._missing -= len(data)
            if self._missing > 0:
                return False  # decoded when the frame is complete
            data = bytes(self._partial)
            self._partial = bytearray()
        elif self._rest:
            data = self._rest + data
        self._missing, self._rest = 0, b""
        try:
            at, is_over = self._frames(data)
        except FrameError as error:
            self._hand_over()
            self.fail(error if self.ready.done() else _unexpected(self.peer, data, error))
            return False
        self._hand_over()
        if at >= len(data) or self.closed:
            return False
        if is_over:
            self._keep(data, at)
            return False
        self._deferred.insert(0, data[at:])
        self._deferred_handle = self._loop.call_soon(self._continue)
        return True

    def _continue(self) -> None:
        self._deferred_handle = None
        deferred, self._deferred = self._deferred, []
        if deferred and self._handle(deferred[0] if len(deferred) == 1 else b"".join(deferred)):
            return
        if self._lost is not None:
            self.lost(self._lost[0])
        elif not self.closed:
            self._resume()

    def _keep(self, data: bytes, at: int) -> None:
        left = len(data) - at
        rest = data[at:]
        if left < 4:
            self._rest = rest
            return
        self._partial += rest
        self._missing = _U32.unpack_from(rest)[0] + 4 - left

    def _hand_over(self) -> None:
        if self._with_entries:
            with_entries, self._with_entries = self._with_entries, {}
            for handler in with_entries:
                handler.on_entries_end()

    def _frames(self, data: bytes) -> tuple[int, bool]:
        """Handle the complete frames of `data`, until the time of this step is used up.

        Return the start of the next frame, and whether all complete frames were handled.
        """
        # The hot path. A frame that matches the template is not decoded: the consumer takes a run
        # of plain messages at once (`_take_run`), or only the entry id is read. `_frame` decodes
        # all other frames, and may learn a new template.
        at, size, most = 0, len(data), self._max_total
        clock = self._clock
        since = clock() if size > _SHORT_READ_BYTES else math.inf
        ends = since + PART_S
        cut = self._cut
        left, stop = PART_FRAMES, PART_BYTES // cut
        while size - at >= 4:
            if left <= 0 or at >= stop:
                read = clock()
                if read >= since + _HAND_OVER_S / cut:
                    self._hand_over()
                    if self.closed:
                        return size, True
                    now = clock()
                    is_slow = now - read > _SLOW_HAND_OVER * (read - since)
                    self._cut = cut = _SLOW_CUT if is_slow else 1
                    # The next part takes about as long as this one did.
                    if now + (now - since) / 2 >= ends:
                        return at, False
                    since = now
                left, stop = PART_FRAMES, at + PART_BYTES // cut
            left -= 1
            (total,) = _U32.unpack_from(data, at)
            if not 4 <= total <= most:
                raise FrameError(f"a frame of {total + 4} bytes, where 8 to {most + 4} may be")
            end = at + 4 + total
            if end > size:
                break
            template = self._template
            if data.startswith(template.prefix, at + 4):
                if template.single_frames:
                    template.single_frames -= 1
                else:
                    behind = max(stop, at + PART_RUN // cut * (total + 4))
                    taken = self._take_run(template, data, at, most, behind)
                    if taken > at:
                        at = taken
                        continue
                start = at + 4 + len(template.prefix)
                behind = start + template.width
                if data.startswith(template.suffix, behind):
                    entry = template.read(data, start)
                    if entry >= 0:
                        values: Any = self._template_values
                        handler, ledger, count, epoch = values
                        self._with_entries[handler] = None
                        body = behind + len(template.suffix) - 2
                        handler.on_entry(ledger, entry, count, -1, epoch, data, body, end)
                        at = end
                        continue
            self._frame(data, at + 4, end)
            if self._receipts:  # the receipt of a batch takes as long as several frames
                left -= self._receipts // _RECEIPTS_PER_FRAME
                self._receipts = 0
                if since == math.inf:  # also for a short read
                    since = clock()
                    ends = since + PART_S
            if self.closed:
                return size, True
            most = self._max_total
            at = end
        return at, True

    def _take_run(
        self, template: MessageTemplate, data: bytes, at: int, most: int, stop: int
    ) -> int:
        """Let the consumer take plain messages that begin before `stop`; return the next frame's
        start."""
        values: Any = self._template_values
        handler, ledger, count, epoch = values
        taken: int = at
        if not count:
            taken = handler.on_run(template, ledger, epoch, data, at, most, stop)
        if taken > at:
            self._with_entries[handler] = None
            template.next_single_frames = 1
        else:
            template.single_frames = template.next_single_frames
            template.next_single_frames = min(_MAX_SINGLE_FRAMES, 2 * template.next_single_frames)
        return taken

    def _frame(self, data: bytes, at: int, end: int) -> None:
        (size,) = _U32.unpack_from(data, at)
        start = at + 4
        if size > end - start:
            raise FrameError(f"a command of {size} bytes in a frame of {end - at}")
        command = decode_command(data[start : start + size], True)
        if command is None:
            return  # a command of a newer broker
        if command.type == _Type.MESSAGE:
            self._message(command.message, data, start, start + size, end)
        else:
            self._command(command)

    def _message(
        self, message: pb.CommandMessage, data: bytes, start: int, at: int, end: int
    ) -> None:
        handler = self._consumers.get(message.consumer_id)
        if handler is None:
            return  # detached: the broker redelivers the message
        if data.startswith(_ENTRY_METADATA_MAGIC, at, end):
            if end - at < 6:
                raise FrameError("a frame ends inside the size of its broker entry metadata")
            at += 6 + _U32.unpack_from(data, at + 2)[0]
            if at > end:
                raise FrameError("broker entry metadata beyond its frame")
        elif not message.ack_set:
            self._learn_template(handler, message, data[start:at])
        if at == end:
            raise FrameError("MESSAGE without metadata and payload")
        self._with_entries[handler] = None
        place = message.message_id
        handler.on_entry(
            place.ledgerId,
            place.entryId,
            message.redelivery_count,
            from_words(message.ack_set) if message.ack_set else -1,
            message.consumer_epoch,
            data,
            at,
            end,
        )

    def _learn_template(
        self, handler: ConsumerHandler, message: pb.CommandMessage, command: bytes
    ) -> None:
        template = MessageTemplate.of(command)
        if template is not None:
            self._template = template
            self._template_values = (
                handler,
                message.message_id.ledgerId,
                message.redelivery_count,
                message.consumer_epoch,
            )

    def _command(self, command: pb.BaseCommand) -> None:
        kind = command.type
        answer = ANSWERS.get(kind)
        if kind == _Type.SEND_RECEIPT:
            producer = self._producers.get(command.send_receipt.producer_id)
            if producer is not None:
                self._receipts += producer.on_receipt(command.send_receipt)
        elif kind == _Type.ERROR and command.error.request_id == NO_REQUEST:
            self.fail(_connection_error(self.peer, command.error, plain=self._anonymous))
        elif answer is not None:
            self.requests.complete(kind, getattr(command, answer))
        else:
            step = self._command_handlers.get(kind)
            if step is None:
                raise FrameError(f"{_Type.Type.Name(kind)} is not for a client")
            step(command)

    def _connected(self, command: pb.BaseCommand) -> None:
        connected = command.connected
        if connected.HasField("max_message_size") and connected.max_message_size > 0:
            self.max_message_size = connected.max_message_size
            self._max_total = self.max_message_size + FRAME_OVERHEAD - 4
        self.features = connected.feature_flags
        if not self.ready.done():
            self.ready.set_result(None)

    def _ping(self, command: pb.BaseCommand) -> None:
        self.send(pb.CommandPong())

    def _pong(self, command: pb.BaseCommand) -> None:
        self._answered = True

    def _send_error(self, command: pb.BaseCommand) -> None:
        producer = self._producers.get(command.send_error.producer_id)
        if producer is not None:
            producer.on_send_error(command.send_error)

    def _close_producer(self, command: pb.BaseCommand) -> None:
        close = command.close_producer
        producer = self._producers.pop(close.producer_id, None)
        if producer is not None:
            producer.on_closed_by_broker(self._assigned_address(close, "CLOSE_PRODUCER"))

    def _close_consumer(self, command: pb.BaseCommand) -> None:
        close = command.close_consumer
        consumer = self._consumers.pop(close.consumer_id, None)
        if consumer is not None:
            self.forget_template()
            self._hand_over()  # entries from before the command
            consumer.on_closed_by_broker(self._assigned_address(close, "CLOSE_CONSUMER"))

    def _end_of_topic(self, command: pb.BaseCommand) -> None:
        consumer = self._consumers.get(command.reachedEndOfTopic.consumer_id)
        if consumer is not None:
            self._hand_over()
            consumer.on_end_of_topic()

    def _active_change(self, command: pb.BaseCommand) -> None:
        change = command.active_consumer_change
        consumer = self._consumers.get(change.consumer_id)
        if consumer is not None:
            consumer.on_active_change(change.is_active)

    def _challenge(self, command: pb.BaseCommand) -> None:
        self._renew(self)

    def _topics_changed(self, command: pb.BaseCommand) -> None:
        handler = self._watchers.get(command.watchTopicUpdate.watcher_id)
        if handler is not None:
            handler.on_topics_changed(command.watchTopicUpdate)

    def _migrated(self, command: pb.BaseCommand) -> None:
        """Log TOPIC_MIGRATED (PIP-188). CLOSE_CONSUMER or CLOSE_PRODUCER comes next, and then a
        lookup."""
        moved = command.topicMigrated
        url = self._address_in(moved.brokerServiceUrl, moved.brokerServiceUrlTls, "TOPIC_MIGRATED")
        if url is not None:
            self._log.warning(
                "%s says that a topic has migrated to %s, which is not followed: if its consumers "
                "and producers do not come back, make a client with that service_url",
                self.peer,
                url,
            )

    def _assigned_address(self, close: Any, purpose: str) -> str | None:
        """Return the broker that serves the topic now (extensible load manager), or None."""
        return self._address_in(
            close.assignedBrokerServiceUrl, close.assignedBrokerServiceUrlTls, purpose
        )

    def _address_in(self, plain: str, by_tls: str, purpose: str) -> str | None:
        """Return the address in a command if it fits the client; else a lookup must follow."""
        url = by_tls if self._tls else plain
        if not url and (self._proxied or not (plain or by_tls)):
            return None
        try:
            address = broker_address(
                text(url),
                text(plain),
                asked=self.peer,
                secure=self._tls,
                purpose=purpose,
                proxied=self._proxied,
            )
        except TopicLookupError as error:
            self._log.warning("ignored: %s", error)
            return None
        return str(address)


def _nothing() -> None:
    """Do nothing: there is no socket, or the transport cannot pause."""


def _connection_error(peer: str, error: pb.CommandError, *, plain: bool) -> PulsarException:
    refused = refusal(error.error, error.message, f"connect to {peer}")
    if plain and isinstance(refused, AuthenticationError):
        return AuthenticationError(
            f"connect to {peer}: this client has no authentication, and the broker asks for it: "
            f"give authentication= (broker: {error.message})"
        )
    return refused


def _unexpected(peer: str, data: bytes, error: FrameError) -> PulsarException:
    if data.startswith(b"HTTP/"):
        return ConnectError(
            f"{peer} answers HTTP: give service_url the port of the binary protocol (6650, with "
            "TLS 6651), not the web service's (8080)",
            retryable=False,
        )
    if data[:2] in (b"\x15\x03", b"\x16\x03"):
        return ConnectError(f"{peer} speaks TLS: use pulsar+ssl:// in service_url", retryable=False)
    return error
