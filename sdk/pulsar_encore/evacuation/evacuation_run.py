"""Moving what waits to retry-letter topics: read, publish a copy, ack, let go of; in this order.

Owns `evacuate`. Invariants: an ack follows the copy's receipt, and the state lets go after the ack
is confirmed; so a crash between any two leaves a double at worst, and the next run goes on. The
retry-letter topic has the subscription before anything is sent there, for a topic without one keeps
nothing. A cancelled or failed run waits for what is under way.

The subscription is joined by a Shared consumer that asks for no message: it acks by id what nobody
sent it, which takes part in nothing else and counts no delivery.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from ..client import Client, transport_of
from ..consumer.consumer import Consumer
from ..consumer.forwarding.copy_options import producer_options
from ..core.entry import EntryKey
from ..core.fingerprint import NO_FINGERPRINT, differ, fingerprint_of
from ..errors import (
    ClosedError,
    ConsumerBusy,
    EncoreError,
    NotSupportedError,
    StateInUseError,
    StoreError,
    TransportError,
    UnreadableError,
)
from ..eventloop.alarm import wall_now_ms
from ..eventloop.close_once import to_its_end
from ..letters.id_text import id_text
from ..letters.letter_form import LetterForm, form_of
from ..letters.letter_writer import LetterAuthor, parked_nack
from ..message import Message, raw_of
from ..options import ConsumerType, InitialPosition, Subscription
from ..state.rocks import RocksStore, TopicStore
from ..transport.interface import TransportProducer
from ..values.message_id import MessageId
from ..values.outgoing_message import OutgoingMessage
from ..values.topic_names import base_name
from ..version import VERSION
from .entry_comparison import Comparison
from .evacuation_errors import EvacuationStoppedError
from .evacuation_plan import TopicPlan, evacuation_plan
from .evacuation_report import EvacuationReport
from .state_inspection import waiting_id
from .topic_entries import NEAR, TopicEntries

#: Messages under way at once: copies sent, or acks that are not confirmed.
UNDER_WAY: Final = 500
_BURST: Final = 100  # entries in a turn of the loop
_ACK_GROUP_MS: Final = 10
_ACK_S: Final = 60.0
_LOOK_AHEAD: Final = 1000  # entries
_MOST_FAILURES: Final = 20  # in a row, of one source: its retry-letter topic takes none
# Failures of one message; its topic is as good as before.
_OF_THE_MESSAGE: Final = frozenset({"MessageTooBig", "InvalidMessage", "CryptoError"})
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
                move = _Moving(client, store, plan, report, crypto_key_reader, text_keys)
                await move.run(on_progress, forget_missing)
    except TransportError as error:
        if not report.moved and not report.gone:
            raise
        raise _stopped(error, report) from error
    except ClosedError as error:
        raise _stopped(error, report) from error
    finally:
        await to_its_end(store.aclose())
    return report


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
    """What waits of one source."""

    def __init__(
        self,
        client: Client,
        store: RocksStore,
        plan: TopicPlan,
        report: EvacuationReport,
        crypto_key_reader: Any,
        text_keys: bool,
    ) -> None:
        self._client = client
        self._transport = transport_of(client)
        self._store = store
        self._plan = plan
        self._report = report
        self._crypto_key_reader = crypto_key_reader
        self._loop = asyncio.get_running_loop()
        self._author = LetterAuthor(
            subscription=plan.subscription,
            consumer_name="",
            version=VERSION,
            refuse_byte_keys=not (self._transport.capabilities.binary_keys or text_keys),
        )
        self._consumer: Consumer | None = None
        self._producers: dict[LetterForm, TransportProducer] = {}
        self._blocked: dict[LetterForm, EncoreError] = {}  # why there is no producer
        self._making = asyncio.Lock()
        self._under_way: dict[asyncio.Task[None], int] = {}
        self._failures = 0  # in a row
        self._last_error: EncoreError | None = None
        self._failure: BaseException | None = None
        self._on_progress: OnProgress | None = None

    async def run(self, on_progress: OnProgress | None, forget_missing: bool) -> None:
        """Move all of it, as far as that is possible.

        Args:
            on_progress: See `OnProgress`.
            forget_missing: See `evacuate`.

        Raises:
            TransportError: The cluster cannot be reached.
            ClosedError: The client was closed.
            StoreError: The state cannot be written.
        """
        self._on_progress = on_progress
        plan = self._plan
        source = self._store.source(
            plan.topic, plan.subscription, plan.consumer, count_attempts="lazy"
        )
        try:
            parts = await to_its_end(asyncio.to_thread(_parts, source))
            if not await self._topic_is_there():
                await self._nothing_there(source, parts, forget_missing)
                return
            await self._move(source, parts, forget_missing)
        finally:
            source.close()

    async def _move(self, source: TopicStore, parts: Sequence[_Part], forget_missing: bool) -> None:
        # Records without a fingerprint say nothing of the cluster, so their entries come last.
        parts = sorted(parts, key=lambda part: not part.fingerprint)
        named = sum(part.fingerprint != NO_FINGERPRINT for part in parts)
        comparison = Comparison[_Part](self._plan.topic, named)
        done = 0
        try:
            async with AsyncExitStack() as open_:
                open_.push_async_callback(self._end)
                entries = TopicEntries(self._client, self._plan.topic, self._crypto_key_reader)
                open_.push_async_callback(lambda: entries.close())
                open_.push_async_callback(self._settle)
                for at, part in enumerate(parts):
                    if at % _BURST == 0:
                        await asyncio.sleep(0)  # of what is gone nothing else suspends
                    if named and at == named:
                        if not comparison.sure:
                            missing = [*comparison.doubted(), *parts[at:]]
                            await self._nothing_there(source, missing, forget_missing)
                            return
                        # The ids of records without a fingerprint begin here, from the lowest, and
                        # a reader cannot go back.
                        await entries.close()
                        entries = TopicEntries(
                            self._client, self._plan.topic, self._crypto_key_reader
                        )
                    messages = await entries.of(part.key, partial(_run, parts, at))
                    other = bool(messages) and part.is_other(messages or ())
                    if other or messages == []:
                        reason = _OTHER if other else _GONE
                        for gone, why in comparison.missing(part, reason, other=other):
                            self._let_go(source, gone, why)
                        if comparison.sure:
                            done = at + 1
                        continue
                    if messages:
                        for gone, why in comparison.same():
                            self._let_go(source, gone, why)
                    if not messages or messages[0].message_id().first_chunk:
                        done = at + 1
                        self._stay([part], _CHUNKED)
                        continue
                    await self._room(len(messages))
                    if self._failure is not None:
                        break
                    if self._consumer is None:  # not before it is known to be the right cluster
                        self._consumer = await self._subscribe()
                        await self._ensure_subscription()
                    done = at + 1
                    moving = self._move_part(source, self._consumer, part, messages)
                    task = self._loop.create_task(self._guarded(moving))
                    self._under_way[task] = len(messages)
                    task.add_done_callback(lambda task: self._under_way.pop(task, None))
                else:
                    await self._nothing_there(source, comparison.doubted(), forget_missing)
        except TransportError as error:
            if error.result in _NO_CLUSTER:
                raise
            self._stay(parts[done:], str(error))
            if self._failure is None or isinstance(self._failure, _LostTopicError):
                return
        finally:
            await to_its_end(self._close_producers())
        if isinstance(self._failure, _LostTopicError):
            self._stay(parts[done:], str(self._failure))
        elif self._failure is not None:
            raise self._failure

    async def _nothing_there(
        self, source: TopicStore, parts: Sequence[_Part], forget_missing: bool
    ) -> None:
        """No message shows that the cluster is the right one, and these are not there."""
        for at, part in enumerate(parts):
            if at % _BURST == 0:
                await asyncio.sleep(0)
            if forget_missing:
                self._let_go(source, part, "the cluster has no message of its topic that waits")
            else:
                self._stay([part], _NOTHING_THERE)

    async def _guarded(self, moving: Coroutine[Any, Any, None]) -> None:
        try:
            await moving
        except BaseException as error:
            if self._failure is None and not isinstance(error, asyncio.CancelledError):
                self._failure = error

    async def _room(self, messages: int) -> None:
        while self._under_way and sum(self._under_way.values()) + messages > UNDER_WAY:
            await asyncio.wait(list(self._under_way), return_when=asyncio.FIRST_COMPLETED)

    async def _settle(self) -> None:
        """Wait for what is under way, also when cancelled: it is half done."""
        while self._under_way:
            await to_its_end(_all_of(list(self._under_way)))

    # Of one entry

    async def _move_part(
        self, source: TopicStore, consumer: Consumer, part: _Part, messages: Sequence[Message]
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
            self._let_go(source, missing, "its entry has no such message")
        whole = len(chosen) == len(messages) >= messages[0].message_id().batch_size
        if not whole and not self._transport.capabilities.ack_unseen_index:
            left = {at: due for at, due in part.dues.items() if at not in absent}
            stays = replace(part, dues=left)
            return self._stay([stays], _PART_OF_A_BATCH)
        outcomes = await asyncio.gather(
            *(self._send(source, part, each) for each in chosen), return_exceptions=True
        )
        moved: list[Message] = []
        unsent: set[int | None] = set()
        for message, failure in zip(chosen, outcomes, strict=True):
            if failure is None:
                moved.append(message)
                self._failures = 0
            else:
                self._unsent(message, failure)
                unsent.add(part.place(message))
        if moved:
            await self._ack(consumer, moved, whole=whole and not unsent)
            places = {part.place(each) for each in moved} - unsent
            self._forget(source, part, [each for each in places if each is not None])
            self._report.move(self._plan.retry_topic, len(moved))
        self._progress()
        if self._failures >= _MOST_FAILURES:
            raise _LostTopicError(
                f"{self._plan.retry_topic} took none of {self._failures} in a row: "
                f"{self._last_error}"
            )

    async def _send(self, source: TopicStore, part: _Part, message: Message) -> None:
        producer = await self._producer(form_of(message))
        await producer.publish(self._copy(source, part, message))

    def _copy(self, source: TopicStore, part: _Part, message: Message) -> OutgoingMessage:
        place = part.place(message)
        assert place is not None
        due_ms = part.dues[place]
        now = wall_now_ms(self._loop)
        known = source.records.recall(*part.key, message.message_id().batch_index())
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

    def _unsent(self, message: Message, error: BaseException) -> None:
        if not isinstance(error, EncoreError) or isinstance(error, ClosedError):
            raise error
        if isinstance(error, TransportError) and error.result not in _OF_THE_MESSAGE:
            self._failures += 1
            self._last_error = error
        self._report.refuse(self._plan.topic, [id_text(message.message_id())], str(error))

    # The state

    def _forget(self, source: TopicStore, part: _Part, places: Sequence[int]) -> None:
        ledger, entry = part.key
        if -1 in places:
            source.records.settled(ledger, entry)
            self._store.flush()
        else:
            source.records.ends_waiting((ledger, entry, each) for each in places)
            source.records.settled(ledger, entry, sum(1 << each for each in places))
        if self._store.trouble is not None:
            raise StoreError(
                f"the state cannot be written: {self._store.trouble}. What was moved may be moved "
                "once more by the next run"
            )

    def _let_go(self, source: TopicStore, part: _Part, reason: str) -> None:
        self._forget(source, part, list(part.dues))
        self._report.lose(self._plan.topic, part.ids(self._plan.topic), reason)
        self._progress()

    def _stay(self, parts: Sequence[_Part], reason: str) -> None:
        ids = (each for part in parts for each in part.ids(self._plan.topic))
        self._report.refuse(self._plan.topic, ids, reason)
        self._progress()

    def _progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._report)

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

    async def _ensure_subscription(self) -> None:
        """What is sent to a topic without a subscription is kept for nobody."""
        plan = self._plan
        try:
            link = await self._transport.subscribe(
                Subscription(
                    topics=(plan.retry_topic,),
                    subscription_name=plan.subscription,
                    consumer_type=ConsumerType.Shared,
                    initial_position=InitialPosition.Earliest,
                    receiver_queue_size=1,
                )
            )
        except ConsumerBusy:
            return  # somebody reads it with another type: it is there
        await link.close()

    async def _producer(self, form: LetterForm) -> TransportProducer:
        async with self._making:
            if form in self._blocked:
                raise self._blocked[form]
            if form not in self._producers:
                try:
                    self._producers[form] = await self._make_producer(form)
                except EncoreError as error:
                    self._blocked[form] = error
                    raise
            return self._producers[form]

    async def _make_producer(self, form: LetterForm) -> TransportProducer:
        return await self._transport.create_producer(
            await producer_options(
                form,
                self._transport.schema_of,
                self._crypto_key_reader,
                byte_keys=self._transport.capabilities.binary_keys,
                topic=self._plan.retry_topic,
                max_pending_messages=UNDER_WAY,
                block_if_queue_full=True,
            )
        )

    async def _close_producers(self) -> None:
        producers, self._producers = list(self._producers.values()), {}
        closing = (producer.close() for producer in producers)
        # A producer that is gone already is closed, which is what was wanted.
        await asyncio.gather(*closing, return_exceptions=True)


def _parts(source: TopicStore) -> list[_Part]:
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


async def _all_of(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)
