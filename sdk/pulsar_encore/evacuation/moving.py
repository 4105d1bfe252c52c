"""Evacuation: move waiting messages of a state directory to retry letter topics.

Owns `evacuate`. For each message the steps are: read it, publish a copy, ack the original, remove
its record from the state. Invariants: an ack follows the receipt of the copy, and a record is
removed after the ack is confirmed. A crash between two steps leaves a duplicate at worst, and the
next run continues. The subscription is made on the retry letter topic before the first copy is sent
there, because a topic without a subscription keeps nothing. A cancelled or failed run waits for the
copies in flight.

The acks are sent by a Shared consumer that requests no messages. It acks by id messages that the
broker did not send to it, and this changes no delivery count.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from ..client import Client, transport_of
from ..closing import to_its_end
from ..consumer import Consumer
from ..consumer.forwarding.bounded_copy import BoundedCopy
from ..consumer.forwarding.copying import Destination, ensure_subscription
from ..core.entry import EntryKey
from ..core.fingerprint import NO_FINGERPRINT, differ, fingerprint_of
from ..errors import (
    ClosedError,
    EncoreError,
    NotSupportedError,
    StateInUseError,
    StoreError,
    TransportError,
    UnreadableError,
)
from ..exceptions import ConsumerBusy
from ..ids import MessageId
from ..letters.form import form_of
from ..letters.id_text import id_text
from ..letters.writing import Author, parked_nack
from ..message import Message, raw_of
from ..options import ConsumerType, InitialPosition
from ..outgoing import Outgoing
from ..state.rocks import RocksStore, Source
from ..timer import wall_now_ms
from ..topic_names import base_name
from ..version import VERSION
from .comparing import Comparison
from .entries import NEAR, Entries
from .looking import waiting_id
from .plan import SourcePlan, evacuation_plan
from .report import EvacuationReport, EvacuationStoppedError

#: Messages in flight: copies without a receipt, or originals whose acks are not confirmed.
MAX_IN_FLIGHT: Final = 500
_BURST: Final = 100  # entries in a turn of the loop
_ACK_GROUP_MS: Final = 10
_ACK_S: Final = 60.0
_LOOK_AHEAD: Final = 1000  # entries
_MAX_FAILURES: Final = 20  # in a row, of one source: its retry-letter topic takes none
_NO_CLUSTER: Final = frozenset({"ConnectError", "Timeout", "AuthenticationError"})
_CHUNKED: Final = (
    "it is a chunked message, or none: only a consumer that was sent all of its chunks can ack "
    "them; the next one of the subscription gets it at once"
)
_GONE: Final = "its topic has it no more"
_NOTHING_THERE: Final = (
    "the cluster has no message of its topic that waits: check the URL; if they were deleted, run "
    "it again with --forget-missing (forget_missing=True)"
)
_OTHER: Final = (
    "its id is that of another message now, which stays: the topic was deleted and made again, or "
    "is one of another cluster"
)
_PART_OF_A_BATCH: Final = (
    "it is part of a batch, and the stock transport acks no part of one that it was not sent: use "
    "the native transport"
)

OnProgress: TypeAlias = Callable[[EvacuationReport], None]
"""Called after each entry with the report, the same object each time."""


async def evacuate(
    client: Client,
    path: str | os.PathLike[str],
    *,
    topic: str | None = None,
    subscription: str | None = None,
    retry_topic: str | None = None,
    crypto_key_reader: Any = None,
    text_keys: bool = False,
    forget_missing: bool = False,
    report: EvacuationReport | None = None,
    on_progress: OnProgress | None = None,
) -> EvacuationReport:
    """Hand what waits in a state directory to the retry-letter topics of its subscriptions.

    Each message is read from its topic, published to the retry-letter topic to be delivered when it
    is due and with its attempts counted on, then acked on its subscription, then let go of by the
    state. Whoever consumes with ``retry_enable=True`` gets it. A message that its topic has no more
    is counted and let go of; one that cannot be copied stays, and holds up no other. Killed or
    failed, run it again: at worst a message is there twice.

    The directory must have no live owner. Consumers of the subscription elsewhere have been given
    what waits when this host's went: stop them first, or what they are at is done twice.

    Args:
        client: Open. On the stock transport parts of batches cannot be moved.
        path: The state directory.
        topic: Only this topic, with its partitions, or this partition.
        subscription: Only this subscription.
        retry_topic: Where everything goes; None takes `<topic>-<subscription>-RETRY` of each. A
            consumer of several topics reads that of the first one by name: name it.
        crypto_key_reader: For encrypted messages.
        text_keys: Keys are text, also where they read as base64 of bytes (stock transport).
        forget_missing: Remove the records of a topic of which the cluster has none of the messages
            that wait. By default they stay and are reported as refused, because a wrong cluster
            looks the same as a topic that was deleted.
        report: Kept up to date and returned; None makes one.
        on_progress: See `OnProgress`.

    Raises:
        StateInUseError: A live process has the directory; the text says which.
        StateFormatError: There is no state in it, or a newer version's.
        StateDamagedError: Files are lost or damaged.
        StoreError: The system does not let it be opened or written.
        StateMismatchError: What waits is of another cluster, as the messages show that have its
            ids; nothing of that topic was acked or let go of.
        ConfigurationError: Nothing is kept of the topic or subscription; `rocksdict` is missing.
        EvacuationStoppedError: The cluster was lost on the way, or the client closed.
        TransportError: The cluster could not be reached.
    """
    report = EvacuationReport() if report is None else report
    options = _Options(crypto_key_reader, text_keys, forget_missing, on_progress)
    plans = await asyncio.to_thread(
        evacuation_plan, path, topic=topic, subscription=subscription, retry_topic=retry_topic
    )
    now = wall_now_ms(asyncio.get_running_loop())
    store = await RocksStore.open(path, wall_now_ms=now, tidies=False)
    try:
        store.claim()
        if not store.alone:
            raise _used_here(path)
        report.waiting = sum(plan.waiting for plan in plans)
        for plan in plans:
            if plan.waiting:
                source = store.source(
                    plan.topic, plan.subscription, plan.consumer, count_attempts="lazy"
                )
                try:
                    await _Moving(client, store, source, plan, report, options).run()
                finally:
                    source.close()
    except TransportError as error:
        if not report.moved and not report.gone:
            raise
        raise _stopped(error, report) from error
    except ClosedError as error:
        raise _stopped(error, report) from error
    finally:
        await to_its_end(store.aclose())
    return report


class _Options(NamedTuple):
    """Arguments of `evacuate` that apply to every topic."""

    crypto_key_reader: Any
    text_keys: bool
    forget_missing: bool
    on_progress: OnProgress | None


class _LostTopicError(EncoreError):
    """No copy gets through to a retry-letter topic."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What of an entry is to be moved.

    Attributes:
        key: The entry.
        dues: Until when its messages wait, by batch index, -1 for all of them.
        fingerprint: Which entry it is (`core.fingerprint`); 0 where that is unknown.
    """

    key: EntryKey
    dues: dict[int, int]
    fingerprint: int

    def is_other(self, messages: Sequence[Message]) -> bool:
        """True if the messages read at its id are of another entry."""
        return differ(self.fingerprint, fingerprint_of(raw_of(messages[0])))

    def place(self, message: Message) -> int | None:
        """Under which index a message of the entry waits; None for one that does not."""
        index = message.message_id().batch_index()
        if index in self.dues:
            return index
        if -1 in self.dues:
            return -1
        return 0 if index < 0 and 0 in self.dues else None

    def ids(self, topic: str) -> list[str]:
        """Its messages as they are named to people."""
        return [waiting_id(topic, (*self.key, index)) for index in sorted(self.dues)]


async def check_unused(path: str | os.PathLike[str]) -> None:
    """Nobody has the directory: who does may be about to nack, though nothing waits yet.

    Raises:
        StateInUseError: A live process has it, or this one.
        StoreError: It cannot be opened; see `evacuate`.
    """
    now = wall_now_ms(asyncio.get_running_loop())
    store = await RocksStore.open(path, wall_now_ms=now, tidies=False)
    try:
        if not store.alone:
            raise _used_here(path)
    finally:
        await store.aclose()


def _used_here(path: str | os.PathLike[str]) -> StateInUseError:
    return StateInUseError(
        f"consumers of this process have the state in {os.fspath(path)}: close them first"
    )


class _Moving:
    """Moves the waiting messages of one topic or partition."""

    def __init__(
        self,
        client: Client,
        store: RocksStore,
        source: Source,
        plan: SourcePlan,
        report: EvacuationReport,
        options: _Options,
    ) -> None:
        self._client = client
        self._transport = transport_of(client)
        self._store = store
        self._source = source
        self._plan = plan
        self._report = report
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._author = Author(
            subscription=plan.subscription,
            consumer_name="",
            version=VERSION,
            refuse_byte_keys=not (self._transport.capabilities.binary_keys or options.text_keys),
        )
        self._consumer: Consumer | None = None
        self._copies = BoundedCopy(
            self._transport,
            options.crypto_key_reader,
            limit=MAX_IN_FLIGHT,
            max_failures=_MAX_FAILURES,
            max_pending_messages=MAX_IN_FLIGHT,
            block_if_queue_full=True,
        )

    async def run(self) -> None:
        """Move every message that can be moved.

        Raises:
            TransportError: The cluster cannot be reached.
            ClosedError: The client was closed.
            StoreError: The state cannot be written.
        """
        parts = await to_its_end(asyncio.to_thread(_parts, self._source))
        if await self._topic_is_there():
            await self._move(parts)
        else:
            await self._nothing_there(parts)

    async def _move(self, parts: Sequence[_Part]) -> None:
        # Records without a fingerprint say nothing of the cluster, so their entries come last.
        parts = sorted(parts, key=lambda part: not part.fingerprint)
        named = sum(part.fingerprint != NO_FINGERPRINT for part in parts)
        comparison = Comparison[_Part](self._plan.topic, named)
        done = 0
        lost: EncoreError | None = None
        try:
            async with AsyncExitStack() as open_:
                open_.push_async_callback(self._copies.close)
                open_.push_async_callback(self._end)
                entries = Entries(self._client, self._plan.topic, self._options.crypto_key_reader)
                open_.push_async_callback(entries.close)
                open_.push_async_callback(self._copies.drain)
                for at, part in enumerate(parts):
                    if at % _BURST == 0:
                        await asyncio.sleep(0)  # of what is gone nothing else suspends
                    if named and at == named:
                        if not comparison.sure:
                            missing = [*comparison.doubted(), *parts[at:]]
                            await self._nothing_there(missing)
                            return
                        # Here begin the records without a fingerprint. Their ids start from the
                        # lowest again, and a reader cannot go back.
                        await entries.close()
                    messages = await entries.of(part.key, partial(_run, parts, at))
                    other = bool(messages) and part.is_other(messages or ())
                    if other or messages == []:
                        reason = _OTHER if other else _GONE
                        for gone, why in comparison.missing(part, reason, other=other):
                            self._let_go(gone, why)
                        if comparison.sure:
                            done = at + 1
                        continue
                    if messages:
                        for gone, why in comparison.same():
                            self._let_go(gone, why)
                    if not messages or messages[0].message_id().first_chunk:
                        done = at + 1
                        self._stay([part], _CHUNKED)
                        continue
                    if not await self._copies.room(len(messages)):
                        break
                    if self._consumer is None:  # not before it is known to be the right cluster
                        self._consumer = await self._subscribe()
                        await ensure_subscription(
                            self._transport, self._plan.retry_topic, self._plan.subscription
                        )
                    done = at + 1
                    moving = self._move_part(self._consumer, part, messages)
                    self._copies.begin(moving, messages=len(messages))
                else:
                    await self._nothing_there(comparison.doubted())
        except TransportError as error:
            if error.result in _NO_CLUSTER:
                raise
            lost = error
        failure = self._copies.failure
        if isinstance(failure, _LostTopicError):
            lost = lost or failure
        if lost is not None:
            self._stay(parts[done:], str(lost))
        if failure is not None and not isinstance(failure, _LostTopicError):
            raise failure

    async def _nothing_there(self, parts: Sequence[_Part]) -> None:
        """No message shows that the cluster is the right one, and these are not there."""
        for at, part in enumerate(parts):
            if at % _BURST == 0:
                await asyncio.sleep(0)
            if self._options.forget_missing:
                self._let_go(part, "the cluster has no message of its topic that waits")
            else:
                self._stay([part], _NOTHING_THERE)

    # Of one entry

    async def _move_part(
        self, consumer: Consumer, part: _Part, messages: Sequence[Message]
    ) -> None:
        try:
            form_of(messages[0])
        except NotSupportedError as error:  # of a batch that is a secret, nobody sees the parts
            return self._stay([part], str(error))
        except UnreadableError:
            pass  # of the one message; it is told with it
        chosen = [each for each in messages if part.place(each) is not None]
        absent = part.dues.keys() - {part.place(each) for each in chosen}
        if absent:
            missing = replace(part, dues={each: part.dues[each] for each in absent})
            self._let_go(missing, "its entry has no such message")
        whole = len(chosen) == len(messages) >= messages[0].message_id().batch_size
        if not whole and not self._transport.capabilities.ack_unseen_index:
            left = {at: due for at, due in part.dues.items() if at not in absent}
            stays = replace(part, dues=left)
            return self._stay([stays], _PART_OF_A_BATCH)
        outcomes = await asyncio.gather(
            *(self._send(part, each) for each in chosen), return_exceptions=True
        )
        moved: list[Message] = []
        unsent: set[int | None] = set()
        for message, failure in zip(chosen, outcomes, strict=True):
            if failure is None:
                moved.append(message)
                continue
            if not isinstance(failure, EncoreError) or isinstance(failure, ClosedError):
                raise failure
            self._report.refuse(self._plan.topic, [id_text(message.message_id())], str(failure))
            unsent.add(part.place(message))
        if moved:
            await self._ack(consumer, moved, whole=whole and not unsent)
            places = {part.place(each) for each in moved} - unsent
            self._forget(part, [each for each in places if each is not None])
            self._report.move(self._plan.retry_topic, len(moved))
        self._progress()
        if self._copies.exhausted:  # the destinations differ in form and share the topic
            last = next(iter(self._copies.exhausted.values()))
            raise _LostTopicError(
                f"{self._plan.retry_topic} took none of {_MAX_FAILURES} in a row: {last}"
            )

    async def _send(self, part: _Part, message: Message) -> None:
        destination = Destination(self._plan.retry_topic, form_of(message))
        await self._copies.publish(destination, self._copy(part, message))

    def _copy(self, part: _Part, message: Message) -> Outgoing:
        place = part.place(message)
        assert place is not None
        due_ms = part.dues[place]
        now = wall_now_ms(self._loop)
        known = self._source.records.recall(*part.key, message.message_id().batch_index())
        return parked_nack(
            message,
            self._author,
            attempt=max(1, known.attempts if known is not None else 0),
            delay_ms=max(0, due_ms - now),
            deliver_at=max(due_ms, now),
            first_failed=known.first_ms if known is not None and known.attempts else None,
            from_retry_topic=self._plan.from_retry_topic,
        )

    async def _ack(self, consumer: Consumer, moved: Sequence[Message], *, whole: bool) -> None:
        ids = [each.message_id() for each in moved]
        if whole and ids[0].batch_size:
            first = ids[0]
            ids = [
                MessageId(first.partition(), first.ledger_id(), first.entry_id(), topic=first.topic)
            ]
        try:
            async with asyncio.timeout(_ACK_S):
                await consumer.acknowledge(ids)
        except TimeoutError as error:
            raise TransportError(
                f"acks on {self._plan.topic} are not confirmed in {_ACK_S:g} s: check the broker",
                result="Timeout",
                retryable=True,
            ) from error

    # The state

    def _forget(self, part: _Part, places: Sequence[int]) -> None:
        ledger, entry = part.key
        if -1 in places:
            self._source.records.settled(ledger, entry)
            self._store.flush()
        else:
            self._source.records.ends_waiting((ledger, entry, each) for each in places)
            self._source.records.settled(ledger, entry, sum(1 << each for each in places))
        if self._store.trouble is not None:
            raise StoreError(
                f"the state cannot be written: {self._store.trouble}. What was moved may be moved "
                "once more by the next run"
            )

    def _let_go(self, part: _Part, reason: str) -> None:
        self._forget(part, list(part.dues))
        self._report.lose(self._plan.topic, part.ids(self._plan.topic), reason)
        self._progress()

    def _stay(self, parts: Sequence[_Part], reason: str) -> None:
        ids = (each for part in parts for each in part.ids(self._plan.topic))
        self._report.refuse(self._plan.topic, ids, reason)
        self._progress()

    def _progress(self) -> None:
        if self._options.on_progress is not None:
            self._options.on_progress(self._report)

    # The broker

    async def _topic_is_there(self) -> bool:
        topic = self._plan.topic
        try:
            names = await self._transport.topic_partitions(base_name(topic), create=False)
        except TransportError as error:
            if error.result == "TopicNotFound":
                return False
            raise
        return topic in names

    async def _subscribe(self) -> Consumer:
        plan = self._plan
        capabilities = self._transport.capabilities
        try:
            return await self._client.subscribe(
                plan.topic,
                plan.subscription,
                ConsumerType.Shared,
                # Nothing is asked for; of the stock library that is one message at least.
                receiver_queue_size=0 if capabilities.ack_unseen_index else 1,
                initial_position=InitialPosition.Latest,
                batch_index_ack_enabled=True,
                ack_group_time_ms=_ACK_GROUP_MS,
                ack_receipt_enabled=capabilities.receipts,
            )
        except ConsumerBusy as error:
            raise ConsumerBusy(
                f"the subscription {plan.subscription!r} of {plan.topic} is in use by consumers "
                "of another type than Shared: stop them, and run it again"
            ) from error

    async def _end(self) -> None:
        if self._consumer is not None:
            await self._consumer.close()


def _parts(source: Source) -> list[_Part]:
    """What waits, by entry, in order."""
    return [
        _Part(key, record.dues_by_index(), record.fingerprint)
        for key, record in source.records.entries_waiting()
    ]


def _run(parts: Sequence[_Part], at: int) -> int:
    """How many entries are worth fetching from a part on: as far as the next is near."""
    first = last = parts[at].key
    for part in parts[at + 1 : at + 1 + _LOOK_AHEAD]:
        ledger, entry = part.key
        if ledger != last[0] or entry - last[1] > NEAR:
            break
        last = part.key
    return last[1] - first[1] + 1


def _stopped(error: EncoreError, report: EvacuationReport) -> EvacuationStoppedError:
    return EvacuationStoppedError(
        f"stopped after {report.moved} messages, {report.left} are left: {error}. Run it again to "
        "go on",
        report,
    )
