"""A subscription on the stock client: the nearest it allows to the seam.

Owns `StockConsumer`. By stock-client notes section 13: acks go through the native ids of the last
delivery (an id rebuilt from parts acks its whole batch), and are refused while disconnected, when
the native client would lose them; redelivery goes through the native nack timer at its floor, fed
in bursts that are far enough apart not to starve it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakMethod, finalize

import _pulsar
import pulsar

from ...closing import CloseOnce
from ...errors import EncoreError, TransportError
from ...ids import MessageId
from ...options import ConsumerOptions
from ..base import AckPlan, Capabilities, Delivery, Sink
from .deliveries import Grouper, Sources, partition_name
from .native_ids import to_native
from .pump import Pump
from .results import Calls, Mailbox

logger = logging.getLogger(__name__)

# The native client holds an id for at least 100 ms, and looks every 33 ms: with this lead nothing
# is ever early, and late by little. Each hand-over restarts its timer; two bursts need more than a
# look between them, or it never comes to one.
_LEAD_MS: Final = 100
_BURST_GAP_S: Final = 0.050
_BURST: Final = 10_000  # ids a burst: 3 us each, on the loop
_NATIVE_GROUP_S: Final = 0.2  # the native client groups acks for 100 ms; and time to send them
_CLOSE_S: Final = 5.0
_PAYLOAD_S: Final = 1.0  # an entry unfinished for longer keeps its ids, not its payload
_MAX_ORIGINALS: Final = 50_000

STOCK: Final = Capabilities(
    name="stock",
    redeliver_lead_ms=_LEAD_MS,
    ack_unseen_index=False,
    ack_sets_delivered=False,
    ordered_rewind=False,
    rewind_one_source=False,
    zero_queue=False,
    connection_events=False,
    binary_keys=False,
)


class _Originals:
    """What acks parts of an unfinished batch, or a chunked message: natives or their ids."""

    __slots__ = ("_natives", "chunked", "kept_at", "sent")

    def __init__(self, size: int, chunked: bool, now: float) -> None:
        self._natives: list[Any] = [None] * size
        self.sent = 0
        self.chunked = chunked
        self.kept_at = now

    def put(self, indexes: Sequence[int], natives: Sequence[Any]) -> None:
        if len(natives) == len(self._natives):
            self._natives = list(natives)
            self.sent = 0
            return
        for index, native in zip(indexes, natives, strict=True):
            self._natives[index] = native
            self.sent &= ~(1 << index)

    def id_of(self, index: int) -> _pulsar.MessageId | None:
        native = self._natives[index]
        return native.message_id() if isinstance(native, _pulsar.Message) else native

    def compact(self) -> None:
        """Keep the ids only, so that a long wait does not pin the payload."""
        self._natives = [self.id_of(index) for index in range(len(self._natives))]

    def __len__(self) -> int:
        return len(self._natives)


class StockConsumer:
    """`ConsumerLink` over a native consumer, subscribed with the options of `consumer_config`."""

    capabilities = STOCK

    def __init__(self, native: _pulsar.Consumer, options: ConsumerOptions) -> None:
        self._native = native
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._mailbox = Mailbox(self._loop)
        self._calls = Calls()
        self._sources = Sources(options.topics)
        self._many = options.pattern is not None or len(options.topics) > 1
        one_queue = options.shared and not self._many
        self._grouper = Grouper(self._sources, one_queue=one_queue)
        self._originals: dict[tuple[int, int, int], _Originals] = {}
        self._fresh: deque[tuple[tuple[int, int, int], _Originals]] = deque()
        self._due: list[tuple[int, int, int]] = []
        self._last_burst = 0.0
        self._last_ack = -_NATIVE_GROUP_S
        self._rewinding = 0
        self._seeking = False
        self._leaving = False  # the subscription is being deleted, and the native end with it
        self._burst_timer: asyncio.TimerHandle | None = None
        self._sink: Sink | None = None
        self._closed = False
        self._close_once = CloseOnce(self._close)
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._pump = Pump(
            native,
            self._mailbox,
            max(1, options.receiver_queue_size // 2),
            self._grouper.group,
            _weakly(self._arrived),
            _weakly(self._connection),
            _weakly(self._pump_ended),
        )
        # Its thread must not keep what nobody has any more; nor go on without it.
        finalize(self, self._pump.forsake).atexit = False

    @property
    def topic(self) -> str:
        return str(self._native.topic())

    @property
    def subscription_name(self) -> str:
        return self._options.subscription_name

    @property
    def consumer_name(self) -> str:
        return str(self._native.consumer_name())

    def is_connected(self) -> bool:
        return not self._closed and bool(self._native.is_connected())

    def topic_of(self, source: int) -> tuple[str, int]:
        return self._sources.name(source)

    def source_of(self, topic: str, partition: int) -> int | None:
        return self._sources.find(topic, partition)

    # Deliveries

    def start(self, sink: Sink) -> None:
        self._sink = sink
        self._pump.start()

    def consumed(self, source: int, messages: int) -> None:
        self._pump.taken(messages)

    def pause(self) -> None:
        self._pump.pause(True)

    def resume(self) -> None:
        self._pump.pause(False)

    def _arrived(self, deliveries: list[Delivery]) -> None:
        if self._sink is None or self._closed:
            return
        if self._rewinding:
            # From before the rewind, which brings it again, in order.
            self._pump.taken(sum(len(delivery.messages) for delivery in deliveries))
            return
        now = self._loop.time()
        for delivery in deliveries:
            if delivery.batch_size > 1 or delivery.first_chunk is not None:
                self._keep_originals(delivery, now)
        self._compact(now)
        self._sink.on_deliveries(deliveries)

    def _keep_originals(self, delivery: Delivery, now: float) -> None:
        key = (delivery.source, delivery.ledger, delivery.entry)
        kept = self._originals.get(key)
        if kept is None:
            size, chunked = max(1, delivery.batch_size), delivery.first_chunk is not None
            kept = self._originals[key] = _Originals(size, chunked, now)
            self._fresh.append((key, kept))
            if len(self._originals) > _MAX_ORIGINALS:
                del self._originals[next(iter(self._originals))]
        kept.put(delivery.indexes, delivery.messages)

    def _compact(self, now: float) -> None:
        fresh = self._fresh
        while fresh and fresh[0][1].kept_at < now - _PAYLOAD_S:
            key, kept = fresh.popleft()
            if self._originals.get(key) is kept:
                kept.compact()

    def _connection(self, connected: bool) -> None:
        # A seek closes and reopens the subscription; what was acked before must not be acked again.
        if self._sink is None or self._closed or self._seeking:
            return
        if connected:
            self._sink.on_connected()
        else:
            self._sink.on_disconnected()

    def _pump_ended(self, error: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        if self._closed or self._leaving or self._sink is None:
            return
        cause = f": {error!r}" if error is not None else ""
        failed = TransportError(f"the native consumer stopped delivering{cause}")
        failed.__cause__ = error
        self._sink.on_failed(failed)

    # Acks

    def ack(self, plan: AckPlan) -> None:
        if self._seeking or not self.is_connected():
            raise TransportError("not connected", result="NotConnected", retryable=True)
        self._last_ack = self._loop.time()
        self._pump.watch()
        if plan.cumulative is not None:
            self._ack_cumulative(plan.source, *plan.cumulative)
        for ledger, entry in plan.entries:
            kept = self._originals.pop((plan.source, ledger, entry), None)
            if kept is not None and kept.chunked:
                self._acknowledge(kept.id_of(0))
            else:
                self._acknowledge(self._native_id(plan.source, ledger, entry))
        for ledger, entry, _, mask in plan.partial:
            self._ack_part(plan.source, ledger, entry, mask)

    def _acknowledge(self, native_id: _pulsar.MessageId, *, cumulative: bool = False) -> None:
        native = self._native
        try:
            (native.acknowledge_cumulative if cumulative else native.acknowledge)(native_id)
        except (pulsar.AlreadyClosed, pulsar.NotConnected) as error:
            raise TransportError("not connected", result="NotConnected", retryable=True) from error
        except Exception as error:
            # An id of a topic the consumer does not read; trying again would block the others.
            logger.warning("the native client refused the ack of %s: %s", native_id, error)

    def _ack_part(self, source: int, ledger: int, entry: int, mask: int) -> None:
        kept = self._originals.get((source, ledger, entry))
        if kept is None:
            return  # from before a seek: what is unacked there comes again
        for index in range(len(kept)):
            bit = 1 << index
            if not (mask | kept.sent) & bit:
                native_id = kept.id_of(index)
                if native_id is not None:
                    self._acknowledge(native_id)
                    kept.sent |= bit

    def _ack_cumulative(self, source: int, ledger: int, entry: int, size: int, mask: int) -> None:
        native_id = self._native_id(source, ledger, entry)
        kept = self._originals.get((source, ledger, entry))
        if mask != -1:
            last = (mask & -mask).bit_length() - 2
            native_id = kept.id_of(last) if kept is not None else None
            if native_id is None:
                return
        elif kept is not None and kept.chunked:
            native_id = kept.id_of(0)
        self._acknowledge(native_id, cumulative=True)
        upto = (ledger, entry) if mask == -1 else (ledger, entry - 1)
        for key in [k for k in self._originals if k[0] == source and k[1:] <= upto]:
            del self._originals[key]

    def _native_id(self, source: int, ledger: int, entry: int) -> _pulsar.MessageId:
        topic, partition = self._sources.name(source)
        native_id = _pulsar.MessageId(partition, ledger, entry, -1)
        if self._many or partition >= 0:
            native_id.topic_name(topic)
        return native_id

    # Redelivery

    def redeliver(self, source: int, groups: Sequence[tuple[int, Sequence[int]]]) -> None:
        for ledger, entries in groups:
            self._due.extend((source, ledger, entry) for entry in entries)
        self._schedule_burst()

    def _schedule_burst(self) -> None:
        if self._burst_timer is not None or not self._due:
            return
        wait = self._last_burst + _BURST_GAP_S - self._loop.time()
        if wait <= 0:
            self._send_burst()
        else:
            self._burst_timer = self._loop.call_later(wait, self._send_burst)

    def _send_burst(self) -> None:
        self._burst_timer = None
        if self._closed:
            return
        burst, self._due = self._due[:_BURST], self._due[_BURST:]
        for source, ledger, entry in burst:
            self._native.negative_acknowledge(self._native_id(source, ledger, entry))
        self._last_burst = self._loop.time()
        self._schedule_burst()

    def redeliver_all(self, source: int | None = None) -> None:
        self._due.clear()
        self._rewinding += 1
        self._pump.call(self._rewind)

    def _rewind(self) -> None:
        """On the pump's thread: empty the native queue first, it all comes again in order."""
        self._pump.drain(self._options.receiver_queue_size)
        self._native.redeliver_unacknowledged_messages()
        self._mailbox.post(self._rewound)

    def _rewound(self) -> None:
        self._rewinding -= 1

    # Position and life

    async def seek(self, position: MessageId | int) -> None:
        target = position if isinstance(position, int) else to_native(position)
        parked = self._loop.create_future()
        self._seeking = True
        self._pump.pause(True)
        self._pump.call(lambda: self._mailbox.post(_set, parked))
        try:
            await asyncio.wait((parked, self._ended), return_when=asyncio.FIRST_COMPLETED)
            # An ack that reached the broker after the seek would ack what the seek brings back.
            await asyncio.sleep(self._last_ack + _NATIVE_GROUP_S - self._loop.time())
            await self._calls.run(lambda done: self._native.seek_async(target, done), "seek")
            self._due.clear()
            self._originals.clear()
            if self._sink is not None:
                self._sink.on_rewound()
        finally:
            self._seeking = False
            self._pump.pause(False)

    async def last_message_id(self) -> MessageId:
        native_id = await self._calls.run(
            self._native.get_last_message_id_async, "get_last_message_id"
        )
        topics = self._options.topics
        topic = partition_name(topics[0], native_id.partition()) if len(topics) == 1 else ""
        return MessageId.wrap(native_id).with_topic(topic)

    async def unsubscribe(self) -> None:
        self._leaving = True
        try:
            await self._calls.run(self._native.unsubscribe_async, "unsubscribe")
        except BaseException:
            self._leaving = False
            raise

    async def close(self) -> None:
        await self._close_once()

    async def _close(self) -> None:
        if self._closed:
            return
        self._stop()
        with contextlib.suppress(EncoreError):
            await self._calls.run(self._native.close_async, "close")
        if self._sink is not None:
            await asyncio.wait((self._ended,), timeout=_CLOSE_S)
        self._calls.abandon()

    def abandon(self) -> None:
        """The library's side is gone: nothing more will be called back."""
        self._stop()
        self._calls.abandon()

    def _stop(self) -> None:
        self._closed = True
        if self._burst_timer is not None:
            self._burst_timer.cancel()
        self._pump.stop()


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """`method` as a call that does not keep its object, and does nothing once that is gone."""
    reference = WeakMethod(method)

    def call(*args: Any) -> None:
        bound = reference()
        if bound is not None:
            bound(*args)

    return call


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
