"""How far a streaming query is, and how far its next batch goes.

Owns `QueryProgress`, of one query; on the runtime's loop. The checkpoint is Spark's: positions come
in as the last batch's end, and go out as the next one's. Before anything is promised it is compared
with what is stored, so that what is gone is an error and not a batch that is a little smaller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from ...client import Client
from ...values.topic_names import base_name
from ..offsets import EARLIEST, Position, later
from ..range_planner import EntrySpan, LedgerSize, Quota, Slicing, admit, may_be_gone
from ..reader.range_fetch import ReadRange
from ..source_options import LATEST_WORD, SUBSCRIPTION_WORD, ReadOptions, edge_position
from ..spark_errors import DataLossError
from .cluster import Cluster
from .query_cursor import QueryCursors
from .read_bounds import begin_of, check_topics, countable, gone_text
from .task_ranges import numbers_of, ranges_of

log: Final = logging.getLogger("pulsar_encore.spark")

Positions = dict[str, Position]


class QueryProgress:
    """The driver's side of a query.

    Args:
        client: The process's.
        options: Of the read.
        clock: Monotonic seconds; None for the loop's.
    """

    def __init__(
        self, client: Client, options: ReadOptions, clock: Callable[[], float] | None = None
    ) -> None:
        self._options = options
        self.cluster: Cluster = Cluster(client, options)
        self._cursors: QueryCursors | None = None
        if options.cursor.subscription is not None:
            self._cursors = QueryCursors(client, options, self.cluster.admin)
        self._clock = clock or asyncio.get_running_loop().time
        self._turn = asyncio.Lock()
        self._initial: Positions | None = None
        self._numbers: dict[str, int] = {}
        self._listed_s = float("-inf")
        self._last: Positions = {}
        self._furthest: Positions = {}  # of all that was seen of each topic
        self._ended: dict[str, Position] = {}  # deleted when all up to there had been read
        self._asked_s = float("-inf")
        self._frozen: Positions | None = None
        # What was stored of each topic, as it was last known; nothing where nobody was asked.
        self._stored: dict[str, tuple[LedgerSize, ...]] = {}
        self._seen: dict[str, list[int]] = {}  # ledgers that held something behind what was read
        self._waits_s: float | None = None  # since when there is less than a batch waits for
        self._warned: set[str] = set()

    # Beginning

    async def initial(self) -> Positions:
        """Where a new query begins; the same each time it is asked.

        Where there is a subscription it is made now, and holds that place: a query that crashes in
        its first batch asks again, and what was published meanwhile is not to be skipped.
        """
        async with self._turn:
            if self._initial is None:
                self._initial = await self.cluster.patiently(self._begin, "begin a query")
            return self._initial

    async def _begin(self) -> Positions:
        await self._list()
        check_topics(self._options.start, "startingOffsets", self._numbers)
        last = await self.cluster.last(self._numbers)
        self._note(last)
        if self._frozen is not None:  # PySpark freezes first; one look says where both edges are
            self._frozen = last
        begin: Positions = {}
        for topic, position in last.items():
            begin[topic] = await self._begin_of(topic, position)
        return begin

    async def _begin_of(self, topic: str, last: Position) -> Position:
        said = edge_position(self._options.start, topic, base_name(topic))
        wanted: Position | None = None
        if said != SUBSCRIPTION_WORD:
            wanted = await begin_of(self.cluster, self._options, topic, last)
        if self._cursors is None:
            assert wanted is not None, "startingOffsets=subscription has a subscription"
            return await countable(self.cluster, topic, wanted)
        held = await self._cursors.position(topic, None if said == LATEST_WORD else EARLIEST)
        if held is None:
            return EARLIEST if wanted is None else wanted
        # At the end a new one is where it should be, and one that was there holds what was not read
        # yet: also one of a query that crashed before it was moved to where it was to begin. Where
        # nobody can tell, one that acked nothing yet is taken for a new one.
        if wanted is None or said == LATEST_WORD or wanted == EARLIEST:
            return held
        was_there = self._cursors.was_there(topic)
        if was_there or (was_there is None and held.entry >= 0):
            return held
        await self._cursors.commit({topic: wanted})
        return wanted

    async def _list(self) -> None:
        now = self._clock()
        if self._numbers and now - self._listed_s < self._options.discovery_ms / 1000:
            return
        before, self._numbers = self._numbers, await self.cluster.topics()
        for gone in before.keys() - self._numbers.keys():
            await self.cluster.forget(gone)
        self._listed_s = now

    # Going on

    async def latest(self, start: Positions, *, limited: bool = True) -> Positions:
        """The end of the next batch; `start` where there is nothing to read yet.

        Args:
            start: The end of the last batch, which the checkpoint holds.
            limited: Whether the limits of a batch hold.

        Raises:
            DataLossError: Something behind `start` is gone, and ``failOnDataLoss`` is true.
            TransportError: The brokers could not be asked, again and again.
        """
        if self._options.cursor.commit == "eager":
            await self.commit(start)
        async with self._turn:
            last = await self._ends()
            await self._drop_failed(start)
            await self._hold_new(last)
            spans = await self._spans(start, last)
            ends = self._take(spans) if limited else {t: each.end for t, each in spans.items()}
            return {**start, **ends}

    async def ends(self) -> Positions:
        """The last messages, where it is not known what was read of the topics."""
        async with self._turn:
            return dict(await self._ends())

    async def check(self, begin: Positions, end: Positions) -> None:
        """Check a batch whose end was taken without its beginning, and ack up to that.

        Args:
            begin: In the checkpoint.
            end: Of the batch.

        Raises:
            DataLossError: A topic ends before it was read to, and ``failOnDataLoss`` is true.
        """
        async with self._turn:
            self._check_ends(begin, end)
            await self._hold_new(end)
        if self._options.cursor.commit == "eager":
            await self.commit(begin)

    async def _ends(self) -> Positions:
        """The last messages, which may have been asked for a moment ago."""
        if self._frozen is not None:
            return self._frozen
        now = self._clock()
        if now - self._asked_s >= self._options.poll_ms / 1000:

            async def ask() -> Positions:
                await self._list()
                return await self.cluster.last(self._numbers)

            self._last = await self.cluster.patiently(ask, "ask for the end of the topics")
            self._note(self._last)
            self._asked_s = self._clock()
        return self._last

    def _note(self, last: Positions) -> None:
        for topic, position in last.items():
            self._furthest[topic] = later(position, self._furthest.get(topic, EARLIEST))

    async def _drop_failed(self, start: Positions) -> None:
        for topic in [] if self._cursors is None else await self._cursors.drop_failed():
            begin = start.get(topic, EARLIEST)
            if self._furthest.get(topic, EARLIEST).order > begin.order:
                self._lost(
                    f"{topic}: the subscription is not there any more: it or the topic was "
                    f"deleted, and perhaps made again; messages behind {begin} may be gone"
                )

    async def _hold_new(self, topics: Iterable[str]) -> None:
        """The subscription of topics that have come since; all of them is to be read."""
        if self._cursors is not None:
            for topic in topics:
                if topic not in self._cursors.held:
                    await self._cursors.position(topic, EARLIEST)

    async def freeze(self) -> None:
        """From now on the ends are those of this moment, and no topic comes (`AvailableNow`)."""
        self._asked_s = float("-inf")
        async with self._turn:
            self._frozen = dict(await self._ends())

    async def _spans(self, begin: Positions, last: Positions) -> dict[str, EntrySpan]:
        limits = self._options.limits
        moved = {
            topic: position
            for topic, position in last.items()
            if position.order > begin.get(topic, EARLIEST).order
        }
        self._check_ends(begin, last)
        counted = limits.any or limits.min_rows is not None
        ledgers: dict[str, tuple[LedgerSize, ...]] = {}
        if moved and (counted or self._options.fail_on_data_loss):
            ledgers = await self._ledgers(moved)
            await self._check_ledgers(
                {topic: begin.get(topic, EARLIEST) for topic in moved}, ledgers
            )
        spans = {
            topic: EntrySpan(
                begin.get(topic, EARLIEST),
                later(begin.get(topic, EARLIEST), position),
                ledgers.get(topic, ()),
                self.cluster.per_entry.get(topic, 1.0),
            )
            for topic, position in moved.items()
        }
        if counted:
            for topic, span in spans.items():
                if span.stretches() is None:
                    self._warn(
                        f"{topic}: limits do not hold across ledgers without admin.url; it is "
                        "read to its end at once"
                    )
        return spans

    async def _ledgers(self, topics: Mapping[str, Position]) -> dict[str, tuple[LedgerSize, ...]]:
        found = await self.cluster.patiently(
            lambda: self.cluster.ledgers(topics), "ask for ledgers"
        )
        self._stored |= found
        return found

    def _take(self, spans: Mapping[str, EntrySpan]) -> Positions:
        limits = self._options.limits
        if limits.min_rows is not None and self._frozen is None and spans:
            rows = sum(
                sum(each.entries for each in span.stretches() or ()) * span.per_entry
                for span in spans.values()
            )
            now = self._clock()
            if self._waits_s is None:
                self._waits_s = now
            waited = now - self._waits_s >= limits.max_delay_ms / 1000
            countable = all(span.stretches() is not None for span in spans.values())
            if rows < limits.min_rows and countable and not waited:
                return {topic: span.start for topic, span in spans.items()}
            self._waits_s = None
        if not limits.any:
            return {topic: span.end for topic, span in spans.items()}
        return admit(spans, Quota(rows=limits.rows, entries=limits.entries, size=limits.size))

    # What is gone

    def _check_ends(self, begin: Positions, last: Positions) -> None:
        """A topic that ends before what was read of it was deleted, and perhaps made again."""
        for topic, start in begin.items():
            position = last.get(topic, EARLIEST)
            if position == EARLIEST:
                self._check_gone(topic, start, is_there=topic in last)
            elif position.place < start.place and not self._is_anew(topic, start):
                self._lost(
                    f"{topic} ends at {position} and was read up to {start}: it was deleted and "
                    "made again, or its last messages were lost"
                )

    def _check_gone(self, topic: str, start: Position, *, is_there: bool) -> None:
        """Of a topic there is nothing any more: whether all of it was read."""
        furthest = self._furthest.get(topic)
        if furthest is None:
            self._warn(
                f"{topic} is in the checkpoint, and is not among the topics that are read: it was "
                "deleted, or the options name others now. Whether it was read to its end is not "
                "known"
            )
        elif furthest.order <= start.order:
            if not is_there:
                self._ended[topic] = start
        else:
            self._lost(
                f"{topic} {'is empty' if is_there else 'was deleted'}, and its messages behind "
                f"{start} were not read; it went up to {furthest}"
            )

    async def _check_ledgers(
        self, begin: Positions, ledgers: Mapping[str, tuple[LedgerSize, ...]]
    ) -> None:
        """A ledger that is gone and was not read to its end took messages with it."""
        admin = self.cluster.admin
        for topic, stored in ledgers.items():
            start, seen = begin[topic], self._seen.get(topic, [])
            self._seen[topic] = [
                each.id for each in stored if each.entries and each.id > start.ledger
            ]
            entries = None if admin is None else admin.entries_of(start.ledger)
            if self._is_anew(topic, start):
                continue
            if not may_be_gone(start, stored, entries, seen):
                continue
            if entries is None and await self._kept(topic, start, stored[0].id):
                continue
            self._lost(gone_text(topic, start, stored[0].id, sure=entries is not None))

    def _is_anew(self, topic: str, start: Position) -> bool:
        """Whether it was deleted, with all of it read, and none was read of one made since."""
        return self._ended.get(topic) == start

    async def _kept(self, topic: str, start: Position, first: int | None = None) -> bool:
        cursors = self._cursors
        if self._is_anew(topic, start):
            return True
        if cursors is None:
            return False
        return await self.cluster.patiently(
            lambda: cursors.keeps(topic, start, first), "ask for the subscription"
        )

    def _lost(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}. Set failOnDataLoss=false to go on with what there is")
        self._warn(f"{text}; it goes on, as failOnDataLoss=false says")

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    # Ending

    async def commit(self, positions: Mapping[str, Position]) -> None:
        """The checkpoint holds these: they need not be kept for this query any more."""
        if self._cursors is not None and self._options.cursor.commit != "none":
            await self._cursors.commit(positions)

    # The tasks of a batch

    async def ranges(self, begin: Positions, end: Positions, slicing: Slicing) -> list[ReadRange]:
        """The ranges of a batch, which may be done again after a crash: then nobody has looked yet
        whether its messages are still there.

        Args:
            begin, end: Of the batch.
            slicing: How it is cut.

        Raises:
            DataLossError: Something of it is gone, and ``failOnDataLoss`` is true.
            TransportError: The brokers could not be asked, again and again.
        """
        moved = {
            topic: position
            for topic, position in end.items()
            if position.order > begin.get(topic, EARLIEST).order
        }
        strict = self._options.fail_on_data_loss
        async with self._turn:
            known = all(topic in self._stored for topic in moved)
            if slicing != Slicing() or (strict and not known):
                await self._hold_new(moved)
                ledgers = await self._ledgers(moved)
                await self._check_ledgers(
                    {topic: begin.get(topic, EARLIEST) for topic in moved}, ledgers
                )
            spans = {
                topic: EntrySpan(
                    begin.get(topic, EARLIEST),
                    position,
                    self._stored.get(topic, ()),
                    self.cluster.per_entry.get(topic, 1.0),
                )
                for topic, position in moved.items()
            }
            kept = await self._kept_of(spans) if strict and self.cluster.admin is None else set()
            return [
                replace(each, is_kept=each.topic in kept)
                for each in ranges_of(spans, numbers_of(spans), slicing)
            ]

    async def _kept_of(self, spans: Mapping[str, EntrySpan]) -> set[str]:
        """Topics of which brokers have kept all behind a span's start, as far as they tell."""
        answers = await asyncio.gather(
            *(self._kept(topic, span.start) for topic, span in spans.items())
        )
        return {topic for topic, kept in zip(spans, answers, strict=True) if kept}

    async def close(self) -> None:
        """Give back what is held of the brokers."""
        if self._cursors is not None:
            await self._cursors.close(delete=self._options.cursor.delete)
        await self.cluster.close()
