"""What the transport tells a consumer: deliveries, connections coming and going, rewinds.

Owns `Intake`, the consumer's `Sink`, and the state of each source it has heard of. Every delivered
message is either queued or already someone's; what is not queued gives its room back at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Container, Iterable, Sequence
from typing import Final

from ..core.attempts import Attempts
from ..core.in_flight import InFlight
from ..core.rewind import Rewind, Verdict
from ..options import ConsumerOptions
from ..timer import now_ms
from ..transport.base import ConsumerLink, Delivery
from .ack_sender import SUSPECT_S, AckSender
from .letter_desk import LetterDesk
from .receive_queue import ReceiveQueue
from .redelivery import Redelivery
from .window import Window

_MOST_NEWS: Final = 32  # of connections: several comings and goings of each part


class Intake:
    """Feeds `queue` from what `link` delivers.

    Args:
        owner: The consumer; marks its messages as its own.
        link: The subscription.
        homes: The sources, by number; this class adds to it.
        queue: What the application receives from.
        acks: Told when something acked has to be acked again.
        window: Watched while it fills.
        redelivery: Rewinds again when a delivery shows that something is missing.
        options: The subscription.
        counts_attempts: Keep counts that the broker forgets, for a dead-letter policy.
    """

    def __init__(
        self,
        owner: object,
        link: ConsumerLink,
        homes: dict[int, InFlight],
        queue: ReceiveQueue,
        acks: AckSender,
        window: Window,
        redelivery: Redelivery,
        options: ConsumerOptions,
        *,
        counts_attempts: bool,
    ) -> None:
        self._owner = owner
        self._link = link
        self._homes = homes
        self._queue = queue
        self._acks = acks
        self._window = window
        self._redelivery = redelivery
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._counts_attempts = counts_attempts
        self.desk: LetterDesk | None = None  # where there are letter topics
        # What was last heard of connections: when, what, and of which sources (None: of all).
        self._news: deque[tuple[float, str, Container[int] | None]] = deque(maxlen=_MOST_NEWS)

    def home(self, source: int) -> InFlight:
        """The state of a source, made on first sight."""
        home = self._homes.get(source)
        if home is None:
            topic, partition = self._link.topic_of(source)
            home = InFlight(
                self._owner,
                source,
                topic,
                partition,
                shared=self._options.is_shared(topic),
                contiguous=not self._options.is_read_compacted,
            )
            if self._counts_attempts:
                home.attempts = Attempts()
            if self._redelivery.expects_echoes():
                home.acks.expect_echoes()
                home.crossing = home.shared
            self._homes[source] = home
            self._catch_up(home)
        return home

    def _catch_up(self, home: InFlight) -> None:
        """A source seen only now was there all along: what happened to the others happened to it.

        Its messages may have waited in the engine since before a connection was lost.
        """
        heard = [(at, what) for at, what, of in self._news if of is None or home.source in of]
        match heard[-2:]:
            case [*_, (_, "doubtful")]:
                home.acks.doubtful(now_ms(self._loop))
            case [(_, "doubtful"), (at, "connected")] if at >= self._loop.time() - SUSPECT_S:
                home.acks.doubtful(now_ms(self._loop))
                home.reconnected()

    def _heard(self, what: str, only: Container[int] | None) -> list[InFlight]:
        """Note what happened to connections; returns the sources concerned."""
        self._news.append((self._loop.time(), what, only))
        homes = self._homes
        return [homes[source] for source in homes if only is None or source in only]

    def on_deliveries(self, deliveries: Iterable[Delivery]) -> None:
        arrived = 0
        now = now_ms(self._loop)
        self._acks.arrived(now)
        for each in deliveries:
            home = self._homes.get(each.source) or self.home(each.source)
            if home.rewind is not None and not self._in_order(home, home.rewind, each):
                self._link.consumed(each.source, len(each.indexes))
                continue
            indexes, messages = each.indexes, each.messages
            entry, positions = home.arrive(
                (each.ledger, each.entry),
                each.batch_size,
                each.redelivery_count,
                indexes,
                each.ack_set,
                each.first_chunk,
                now,
            )
            delivered = len(indexes)
            if len(positions) < delivered:
                indexes = [indexes[at] for at in positions]
                messages = [messages[at] for at in positions]
                if len(home.acks):
                    self._acks.added(home, 1)  # something acked came again
                if len(home.nacks):
                    self._redelivery.nacked(home)  # or something that waits, too early
            if entry is not None and self.desk is not None:
                indexes, messages = self.desk.sift(home, entry, indexes, messages)
            count = len(indexes)
            if count < delivered:
                self._link.consumed(each.source, delivered - count)
            if entry is not None and count:
                self._queue.push(entry, indexes, messages)
                arrived += count
        if arrived:
            self._queue.wake(arrived)
            self._window.watch()

    def _in_order(self, home: InFlight, rewind: Rewind, delivery: Delivery) -> bool:
        """Whether an Exclusive or Failover delivery may be handed out now (see `core.rewind`)."""
        if delivery.first_chunk is not None:
            rewind.trust_holes()
        verdict = rewind.judge((delivery.ledger, delivery.entry), delivery.indexes[0])
        if verdict is Verdict.REWIND:
            self._redelivery.rewind_again(home)
        return verdict is Verdict.ADMIT

    def on_connected(self, only: Container[int] | None = None) -> None:
        self._acks.connected(self._heard("connected", only))

    def on_disconnected(self, only: Container[int] | None = None) -> None:
        homes = self._heard("disconnected", only)
        self._acks.disconnected(homes)
        for home in homes:
            home.disconnected()
        self._queue.drop(homes)

    def on_doubtful(self, only: Container[int] | None = None) -> None:
        homes = self._heard("doubtful", only)
        self._acks.doubtful(homes)
        for home in homes:
            home.crossing = False  # a copy may be the reconnect's, which the broker does not count

    def on_asked_all(self, unseen: Sequence[Delivery], only: Container[int] | None = None) -> None:
        for source, home in self._homes.items():
            if home.shared and (only is None or source in only):
                home.crossing = True
        for each in unseen:
            self.home(each.source).overlook((each.ledger, each.entry), each.batch_size or 1)

    def on_rewound(self, only: Container[int] | None = None) -> None:
        homes = self._heard("rewound", only)
        for home in homes:
            home.reset()
        self._queue.drop(homes)

    def on_failed(self, error: Exception) -> None:
        self._queue.fail(error)
