"""What comes back and when: due nacks and ack timeouts become redeliver commands.

Owns `Redelivery`: one alarm over all sources. On Shared and Key_Shared single entries are asked
for; on Exclusive and Failover a due message gives back everything unacked of its source, because
those subscriptions only know a rewind (PIP-84; as Java's client).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from ..core.due_index import DueBatch, precision_bits
from ..core.entry import Entry
from ..core.in_flight import InFlight
from ..evidence import evidence_of
from ..options import ConsumerOptions
from ..timer import Alarm, due_in_ms, wall_now_ms
from ..transport.base import ConsumerLink

# Keys handled in one turn of the loop; the rest follows in the next.
_BURST: Final = 10_000


class Redelivery:
    """The clockwork of one consumer.

    Args:
        link: Where redeliver commands go.
        homes: The sources, by number; shared with the consumer.
        options: Delays, backoffs, precision, ack timeout.
        loop: The consumer's event loop.
        rewound: Called with a source whose queue has to be dropped.
        rng: Source of backoff jitter.
    """

    def __init__(
        self,
        link: ConsumerLink,
        homes: Mapping[int, InFlight],
        options: ConsumerOptions,
        loop: asyncio.AbstractEventLoop,
        rewound: Callable[[InFlight], None],
        rng: Random,
    ) -> None:
        self._link = link
        self._homes = homes
        self._options = options
        self._loop = loop
        self._rewound = rewound
        self._rng = rng
        self._timeout_ms = options.unacked_messages_timeout_ms or 0
        self._timeout_bits = precision_bits(self._timeout_ms)
        self._lead_ms = link.capabilities.redeliver_lead_ms
        self._alarm = Alarm(loop, self._fire, self._lead_ms)

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
        """When the alarm has to ring for a source.

        A rewind takes effect at once, a redelivery by id only after the transport's lead.
        """
        heads = [
            head for head in (home.nacks.next_due(), home.timeouts.next_due()) if head is not None
        ]
        if not heads:
            return None
        return min(heads) + (0 if home.shared else self._lead_ms)

    def handed_over(self, entry: Entry, index: int) -> None:
        """The ack timeout begins; only called when there is one."""
        home: InFlight = entry.home
        if home.volatile:
            return  # nothing there can be redelivered, and acks never untrack (issue 26548)
        due = due_in_ms(self._loop, self._timeout_ms)
        home.timeouts.move(entry.due_key(index), due, self._timeout_bits)
        self._alarm.at(self._next_due(home))

    def _fire(self, now: int) -> int | None:
        heads = []
        for home in list(self._homes.values()):
            due_now = now if home.shared else now - self._lead_ms
            if len(home.timeouts):
                self._time_out(home, due_now)
            if len(home.nacks):
                due = home.nacks.pop_due(due_now, _BURST)
                if due:
                    self._give_back(home, home.release(due))
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
            self._give_back(home, home.release(due))
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

    def _give_back(self, home: InFlight, groups: list[tuple[int, list[int]]]) -> None:
        if not groups:
            return
        if home.shared:
            self._link.redeliver(home.source, groups)
        else:
            self.redeliver_all(home)

    def redeliver_all(self, home: InFlight) -> None:
        """Everything unacked of one source comes again, pending nacks included."""
        one = self._link.capabilities.rewind_one_source
        for each in list(self._homes.values()):
            if each is home or not (one or each.shared):
                each.release_all()
                self._rewound(each)
        self._link.redeliver_all(home.source)

    def close(self) -> None:
        self._alarm.cancel()
