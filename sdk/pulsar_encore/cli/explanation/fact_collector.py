"""Collect the facts about one message: from the web service, the letter topics and the workers.

Nothing here creates a topic, takes a message or changes a subscription.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...admin import InternalStats, TopicStats, WebService
from ...client import Client
from ...deadletters import printable
from ...deadletters.dead_letter_topic import SUBSCRIPTION as REPLAY_SUBSCRIPTION
from ...errors import ConfigurationError, EncoreError, TransportError
from ...letters import property_names as names
from ...letters.id_text import parse_id
from ...letters.letter_reader import LetterFacts
from ...message import Message, raw_of
from ...values.letter_topic_names import dead_topic_of_one, retry_topic_of
from ...values.topic_names import base_name, full_name, partition_of
from ..cluster_client import existing_partitions
from ..login import ClusterAccess
from .message_facts import CopyFacts, CopyKind, MessageFacts, PendingFacts
from .topic_scan import read_at, read_since
from .verdict import ORDERED_TYPES
from .worker_pending import pending_by_id, read_pending

_CLOCK_SKEW_MS: Final = 60_000  # publish times are those of the publishers' clocks
_MAX_TEXT: Final = 200
_MAX_COPIES: Final = 1000

CursorSource = tuple[InternalStats, TopicStats]


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A message and a subscription, and where to look.

    Attributes:
        letter_topics: Letter topics with names other than Java's.
        health: URLs of the health ports of workers.
    """

    message_id: str
    topic: str
    subscription: str
    letter_topics: Sequence[str] = ()
    health: Sequence[str] = ()


