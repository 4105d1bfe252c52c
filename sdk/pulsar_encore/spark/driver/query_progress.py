"""The progress of a streaming query and the end of its next batch.

Each batch compares the checkpoint with the stored ledgers, so that lost messages become an error
and not just a smaller batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from ...client import Client
from ...values.topic_names import base_name
from ..batch_plan import LedgerSize, Quota, TopicRange, admit, may_be_gone
from ..offsets import EARLIEST, Position, later
from ..reader.range_fetch import ReadRange
from ..source_options import LATEST_WORD, SUBSCRIPTION_WORD, ReadOptions, edge_position
from ..spark_errors import DataLossError
from ..task_split import Slicing
from .cluster import Cluster
from .query_cursor import QueryCursors
from .read_bounds import begin_of, check_topics, countable, gone_text
from .task_ranges import ranges_of

log: Final = logging.getLogger("pulsar_encore.spark")

Positions = dict[str, Position]


def _moved(begin: Positions, end: Positions) -> Positions:
    """Return the ends that lie after `begin`."""
    return {
        topic: position
        for topic, position in end.items()
        if position.order > begin.get(topic, EARLIEST).order
    }


class QueryProgress:
    """The driver's side of one query. Used on the runtime's loop only."""

    def __init__(
        self, client: Client, options: ReadOptions, clock: Callable[[], float] | None = None
    ) -> None:
        self._options = options
        self.cluster: Cluster = Cluster(client, options)
        self._cursors: QueryCursors | None = None
        if options.cursor.subscription is not None:
            self._cursors = QueryCursors(client, options, self.cluster.admin)
        self._clock = clock or asyncio.get_running_loop().time
        self._lock = asyncio.Lock()
        self._initial: Positions | None = None
        self._partitions: dict[str, int] = {}  # partition number (or -1) by topic
        self._listed_s = float("-inf")
        self._polled_ends: Positions = {}  # the last messages at the last poll
        self._furthest: Positions = {}  # the furthest last message ever seen
        # Topics that were deleted after they had been read to this position.
        self._read_to_deletion: dict[str, Position] = {}
        self._polled_s = float("-inf")
        self._frozen: Positions | None = None
        # The ledgers of each topic at the last request.
        self._stored: dict[str, tuple[LedgerSize, ...]] = {}
        # Non-empty ledgers after the last message read.
        self._unread_ledgers: dict[str, list[int]] = {}
        # Since this time, fewer messages than `min_rows` are available.
        self._waiting_since_s: float | None = None
        self._warned: set[str] = set()

    async def initial(self) -> Positions:
        """Return where a new query begins.

        The subscription is created now and keeps these positions: a query that crashes in its first
        batch calls this again, and must not skip messages published in the meantime.
        """
        async with self._lock:
            if self._initial is None:
                self._initial = await self.cluster.with_retries(self._begin, "begin a query")
            return self._initial

    async def _begin(self) -> Positions:
        await self._list()
        check_topics(self._options.start, "startingOffsets", self._partitions)
        last = await self.cluster.last(self._partitions)
        self._record_ends(last)
        # PySpark freezes first; start and end then come from one request.
        if self._frozen is not None:
            self._frozen = last
        begin: Positions = {}
        for topic, position in last.items():
            begin[topic] = await self._begin_of(topic, position)
        return begin

    async def _begin_of(self, topic: str, last: Position) -> Position:
        edge = edge_position(self._options.start, topic, base_name(topic))
        wanted: Position | None = None
        if edge != SUBSCRIPTION_WORD:
            wanted = await begin_of(self.cluster, self._options, topic, last)
        if self._cursors is None:
            assert wanted is not None, "startingOffsets=subscription has a subscription"
            return await countable(self.cluster, topic, wanted)
        held = await self._cursors.position(topic, None if edge == LATEST_WORD else EARLIEST)
        if held is None:
            return EARLIEST if wanted is None else wanted
        # A new subscription at the end of the topic is already right. An older subscription holds
        # unread messages, perhaps of a query that crashed before it moved the subscription to its
        # start. If its age is not known, a subscription without acks counts as new.
        if wanted is None or edge == LATEST_WORD or wanted == EARLIEST:
            return held
        was_there = self._cursors.existed_before(topic)
        if was_there or (was_there is None and held.entry >= 0):
            return held
        await self._cursors.commit({topic: wanted})
        return wanted

    async def _list(self) -> None:
        now = self._clock()
        if self._partitions and now - self._listed_s < self._options.discovery_ms / 1000:
            return
        before, self._partitions = self._partitions, await self.cluster.topics()
        for removed in before.keys() - self._partitions.keys():
            await self.cluster.forget(removed)
        self._listed_s = now

    async def latest(self, start: Positions, *, limited: bool = True) -> Positions:
        """Return the end of the batch after `start`; `start` if there is nothing new to read.

        Raises:
            DataLossError: if messages after `start` are gone and ``failOnDataLoss`` is true.
        """
        if self._options.cursor.commit == "eager":
            await self.commit(start)
        async with self._lock:
            last = await self._ends()
            await self._drop_failed(start)
            await self._attach_new(last)
            topic_ranges = await self._topic_ranges(start, last)
            ends = (
                self._apply_limits(topic_ranges)
                if limited
                else {topic: each.end for topic, each in topic_ranges.items()}
            )
            return {**start, **ends}

    async def ends(self) -> Positions:
        async with self._lock:
            return dict(await self._ends())

    async def check(self, begin: Positions, end: Positions) -> None:
        """Check a batch that was planned before its start was known, and ack the start."""
        async with self._lock:
            self._check_ends(begin, end)
            await self._attach_new(end)
        if self._options.cursor.commit == "eager":
            await self.commit(begin)

    async def _ends(self) -> Positions:
        """Return the last messages; poll only if `latestOffsetPollMs` has passed."""
        if self._frozen is not None:
            return self._frozen
        now = self._clock()
        if now - self._polled_s >= self._options.poll_ms / 1000:

            async def request_ends() -> Positions:
                await self._list()
                return await self.cluster.last(self._partitions)

            self._polled_ends = await self.cluster.with_retries(
                request_ends, "ask for the end of the topics"
            )
            self._record_ends(self._polled_ends)
            self._polled_s = self._clock()
        return self._polled_ends

    def _record_ends(self, last: Positions) -> None:
        for topic, position in last.items():
            self._furthest[topic] = later(position, self._furthest.get(topic, EARLIEST))

    async def _drop_failed(self, start: Positions) -> None:
        for topic in [] if self._cursors is None else await self._cursors.drop_failed():
            begin = start.get(topic, EARLIEST)
            if self._furthest.get(topic, EARLIEST).order > begin.order:
                self._report_loss(
                    f"{topic}: the subscription no longer exists: it or the topic was "
                    f"deleted, and perhaps created again; messages after {begin} may be gone"
                )

    async def _attach_new(self, topics: Iterable[str]) -> None:
        if self._cursors is not None:
            for topic in topics:
                if topic not in self._cursors.attached:
                    await self._cursors.position(topic, EARLIEST)

    async def freeze(self) -> None:
        """Keep the last messages of now as the ends, and ignore new topics."""
        self._polled_s = float("-inf")
        async with self._lock:
            self._frozen = dict(await self._ends())

    async def _topic_ranges(self, begin: Positions, last: Positions) -> dict[str, TopicRange]:
        counted = self._options.limits.need_counts
        moved = _moved(begin, last)
        self._check_ends(begin, last)
        ledgers: dict[str, tuple[LedgerSize, ...]] = {}
        if moved and (counted or self._options.fail_on_data_loss):
            ledgers = await self._checked_ledgers(begin, moved)
        topic_ranges = self._ranges_between(begin, moved, ledgers)
        if counted:
            for topic, topic_range in topic_ranges.items():
                if topic_range.ledger_ranges() is None:
                    self._warn(
                        f"{topic}: without admin.url, limits cannot count entries in several "
                        "ledgers, so this batch reads the topic to its end"
                    )
        return topic_ranges

    def _ranges_between(
        self, begin: Positions, end: Positions, ledgers: Mapping[str, tuple[LedgerSize, ...]]
    ) -> dict[str, TopicRange]:
        per_entry = self.cluster.per_entry
        return {
            topic: TopicRange(
                begin.get(topic, EARLIEST),
                position,
                ledgers.get(topic, ()),
                per_entry.get(topic, 1.0),
            )
            for topic, position in end.items()
        }

    async def _checked_ledgers(
        self, begin: Positions, topics: Collection[str]
    ) -> dict[str, tuple[LedgerSize, ...]]:
        """Request the ledgers of topics, and report a deleted one that was not read to its end."""
        ledgers = await self.cluster.with_retries(
            lambda: self.cluster.ledgers(topics), "ask for ledgers"
        )
        self._stored |= ledgers
        admin = self.cluster.admin
        for topic, stored in ledgers.items():
            start, seen = begin.get(topic, EARLIEST), self._unread_ledgers.get(topic, [])
            self._unread_ledgers[topic] = [
                each.id for each in stored if each.entries and each.id > start.ledger
            ]
            entries = None if admin is None else admin.entries_of(start.ledger)
            if self._was_read_to_deletion(topic, start):
                continue
            if not may_be_gone(start, stored, entries, seen):
                continue
            if entries is None and await self._is_retained(topic, start, stored[0].id):
                continue
            self._report_loss(gone_text(topic, start, stored[0].id, sure=entries is not None))
        return ledgers

    def _apply_limits(self, topic_ranges: Mapping[str, TopicRange]) -> Positions:
        limits = self._options.limits
        if limits.min_rows is not None and self._frozen is None and topic_ranges:
            rows = sum(
                sum(each.entries for each in topic_range.ledger_ranges() or ())
                * topic_range.per_entry
                for topic_range in topic_ranges.values()
            )
            now = self._clock()
            if self._waiting_since_s is None:
                self._waiting_since_s = now
            waited = now - self._waiting_since_s >= limits.max_delay_ms / 1000
            can_count = all(each.ledger_ranges() is not None for each in topic_ranges.values())
            if rows < limits.min_rows and can_count and not waited:
                return {topic: each.start for topic, each in topic_ranges.items()}
            self._waiting_since_s = None
        if not limits.any:
            return {topic: each.end for topic, each in topic_ranges.items()}
        return admit(
            topic_ranges, Quota(rows=limits.rows, entries=limits.entries, size=limits.size)
        )

    def _check_ends(self, begin: Positions, last: Positions) -> None:
        """Report a topic that ends before the last message read."""
        for topic, start in begin.items():
            position = last.get(topic, EARLIEST)
            if position == EARLIEST:
                self._check_gone(topic, start, is_there=topic in last)
            elif position.entry_key < start.entry_key and not self._was_read_to_deletion(
                topic, start
            ):
                self._report_loss(
                    f"{topic} was read up to {start} but now ends at {position}: it was deleted "
                    "and created again, or its last messages were lost"
                )

    def _check_gone(self, topic: str, start: Position, *, is_there: bool) -> None:
        """Report a topic without messages, unless all its messages were read."""
        furthest = self._furthest.get(topic)
        if furthest is None:
            self._warn(
                f"{topic} is in the checkpoint but is no longer read: it was deleted, or the "
                "options now name other topics. It is unknown if all its messages were read"
            )
        elif furthest.order <= start.order:
            if not is_there:
                self._read_to_deletion[topic] = start
        else:
            self._report_loss(
                f"{topic} {'is empty' if is_there else 'was deleted'}, and its messages after "
                f"{start} were not read; it went up to {furthest}"
            )

    def _was_read_to_deletion(self, topic: str, start: Position) -> bool:
        """True if the topic was deleted after all its messages were read.

        False again as soon as messages of a new topic with its name were read.
        """
        return self._read_to_deletion.get(topic) == start

    async def _is_retained(self, topic: str, start: Position, first: int | None = None) -> bool:
        cursors = self._cursors
        if self._was_read_to_deletion(topic, start):
            return True
        if cursors is None:
            return False
        return await self.cluster.with_retries(
            lambda: cursors.has_kept(topic, start, first), "ask for the subscription"
        )

    def _report_loss(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{text}. Set failOnDataLoss=false to continue with the remaining messages"
            )
        self._warn(f"{text}; the query continues because failOnDataLoss=false")

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    async def commit(self, positions: Mapping[str, Position]) -> None:
        if self._cursors is not None and self._options.cursor.commit != "none":
            await self._cursors.commit(positions)

    async def ranges(self, begin: Positions, end: Positions, slicing: Slicing) -> list[ReadRange]:
        """Return the ranges of a batch.

        In a batch that is repeated after a crash, nothing has checked yet whether its messages
        still exist.
        """
        moved = _moved(begin, end)
        strict = self._options.fail_on_data_loss
        async with self._lock:
            known = all(topic in self._stored for topic in moved)
            if slicing != Slicing() or (strict and not known):
                await self._attach_new(moved)
                await self._checked_ledgers(begin, moved)
            topic_ranges = self._ranges_between(begin, moved, self._stored)
            retained = (
                await self._retained_topics(topic_ranges)
                if strict and self.cluster.admin is None
                else set()
            )
            return [
                replace(each, is_start_retained=each.topic in retained)
                for each in ranges_of(topic_ranges, slicing)
            ]

    async def _retained_topics(self, topic_ranges: Mapping[str, TopicRange]) -> set[str]:
        answers = await asyncio.gather(
            *(self._is_retained(topic, each.start) for topic, each in topic_ranges.items())
        )
        return {
            topic for topic, is_retained in zip(topic_ranges, answers, strict=True) if is_retained
        }

    async def close(self) -> None:
        if self._cursors is not None:
            await self._cursors.close(delete=self._options.cursor.delete)
        await self.cluster.close()
