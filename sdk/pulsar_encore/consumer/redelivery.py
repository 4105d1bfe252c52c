"""What comes back and when: due nacks and ack timeouts become redeliver commands.

Owns `Redelivery`: one alarm over all sources. On Shared and Key_Shared single entries are asked
for; on Exclusive and Failover a due message gives back everything unacked of its source, because
those subscriptions only know a rewind (PIP-84; as Java's client). A rewind that does not bring all
that was given back is asked for again (see `core.rewind`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from random import Random
from typing import Final

from ..core.due_index import DueBatch, precision_bits
from ..core.entry import Entry
from ..core.in_flight import InFlight
from ..letters.evidence import evidence_of
from ..options import ConsumerOptions
from ..timer import Alarm, due_in_ms, now_ms, wall_now_ms
from ..transport.base import ConsumerLink
from .ack_sender import ECHO_S, AckSender
from .receive_queue import ReceiveQueue

logger: logging.Logger = logging.getLogger(__name__)

# Keys handled in one turn of the loop; the rest follows in the next.
_BURST: Final = 500
# A rewind that brought nothing for so long, though there was room, is asked for again, after twice
# the time with each try; after so many tries what was owed is gone from the topic.
_PATIENCE_S: Final = 1.0
_REWINDS: Final = 6


class Redelivery:
    """The clockwork of one consumer.

    Args:
        link: Where redeliver commands go.
        homes: The sources, by number; shared with the consumer.
        options: Delays, backoffs, precision, ack timeout.
        loop: The consumer's event loop.
        acks: Has to send what is acked before a rewind is asked for.
        queue: Loses what a rewind brings again.
        rng: Source of backoff jitter.
    """

    def __init__(
        self,
        link: ConsumerLink,
        homes: Mapping[int, InFlight],
        options: ConsumerOptions,
        loop: asyncio.AbstractEventLoop,
        acks: AckSender,
        queue: ReceiveQueue,
        rng: Random,
    ) -> None:
        self._link = link
        self._homes = homes
        self._options = options
        self._loop = loop
        self._acks = acks
        self._queue = queue
        self._rng = rng
        self._timeout_ms = options.unacked_messages_timeout_ms or 0
        self._timeout_bits = precision_bits(self._timeout_ms)
        self._one = link.capabilities.rewind_one_source
        self._alarm = Alarm(loop, self._fire)
        self._patience: dict[int, _Patience] = {}
        self._rewound_at = -math.inf
        self._watch: asyncio.TimerHandle | None = None

    def nack_due(self, redelivery_count: int, delay_ms: int | None) -> tuple[int, int]:
        """(due ms, bucket bits) of a nack made now."""
        if delay_ms is None:
            backoff = self._options.negative_ack_redelivery_backoff
            if backoff is not None:
                delay_ms = backoff.delay_ms(redelivery_count, self._rng)
            else:
                delay_ms = self._options.negative_ack_redelivery_delay_ms
        bits = precision_bits(delay_ms, self._options.negative_ack_precision_bit_cnt)
        return due_in_ms(self._loop, delay_ms), bits

    def nacked(self, home: InFlight) -> None:
        self._alarm.at(self._next_due(home))

    def _next_due(self, home: InFlight) -> int | None:
        """When the alarm has to ring for a source: earlier than due by what the transport takes."""
        heads = [
            head for head in (home.nacks.next_due(), home.timeouts.next_due()) if head is not None
        ]
        if not heads:
            return None
        return min(heads) - self._lead_ms(home)

    def _lead_ms(self, home: InFlight) -> int:
        able = self._link.capabilities
        return able.redeliver_lead_ms if home.shared else able.rewind_lead_ms

    def handed_over(self, entry: Entry, index: int) -> None:
        """The ack timeout begins; only called when there is one."""
        home: InFlight = entry.home
        if home.volatile:
            return  # nothing there can be redelivered, and acks never untrack (issue 26548)
        due = due_in_ms(self._loop, self._timeout_ms)
        home.timed = True
        home.timeouts.move(entry.due_key(index), due, self._timeout_bits)
        self._alarm.at(self._next_due(home))

    def _fire(self, now: int) -> int | None:
        heads = []
        for home in list(self._homes.values()):
            due_now = now + self._lead_ms(home)
            if len(home.timeouts):
                self._time_out(home, due_now)
            if len(home.nacks):
                self._give_back(home, home.nacks.pop_due(due_now, _BURST))
            head = self._next_due(home)
            if head is not None:
                heads.append(head)
        return min(heads, default=None)

    def _time_out(self, home: InFlight, now: int) -> None:
        due = home.timeouts.pop_due(now, _BURST)
        if not due:
            return
        if home.attempts is not None:
            self._witness(home, due)
        backoff = self._options.ack_timeout_redelivery_backoff
        if backoff is None:
            self._give_back(home, due)
            return
        for ledger, number, index in due:
            entry = home.find((ledger, number))
            if entry is not None:
                at = max(index, 0)
                delay = backoff.delay_ms(entry.redelivery_count(at), self._rng)
                home.nack(entry, at, now + delay, precision_bits(delay))

    def _witness(self, home: InFlight, due: DueBatch) -> None:
        """A look that timed out counts, also where the broker forgets it."""
        assert home.attempts is not None
        evidence, wall_now = evidence_of(None, "ack timeout"), wall_now_ms(self._loop)
        for key in due:
            home.attempts.failed(key, wall_now, evidence)

    def _give_back(self, home: InFlight, due: DueBatch) -> None:
        if not due:
            return
        if not home.shared:
            self.redeliver_all(home)
            return
        unsent = home.has_unsent_part(due)
        groups = home.release(due, now_ms(self._loop), self._lead_ms(home))
        if groups:
            if unsent:  # or the broker would send what is acked of these along, and to anybody
                self._acks.flush()
            self._link.redeliver(home.source, groups)

    # Rewinds

    def redeliver_all(self, home: InFlight | None = None) -> None:
        """Everything unacked comes again, pending nacks included: of one source, or of all.

        A transport that cannot rewind one source alone rewinds those beside it as well. With
        nothing given back there is nothing to ask for on Exclusive and Failover: all that is
        unacked is on its way here, and a rewind would only bring it twice.
        """
        rewound = [
            each
            for each in self._homes.values()
            if home is None or each is home or not (self._one or each.shared)
        ]
        if not any(each.shared or each.unacked or each.owed for each in rewound):
            return
        for each in rewound:
            each.release_all()
        self._rewind(home)
        # Last: the room that this gives back must not bring more before the rewind.
        self._queue.drop(rewound)

    def rewind_again(self, home: InFlight) -> None:
        """Something that was given back is missing: what is here stays here, the rest comes."""
        for each in list(self._homes.values()):
            if each is home or not (self._one or each.shared):
                each.rewound_beside()
        self._rewind(home)

    def _rewind(self, home: InFlight | None) -> None:
        self._acks.flush()  # what leaves after the rewind would come again with it
        self._acks.watch_echoes()
        self._rewound_at = self._loop.time()
        self._link.redeliver_all(None if home is None else home.source)
        if self._watch is None:
            self._watch = self._loop.call_later(_PATIENCE_S, self._look)

    def expects_echoes(self) -> bool:
        """Whether a rewind was asked for a moment ago, that a source seen only now knows not of."""
        return self._loop.time() - self._rewound_at < ECHO_S

    def _look(self) -> None:
        """Ask again where a rewind has brought nothing for too long."""
        self._watch = None
        impatient = False
        for home in list(self._homes.values()):
            if home.rewind is None or not home.rewind.owed:
                self._patience.pop(home.source, None)
                continue
            impatient = True
            patience = self._patience.setdefault(home.source, _Patience(self._loop.time()))
            taken = self._queue.taken
            if patience.moved(home.rewind.came, self._loop.time(), taken):
                continue
            if len(self._queue) and taken - patience.taken < self._behind():
                continue  # it may come behind what the application has not taken yet
            if not patience.over(self._loop.time() - _PATIENCE_S):
                continue
            if patience.tries < _REWINDS:
                patience.again(self._loop.time(), taken)
                self.rewind_again(home)
            else:
                self._patience.pop(home.source)
                gone = home.rewind.give_up()
                logger.info(
                    "%s: %d entries did not come again after %d rewinds: they are gone from the "
                    "topic, or another consumer has them",
                    home.topic,
                    gone,
                    _REWINDS,
                )
        if impatient and self._watch is None:
            self._watch = self._loop.call_later(_PATIENCE_S, self._look)

    def _behind(self) -> int:
        """Messages of other sources that may come before what a rewind brings."""
        return 2 * self._options.receiver_queue_size * len(self._homes)

    def close(self) -> None:
        self._alarm.cancel()
        if self._watch is not None:
            self._watch.cancel()


class _Patience:
    """How long a source has been silent, and how often it was asked again for that."""

    __slots__ = ("came", "since", "taken", "tries")

    def __init__(self, now: float) -> None:
        self.came = -1
        self.since = now
        self.taken = 0  # messages that the application had taken by then, of any source
        self.tries = 0

    def moved(self, came: int, now: float, taken: int) -> bool:
        """Whether more came than at the last look."""
        if came == self.came:
            return False
        self.came, self.since, self.taken, self.tries = came, now, taken, 0
        return True

    def over(self, now: float) -> bool:
        return now - self.since >= _PATIENCE_S * ((1 << self.tries) - 1)

    def again(self, now: float, taken: int) -> None:
        self.since, self.taken = now, taken
        self.tries += 1
