"""The topics that match a pattern, kept up to date.

A broker with WATCH_TOPIC_LIST reports each new topic at once. The list is also requested
periodically: not every broker has the command, and a watch covers neither non-persistent topics nor
patterns of more than 50 characters. After a reconnect, and after an update with an unexpected hash,
the watch is requested again: `docs/notes/wire-protocol.md#topic-lists`.
"""

from __future__ import annotations

import asyncio
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

LOG_NAME: Final = "pulsar_encore.lookup"

_MAX_PATTERN_CHARS: Final = 50  # `subscriptionPatternMaxLength`


class PatternWatch:
    """The topics that match a pattern, and their changes. The list is requested every
    `period_s`."""

    def __init__(
        self,
        lookup: Lookup,
        pattern: str,
        mode: RegexSubscriptionMode,
        period_s: float,
        excluded: tuple[str, ...] = (),
    ) -> None:
        self._lookup = lookup
        self._log = lookup.pool.settings.logger_of(LOG_NAME)
        self._pattern = NamePattern(pattern, excluded)
        self._mode = mode
        self._period_s = period_s
        self._names: set[str] = set()  # each partition by its own
        self._hash = ""
        self._change_event = asyncio.Event()
        self._schedule = lookup.make_round()
        self._refresh_due: asyncio.Task[None] | None = None
        # By the watch, in the broker's reading of the pattern.
        self._reported: set[str] = set()
        self._id = -1
        self._session: Session | None = None
        self._attachment = Attachment(
            lookup, pattern, self._watch, self._on_refused, find=lookup.pool.any_broker
        )
        self._rewatch_task: asyncio.Task[None] | None = None
        self._is_inconsistent = False

    async def first(self) -> list[str]:
        """Return the matching topics, each partition by its name, and begin to watch for
        changes."""
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
        """Wait for a change or the end of the period; return the matching topics as `first` does.

        Raises:
            PulsarException: if the list could not be fetched. A later call may succeed.
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
        """Wait for a change. Return False if the list is due before."""
        loop = self._lookup.pool.loop
        if self._refresh_due is None:  # else it runs: changes do not postpone the list
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

    def refresh_soon(self) -> None:
        """Request the list again soon, because its topics could not be used."""
        self._schedule.again()

    def notify(self) -> None:
        """Make `changed` return at once, because a removed topic may exist again."""
        self._change_event.set()

    async def stop(self) -> None:
        await self._attachment.stop()
        self._cancel_tasks()
        self._end_watch()

    def _end_watch(self) -> None:
        session, self._session = self._session, None
        if session is not None and not session.closed:
            session.detach_watcher(self._id)
            session.send(
                pb.CommandWatchTopicListClose(
                    watcher_id=self._id, request_id=session.requests.new_id()
                )
            )

    def abandon(self) -> None:
        """End the watch at once. The broker notices when the connection ends."""
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
        # Topics that the watch reported meanwhile may be missing in the list, or deleted again: the
        # next list must be a full one.
        added = self._reported - reported
        self._names = set(filter(self._pattern.matches, (*listing.topics, *added)))
        self._hash = "" if added else listing.hash

    # The watch (`WatchHandler`)

    async def _watch(self, session: Session) -> None:
        """Ask a broker to watch; also for its current list, after an inconsistent update."""
        if not session.features.supports_topic_watchers:
            raise NotSupportedError(f"{session.peer} has no watchers of topics")
        if session is not self._session or not session.features.supports_topic_watcher_reconcile:
            self._end_watch()
            self._id = next(self._lookup.pool.watcher_ids)
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
            answer: pb.CommandWatchTopicListSuccess = await session.request(
                make, f"watch topics of {self._pattern.namespace}", timeout_s
            )
        except BaseException:
            # The broker may still begin the watch.
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
        while self._is_inconsistent and self._session is not None:
            self._is_inconsistent = False
            try:
                await self._watch(self._session)
            except PulsarException as error:
                self._log.info(
                    "%s: the watch of topics starts again: %s", self._pattern.path, error
                )
                self._attachment.again()

    def _update(self, reported: set[str]) -> None:
        """Take over the topics of the watch. Keep topics that only the list reported."""
        added, removed = reported - self._reported, self._reported - reported
        self._reported = reported
        names = (self._names - removed) | set(filter(self._pattern.matches, added))
        if names != self._names:
            self._names = names
            self._hash = ""  # the next list must be a full one
            self._change_event.set()

    def on_lost(self, error: Exception) -> None:
        if self._session is not None:
            self._session = None
            self._attachment.again()

    def _on_refused(self, error: Exception) -> None:
        self._log.info("%s: topics are listed, not watched: %s", self._pattern.path, error)