class FactCollector:
    """Asks all sources about one message."""

    def __init__(
        self, client: Client, cluster: ClusterAccess, web: WebService | None, question: Question
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._web = web
        self._subscription = question.subscription
        self._question = question
        self._id = parse_id(question.message_id)
        self._id_text = str(self._id)
        self._topic = full_name(question.topic)
        if self._topic.startswith("non-persistent:"):
            raise ConfigurationError(
                f"{self._topic} stores no messages, so there is nothing to explain: a "
                "non-persistent topic drops each message after its delivery"
            )
        self._asked_for = ""
        self._not_seen: list[str] = []
        self._cursors: dict[str, CursorSource | None] = {}
        self._pending: dict[tuple[str, str], PendingFacts] = {}
        self._asked_workers = False

    async def collect(self) -> MessageFacts:
        if self._web is None:
            self._not_seen.append(
                "the web service (--admin-url): acks and deliveries are not known"
            )
        await self._ask_workers()
        topic = await self._partition()
        entry = await self._read(topic)
        if self._follow(entry):
            topic = await self._partition()
            entry = await self._read(topic)
        original = self._original(topic, entry)
        copies = [original]
        since = (original.written_ms or 0) - _CLOCK_SKEW_MS
        letters = await self._letters(max(0, since))
        if len(letters) >= _MAX_COPIES:
            self._not_seen.append(f"more than {_MAX_COPIES} letters of this message")
        dead_ids = {each.id for each in letters if each.kind == "dead"}
        copies += letters
        if dead_ids and topic is not None:
            first = min(each.written_ms or 0 for each in letters)
            copies += await self._replayed(dead_ids, max(0, first - _CLOCK_SKEW_MS))
        copies[1:] = sorted(copies[1:], key=lambda each: each.written_ms or 0)
        copies[-1] = await self._with_acks(copies[-1])
        copies[0] = await self._with_acks(copies[0])
        return MessageFacts(
            subscription=self._subscription,
            copies=tuple(copies),
            topic_exists=topic is not None,
            not_seen=tuple(self._not_seen),
            asked_workers=self._asked_workers,
            asked_for=self._asked_for,
        )

    async def _partition(self) -> str | None:
        """Return the topic or partition of the id; None if the topic does not exist."""
        try:
            partitions = await existing_partitions(self._client, self._cluster, self._topic)
        except TransportError as error:
            if error.result != "TopicNotFound":
                raise
            return None
        number = self._id.partition()
        if partition_of(partitions[0]) < 0 or partition_of(self._topic) >= 0:
            return partitions[0]
        matching = [each for each in partitions if partition_of(each) == number]
        if not matching:
            raise ConfigurationError(
                f"{self._topic} has {len(partitions)} partitions, and none of them is {number}: "
                "write the id as ledger:entry:partition"
            )
        return matching[0]

    async def _read(self, topic: str | None) -> list[Message]:
        return [] if topic is None else await read_at(self._client, topic, self._id)

    def _follow(self, entry: list[Message]) -> bool:
        """Turn to the original if the user named one of its letters, or its replay.

        Logs of workers and `dlq ls` show such ids. Letters name the original only, so the story of
        a replayed message would end with its ack, also if it was dead-lettered again.
        """
        if not entry:
            return False
        letter = LetterFacts(entry[min(max(0, self._id.batch_index()), len(entry) - 1)])
        get = letter.properties.get
        at_home = letter.real_topic == base_name(self._topic)
        if at_home and names.REPLAYED_FROM not in letter.properties:
            return False
        if not letter.real_topic:
            return False
        if get(names.REAL_SUBSCRIPTION, self._subscription) != self._subscription:
            return False
        try:
            origin = parse_id(get(names.ORIGIN_MESSAGE_ID, ""))
        except ConfigurationError:
            return False
        self._asked_for = f"{self._id_text} of {self._topic}"
        self._id, self._id_text = origin, str(origin)
        self._topic = letter.real_topic
        return True

    def _original(self, topic: str | None, entry: list[Message]) -> CopyFacts:
        found = CopyFacts(kind="original", topic=topic or self._topic, id=self._id_text)
        if not entry:
            return found
        size = max(each.message_id().batch_size for each in entry)
        index = self._id.batch_index()
        if index < 0 and size > 1:
            self._not_seen.append(
                f"which message of the batch of {size} is meant: write {self._id_text}:index"
            )
        return replace(
            found,
            written_ms=entry[0].publish_timestamp(),
            batch_size=size,
            stored=True,
            exists=index < max(size, 1),
            due_ms=_deliver_at(entry[0]),
        )

    async def _letters(self, since_ms: int) -> list[CopyFacts]:
        until = _now_ms()
        found: list[CopyFacts] = []
        searched = 0
        for name, kind in self._letter_topics().items():
            try:
                partitions = await existing_partitions(self._client, self._cluster, name)
            except TransportError as error:
                if error.result != "TopicNotFound":
                    self._not_seen.append(f"{name} ({_reason(error)}): it may hold a letter")
                continue
            searched += 1
            for partition in partitions:
                async for message in read_since(self._client, partition, since_ms, until):
                    letter = self._letter(message, partition, kind)
                    if letter is not None and len(found) < _MAX_COPIES:
                        found.append(letter)
        if not searched:
            self._not_seen.append(
                "letter topics: none with Java's names exists; letters in others need "
                "--letter-topic"
            )
        return found

    def _letter_topics(self) -> dict[str, CopyKind]:
        base, subscription = base_name(self._topic), self._subscription
        topics: dict[str, CopyKind] = {
            retry_topic_of([base], subscription): "retry",
            dead_topic_of_one(base, subscription): "dead",
        }
        number = self._id.partition()
        if number >= 0:
            topics[dead_topic_of_one(f"{base}-partition-{number}", subscription)] = "dead"
        for each in self._question.letter_topics:
            topics[full_name(each)] = "retry" if base_name(each).endswith("-RETRY") else "dead"
        return topics

    def _letter(self, message: Message, topic: str, kind: CopyKind) -> CopyFacts | None:
        facts = LetterFacts(message)
        get = facts.properties.get
        if not self._is_origin(get(names.ORIGIN_MESSAGE_ID, "")):
            return None
        if facts.real_topic and facts.real_topic != base_name(self._topic):
            return None
        if get(names.REAL_SUBSCRIPTION, self._subscription) != self._subscription:
            return None
        delay = _number(get(names.DELAY_TIME))
        attempt = (
            get(names.ATTEMPTS) or get(names.PARKED_LOOKS) or get(names.RECONSUME_TIMES)
            if kind == "dead"
            else get(names.PARKED_LOOKS) or get(names.RECONSUME_TIMES)
        )
        reason = ": ".join(filter(None, (facts.error_class, facts.error_message)))
        return CopyFacts(
            kind=kind,
            topic=topic,
            id=facts.id,
            written_ms=facts.written_ms,
            stored=True,
            batch_size=message.message_id().batch_size,
            due_ms=facts.written_ms + delay if kind == "retry" and delay is not None else None,
            attempt=_number(attempt),
            reason=printable(reason, _MAX_TEXT),
        )

    def _is_origin(self, text: str) -> bool:
        # Letters of chunked messages name both ends, and the user may have given the last only.
        last = text.rpartition(";")[2]
        if self._id_text in (text, last):
            return True
        return self._id.batch_index() < 0 and last.startswith(f"{self._id_text}:")

    async def _replayed(self, dead_ids: set[str], since_ms: int) -> list[CopyFacts]:
        found: list[CopyFacts] = []
        partitions = await existing_partitions(self._client, self._cluster, base_name(self._topic))
        for partition in partitions:
            found += [
                _replayed_copy(message, partition)
                async for message in read_since(self._client, partition, since_ms, _now_ms())
                if LetterFacts(message).properties.get(names.REPLAYED_FROM) in dead_ids
            ]
        return found

    async def _with_acks(self, copy: CopyFacts) -> CopyFacts:
        copy = replace(copy, pending=self._pending.get((copy.topic, copy.id)))
        if self._web is None:
            return copy
        if copy.topic not in self._cursors:
            self._cursors[copy.topic] = await self._cursor_source(copy.topic)
        source = self._cursors[copy.topic]
        if source is None:
            return copy
        subscription = REPLAY_SUBSCRIPTION if copy.kind == "dead" else self._subscription
        return with_cursor(copy, subscription, *source)

    async def _cursor_source(self, topic: str) -> CursorSource | None:
        assert self._web is not None
        try:
            return await self._web.internal_stats(topic), await self._web.stats(topic)
        except TransportError as error:
            if error.result != "TopicNotFound":
                self._not_seen.append(f"acks of {topic} ({_reason(error)})")
            return None

    async def _ask_workers(self) -> None:
        if not self._question.health:
            self._not_seen.append(
                "the workers (--health): whether one has it in flight or waiting is not known"
            )
        for url in self._question.health:
            try:
                self._pending |= pending_by_id(await read_pending(url))
                self._asked_workers = True
            except TransportError as error:
                self._not_seen.append(f"a worker: {_reason(error)}")


def with_cursor(
    copy: CopyFacts, subscription: str, ledgers: InternalStats, stats: TopicStats
) -> CopyFacts:
    """Return the copy with its acks and deliveries on one subscription."""
    message_id = parse_id(copy.id)
    at = (message_id.ledger_id(), message_id.entry_id())
    known = {each.id for each in ledgers.ledgers}
    published = copy.stored or at <= ledgers.last
    exists = copy.exists and (copy.stored or not published or ledgers.may_have_had(*at))
    stored = copy.stored or (exists and published and at[0] in known)
    cursor = ledgers.cursors.get(subscription)
    live = stats.subscriptions.get(subscription)
    consumers = () if live is None else live.consumers
    read = None if cursor is None else cursor.read_position
    kind = "" if live is None else live.type
    is_ordered = kind in ORDERED_TYPES
    ignores_delays = is_ordered or (live is not None and live.consumers and not live.delayed)
    return replace(
        copy,
        exists=exists,
        due_ms=None if copy.kind != "retry" and ignores_delays else copy.due_ms,
        subscription_type=kind,
        stored=stored,
        published=published,
        subscribed=cursor is not None,
        acked=None if cursor is None else cursor.is_acked(*at),
        delivered=None if read is None else at < read,
        consumers=tuple(
            printable(
                f"{each.name} at {each.address}"
                + ("" if is_ordered else f" ({each.unacked} unacked)"),
                _MAX_TEXT,
            )
            for each in consumers
            if each.unacked or is_ordered
        ),
        connected=len(consumers),
    )


def _replayed_copy(message: Message, topic: str) -> CopyFacts:
    return CopyFacts(
        kind="replayed",
        topic=topic,
        id=str(message.message_id()),
        written_ms=message.publish_timestamp(),
        stored=True,
        batch_size=message.message_id().batch_size,
        due_ms=_deliver_at(message),
    )


def _deliver_at(message: Message) -> int | None:
    """Return the end of the delay that the publisher asked for, in ms since the epoch."""
    metadata = getattr(raw_of(message), "entry_metadata", None)  # of the native transport only
    return getattr(metadata, "deliver_at_time", 0) or None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) < 16 else None


def _now_ms() -> int:
    return round(time.time() * 1000)


def _reason(error: EncoreError) -> str:
    return printable(str(error), _MAX_TEXT)
