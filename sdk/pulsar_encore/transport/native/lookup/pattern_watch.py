"""Which topics match a pattern, as they come and go.

Owns `PatternWatch`. A broker that can tells of each topic at once (WATCH_TOPIC_LIST). The list is
asked for as well, every now and then: not every broker can, a watch is of persistent topics only,
and no pattern of more than 50 characters is taken. What the two say is put together, so that no
topic is missed. After a reconnect the watch is asked for with the hash of what it has told, and so
again where an update does not add up: `docs/notes/wire-protocol.md#topic-lists`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ....errors import NotConnected, NotSupportedError, PulsarException
from ....eventloop.affinity import cancel
from ....eventloop.process import in_background
from ....options import RegexSubscriptionMode
from ....wire import pulsar_pb2 as pb
from ....wire.checksum import topics_hash
from ....wire.entries import text
from ..connection.attachment import Attachment
from ..connection.session import Session
from .lookup import Lookup
from .lookup_interface import NamePattern

log: Final = logging.getLogger("pulsar_encore.lookup")

_MAX_PATTERN_CHARS: Final = 50  # `subscriptionPatternMaxLength`


class PatternWatch:
    """The topics of a pattern (a partitioned one by its own name), and the news of them.

    Args:
        lookup: Where topics are.
        pattern: A regular expression of ``persistent://tenant/namespace/name``; the first two parts
            are literal.
        mode: Of which domain.
        period_s: How often the list is asked for, in s.

    Raises:
        InvalidTopicName: The pattern is none.
    """

    def __init__(
        self, lookup: Lookup, pattern: str, mode: RegexSubscriptionMode, period_s: float
    ) -> None:
        self._lookup = lookup
        self._pattern = NamePattern(pattern)
        self._mode = mode
        self._period_s = period_s
        self._names: set[str] = set()  # that match; partitions singly
        self._hash = ""  # of the last list
        self._change_event = asyncio.Event()
        self._schedule = lookup.make_round()
        self._refresh_due: asyncio.Task[None] | None = None  # until the list is to be asked for
        # The watch: what it told, as the broker matches.
        self._reported: set[str] = set()
        self._id = -1
        self._session: Session | None = None
        self._attachment = Attachment(
            lookup, pattern, self._watch, self._on_refused, find=lookup.pool.any_broker
        )
        self._rewatch_task: asyncio.Task[None] | None = None
        self._is_inconsistent = False

    async def first(self) -> list[str]:
        """The topics there are, partitions singly; from now on `changed` tells of more.

        Raises:
            PulsarException: The list could not be had.
        """
        await self._refresh_list()
        self._change_event.clear()
        service = self._lookup.pool.service
        if (
            self._mode is not RegexSubscriptionMode.NonPersistentOnly
            and len(self._pattern.path) <= _MAX_PATTERN_CHARS
            and not service.web
        ):
            self._attachment.begin()
        return sorted(self._names)

    async def changed(self) -> list[str]:
        """The topics there are, partitions singly, when some have come or gone; after the period
        in any case.

        Raises:
            PulsarException: The list could not be had; later it may be.
        """
        if not await self._wait_for_change():
            try:
                await self._refresh_list()
            except PulsarException:
                self._schedule.again()
                raise
        self._change_event.clear()
        return sorted(self._names)

    async def _wait_for_change(self) -> bool:
        """Wait for news; False when the list is to be asked for before there are any."""
        loop = self._lookup.pool.loop
        if self._refresh_due is None:  # else it is under way: news do not put the list off
            self._refresh_due = in_background(loop, self._schedule.next(self._period_s))
        refresh, change = self._refresh_due, in_background(loop, self._wait_for_event())
        try:
            await asyncio.wait((refresh, change), return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()
        if not refresh.done():
            return True
        self._refresh_due = None
        return False

    async def _wait_for_event(self) -> None:
        await self._change_event.wait()

    def look_again(self) -> None:
        """What was found could not be used: the list is to be asked for once more."""
        self._schedule.again()

    def tell_again(self) -> None:
        """Make `changed` return at once, because a topic that was removed may exist again."""
        self._change_event.set()

    async def stop(self) -> None:
        """No more news."""
        await self._attachment.stop()
        self._cancel_tasks()
        self._end_watch()

    def _end_watch(self) -> None:
        """The broker shall tell no more; nobody waits for its answer."""
        session, self._session = self._session, None
        if session is not None and not session.closed:
            session.detach_watcher(self._id)
            request_id = session.requests.new_id()
            session.send(pb.CommandWatchTopicListClose(watcher_id=self._id, request_id=request_id))

    def abandon(self) -> None:
        """No more news, at once; the broker learns of it with the connection."""
        self._attachment.abandon()
        self._cancel_tasks()
        if self._session is not None:
            self._session.detach_watcher(self._id)

    def _cancel_tasks(self) -> None:
        for each in (self._rewatch_task, self._refresh_due):
            if each is not None:
                cancel(each)

    # The list

    async def _refresh_list(self) -> None:
        reported = self._reported
        listing = await self._lookup.topics(self._pattern.namespace, self._mode, self._hash)
        if listing.topics is None:
            return
        # What the watch told of meanwhile is perhaps not in the list, or gone again: the next one
        # says so, and is to be a whole one.
        added = self._reported - reported
        self._names = set(filter(self._pattern.matches, (*listing.topics, *added)))
        self._hash = "" if added else listing.hash

    # The watch (`WatchHandler`)

    async def _watch(self, session: Session) -> None:
        """Ask a broker to tell; also for how the list is now, where that is in doubt."""
        if not session.features.supports_topic_watchers:
            raise NotSupportedError(f"{session.peer} has no watchers of topics")
        if session is not self._session or not session.features.supports_topic_watcher_reconcile:
            self._end_watch()
            self._id = self._lookup.pool.new_watcher_id()
            session.attach_watcher(self._id, self)
        watcher_id = self._id

        def make(request_id: int) -> pb.CommandWatchTopicList:
            return pb.CommandWatchTopicList(
                namespace=self._pattern.namespace,
                request_id=request_id,
                watcher_id=watcher_id,
                topics_pattern=self._pattern.path,
                topics_hash=topics_hash(self._reported),
            )

        timeout_s = self._lookup.pool.settings.operation_timeout_s
        try:
            answer: pb.CommandWatchTopicListSuccess = await session.ask(
                make, f"watch topics of {self._pattern.namespace}", timeout_s
            )
        except BaseException:
            # It may come about after all, and nobody would know of it.
            self._session = session
            self._end_watch()
            raise
        if session.closed:
            raise NotConnected(f"the connection to {session.peer} has ended")
        self._session = session
        if answer.topics_hash != topics_hash(self._reported):
            self._update(set(map(text, answer.topic)))

    def on_topics_changed(self, update: pb.CommandWatchTopicUpdate) -> None:
        reported = (self._reported - set(map(text, update.deleted_topics))) | set(
            map(text, update.new_topics)
        )
        if topics_hash(reported) == update.topics_hash:
            self._update(reported)
            return
        self._is_inconsistent = True
        if self._rewatch_task is None or self._rewatch_task.done():
            self._rewatch_task = self._lookup.pool.loop.create_task(self._watch_again())

    async def _watch_again(self) -> None:
        """An update did not add up."""
        while self._is_inconsistent and self._session is not None:
            self._is_inconsistent = False
            try:
                await self._watch(self._session)
            except PulsarException as error:
                log.info("%s: the watch is begun anew: %s", self._pattern.path, error)
                self._attachment.again()

    def _update(self, reported: set[str]) -> None:
        """The watch knows of these; what else is known, the list has told."""
        added, removed = reported - self._reported, self._reported - reported
        self._reported = reported
        names = (self._names - removed) | set(filter(self._pattern.matches, added))
        if names != self._names:
            self._names = names
            self._hash = ""  # the next list is to be a whole one
            self._change_event.set()

    def on_lost(self, error: Exception) -> None:
        if self._session is not None:
            self._session = None
            self._attachment.again()

    def _on_refused(self, error: Exception) -> None:
        """No watch here; the list is asked for in any case."""
        log.info("%s: topics are listed, not watched: %s", self._pattern.path, error)
