"""Move the waiting messages of a state directory to retry letter topics.

Invariants: an ack follows the receipt of the copy, and a record is removed after the ack is
confirmed. A crash between two steps leaves at worst a duplicate, and the next run continues. A
cancelled or failed run waits for the copies in flight.

The acks are sent by a Shared consumer that requests no messages. It acks by id messages that the
broker did not send to it. This changes no delivery count.
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
from ..consumer.consumer import Consumer
from ..consumer.forwarding.bounded_copy import BoundedCopy
from ..consumer.forwarding.copy_options import Destination, ensure_subscription
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
from ..eventloop.shielded_work import to_its_end
from ..letters.id_text import id_text
from ..letters.letter_form import form_of
from ..letters.letter_writer import LetterAuthor, overflowed_nack
from ..message import Message, raw_of
from ..options import ConsumerType, InitialPosition
from ..state.rocks import RocksStore, TopicStore
from ..values.message_id import MessageId
from ..values.outgoing_message import OutgoingMessage
from ..values.topic_names import base_name
from ..version import VERSION
from .entry_comparison import Comparison
from .evacuation_plan import TopicPlan, evacuation_plan
from .evacuation_report import EvacuationReport, EvacuationStoppedError
from .state_inspection import waiting_id
from .topic_entries import NEAR, TopicEntries

#: Messages in flight: copies without a receipt, or originals with unconfirmed acks.
MAX_IN_FLIGHT: Final = 500
_YIELD_EVERY: Final = 100  # entries
_ACK_GROUP_MS: Final = 10
_ACK_TIMEOUT_S: Final = 60.0
_MAX_FETCH_AHEAD: Final = 1000  # entries
_MAX_FAILURES: Final = 20  # in a row: then the retry letter topic is given up
_NO_CLUSTER: Final = frozenset({"ConnectError", "Timeout", "AuthenticationError"})
_CHUNKED: Final = (
    "it is a chunked message, or not a message: only a consumer that received all chunks can ack "
    "it, and the next consumer of the subscription gets it at once"
)
_GONE: Final = "its topic no longer has it"
_NOT_FOUND: Final = (
    "the cluster has none of the waiting messages of its topic: check the URL; if they were "
    "deleted, run it again with --forget-missing (forget_missing=True)"
)
_DIFFERENT_MESSAGE: Final = (
    "its id belongs to another message now, which stays: the topic was deleted and recreated, or "
    "the cluster is another one"
)
_PART_OF_A_BATCH: Final = (
    "it is part of a batch, and the stock transport cannot ack part of a batch that it did not "
    "receive: use the native transport"
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
    """Move the waiting messages of a state directory to retry letter topics.

    Each message is read, published to the retry letter topic of its subscription with its due time
    and attempt count, acked, and removed from the state. Consumers with ``retry_enable=True``
    receive it when it is due. A message that was deleted from its topic is counted and removed. A
    message that cannot be copied stays and delays no other message. After a kill or a failure run
    the evacuation again: at worst a message is there twice.

    The directory must have no live owner. When its host stopped, the broker redelivered the waiting
    messages to other consumers of the subscription. Stop those consumers first, or they process the
    same messages again.

    Args:
        client: Open. The stock transport cannot move single messages of a batch.
        path: The state directory.
        topic: Only this topic with its partitions, or this partition.
        subscription: Only this subscription.
        retry_topic: The target for all messages; None takes `<topic>-<subscription>-RETRY` of each
            topic. A consumer of several topics reads only that of the first topic by name, so give
            that one.
        crypto_key_reader: For encrypted messages.
        text_keys: Keys are text, even if they look like base64 (stock transport).
        forget_missing: Remove the records of a topic if the cluster has none of its waiting
            messages. By default they stay and are reported as refused, because a wrong cluster
            looks the same as a deleted topic.
        report: Updated and returned; None creates one.
        on_progress: See `OnProgress`.

    Raises:
        StateInUseError: if a live process uses the directory. The text names it.
        StateFormatError: if the directory has no state, or the state of a newer version.
        StateDamagedError: if files are missing or corrupted.
        StoreError: if the directory cannot be opened or written.
        StateMismatchError: if the state belongs to another cluster, where the same ids name
            different messages. Nothing of that topic was acked or removed.
        ConfigurationError: if the state has nothing of the topic or subscription, or `rocksdict` is
            not installed.
        EvacuationStoppedError: if the cluster was lost after some messages were moved, or the
            client was closed.
        TransportError: if the cluster cannot be reached.
    """
    report = EvacuationReport() if report is None else report
    options = _Options(crypto_key_reader, text_keys, forget_missing, on_progress)
    plans = await asyncio.to_thread(
        evacuation_plan, path, topic=topic, subscription=subscription, retry_topic=retry_topic
    )
    now = wall_now_ms(asyncio.get_running_loop())
    store = await RocksStore.open(path, wall_now_ms=now, remove_stale=False)
    try:
        store.claim()
        if not store.is_sole_user:
            raise _open_in_this_process(path)
        report.waiting = sum(plan.waiting for plan in plans)
        for plan in plans:
            if plan.waiting:
                topic_store = store.topic_store(
                    plan.topic, plan.subscription, plan.consumer, count_attempts="lazy"
                )
                try:
                    await _Evacuation(client, store, topic_store, plan, report, options).run()
                finally:
                    topic_store.close()
    except (TransportError, ClosedError) as error:
        if isinstance(error, TransportError) and not report.moved and not report.gone:
            raise
        raise EvacuationStoppedError(
            f"stopped after {report.moved} messages, {report.left} are left: {error}. Run it again "
            "to go on",
            report,
        ) from error
    finally:
        await to_its_end(store.aclose())
    return report


class _Options(NamedTuple):
    crypto_key_reader: Any
    text_keys: bool
    forget_missing: bool
    on_progress: OnProgress | None


class _RetryTopicError(EncoreError):
    """A retry letter topic accepts no copies."""


@dataclass(frozen=True, slots=True)
class _WaitingEntry:
    """The waiting messages of one entry.

    Attributes:
        dues: Due times of its messages by batch index; -1 stands for all of them.
        fingerprint: 0 if unknown.
    """

    key: EntryKey
    dues: dict[int, int]
    fingerprint: int

    def is_other(self, messages: Sequence[Message]) -> bool:
        """Return True if the messages that were read under its id belong to another entry."""
        return differ(self.fingerprint, fingerprint_of(raw_of(messages[0])))

    def index_of(self, message: Message) -> int | None:
        """Return the index in `dues` under which a message waits; None if it does not wait."""
        index = message.message_id().batch_index()
        if index in self.dues:
            return index
        if -1 in self.dues:
            return -1
        return 0 if index < 0 and 0 in self.dues else None

    def ids(self, topic: str) -> list[str]:
        return [waiting_id(topic, (*self.key, index)) for index in sorted(self.dues)]


async def check_unused(path: str | os.PathLike[str]) -> None:
    """Check that no process uses a directory; its owner could nack although nothing waits yet.

    Raises StateInUseError if this or another live process uses the directory.
    """
    now = wall_now_ms(asyncio.get_running_loop())
    store = await RocksStore.open(path, wall_now_ms=now, remove_stale=False)
    try:
        if not store.is_sole_user:
            raise _open_in_this_process(path)
    finally:
        await store.aclose()


def _open_in_this_process(path: str | os.PathLike[str]) -> StateInUseError:
    return StateInUseError(
        f"consumers of this process use the state in {os.fspath(path)}: close them first"
    )


class _Evacuation:
    def __init__(
        self,
        client: Client,
        store: RocksStore,
        topic_store: TopicStore,
        plan: TopicPlan,
        report: EvacuationReport,
        options: _Options,
    ) -> None:
        self._client = client
        self._transport = transport_of(client)
        self._store = store
        self._topic_store = topic_store
        self._plan = plan
        self._report = report
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._author = LetterAuthor(
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
        waiting_entries = await to_its_end(asyncio.to_thread(_waiting_entries, self._topic_store))
        if await self._topic_exists():
            await self._move(waiting_entries)
        else:
            await self._end_unverified(waiting_entries)

    async def _move(self, waiting_entries: Sequence[_WaitingEntry]) -> None:
        # Records without a fingerprint cannot show that the cluster is the right one: they come
        # last.
        waiting_entries = sorted(waiting_entries, key=lambda waiting: not waiting.fingerprint)
        fingerprinted = sum(waiting.fingerprint != NO_FINGERPRINT for waiting in waiting_entries)
        comparison = Comparison[_WaitingEntry](self._plan.topic, fingerprinted)
        done = 0
        topic_error: EncoreError | None = None
        try:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self._copies.close)
                stack.push_async_callback(self._end)
                entries = TopicEntries(
                    self._client, self._plan.topic, self._options.crypto_key_reader
                )
                stack.push_async_callback(entries.close)
                stack.push_async_callback(self._copies.drain)
                for at, waiting in enumerate(waiting_entries):
                    if at % _YIELD_EVERY == 0:
                        await asyncio.sleep(0)  # missing entries suspend nowhere else
                    if fingerprinted and at == fingerprinted:
                        if not comparison.sure:
                            missing = [*comparison.undecided(), *waiting_entries[at:]]
                            await self._end_unverified(missing)
                            return
                        # The records without a fingerprint begin here. Their ids start from the
                        # lowest again, and a reader cannot go back.
                        await entries.close()
                    messages = await entries.read(
                        waiting.key, partial(_run_length, waiting_entries, at)
                    )
                    other = bool(messages) and waiting.is_other(messages or ())
                    if other or messages == []:
                        reason = _DIFFERENT_MESSAGE if other else _GONE
                        for gone, why in comparison.note_missing(waiting, reason, other=other):
                            self._drop(gone, why)
                        if comparison.sure:
                            done = at + 1
                        continue
                    if messages:
                        for gone, why in comparison.note_same():
                            self._drop(gone, why)
                    if not messages or messages[0].message_id().first_chunk:
                        done = at + 1
                        self._refuse([waiting], _CHUNKED)
                        continue
                    if not await self._copies.wait_for_slot(len(messages)):
                        break
                    if self._consumer is None:  # only now is the cluster known to be right
                        self._consumer = await self._subscribe()
                        # A topic without a subscription keeps nothing, so it exists before the
                        # first copy is sent.
                        await ensure_subscription(
                            self._transport, self._plan.retry_topic, self._plan.subscription
                        )
                    done = at + 1
                    moving = self._move_entry(self._consumer, waiting, messages)
                    self._copies.begin(moving, messages=len(messages))
                else:
                    await self._end_unverified(comparison.undecided())
        except TransportError as error:
            if error.result in _NO_CLUSTER:
                raise
            topic_error = error
        failure = self._copies.failure
        if isinstance(failure, _RetryTopicError):
            topic_error = topic_error or failure
        if topic_error is not None:
            self._refuse(waiting_entries[done:], str(topic_error))
        if failure is not None and not isinstance(failure, _RetryTopicError):
            raise failure

    async def _end_unverified(self, waiting_entries: Sequence[_WaitingEntry]) -> None:
        """Refuse or drop entries while no message has shown that the cluster is the right one."""
        for at, waiting in enumerate(waiting_entries):
            if at % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
            if self._options.forget_missing:
                self._drop(waiting, "the cluster has none of the waiting messages of its topic")
            else:
                self._refuse([waiting], _NOT_FOUND)

    async def _move_entry(
        self, consumer: Consumer, waiting: _WaitingEntry, messages: Sequence[Message]
    ) -> None:
        try:
            form_of(messages[0])
        except NotSupportedError as error:  # an undecrypted batch cannot be split
            return self._refuse([waiting], str(error))
        except UnreadableError:
            pass  # concerns one message, and its copy fails with the same error
        chosen = [each for each in messages if waiting.index_of(each) is not None]
        absent = waiting.dues.keys() - {waiting.index_of(each) for each in chosen}
        if absent:
            missing = replace(waiting, dues={each: waiting.dues[each] for each in absent})
            self._drop(missing, "its entry has no such message")
        whole = len(chosen) == len(messages) >= messages[0].message_id().batch_size
        if not whole and not self._transport.capabilities.ack_unseen_index:
            left = {at: due for at, due in waiting.dues.items() if at not in absent}
            remaining = replace(waiting, dues=left)
            return self._refuse([remaining], _PART_OF_A_BATCH)
        outcomes = await asyncio.gather(
            *(self._send(waiting, each) for each in chosen), return_exceptions=True
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
            unsent.add(waiting.index_of(message))
        if moved:
            await self._ack(consumer, moved, whole=whole and not unsent)
            indexes = {waiting.index_of(each) for each in moved} - unsent
            self._forget(waiting, [each for each in indexes if each is not None])
            self._report.move(self._plan.retry_topic, len(moved))
        self._progress()
        if self._copies.exhausted:  # the destinations differ in form and share the topic
            last = next(iter(self._copies.exhausted.values()))
            raise _RetryTopicError(
                f"{self._plan.retry_topic} took none of {_MAX_FAILURES} in a row: {last}"
            )

    async def _send(self, waiting: _WaitingEntry, message: Message) -> None:
        destination = Destination(self._plan.retry_topic, form_of(message))
        await self._copies.publish(destination, self._copy(waiting, message))

    def _copy(self, waiting: _WaitingEntry, message: Message) -> OutgoingMessage:
        index = waiting.index_of(message)
        assert index is not None
        due_ms = waiting.dues[index]
        now = wall_now_ms(self._loop)
        record = self._topic_store.records.recall_entry(*waiting.key)
        attempts = 0 if record is None else record.attempts_of(message.message_id().batch_index())
        return overflowed_nack(
            message,
            self._author,
            attempt=max(1, attempts),
            delay_ms=max(0, due_ms - now),
            deliver_at=max(due_ms, now),
            first_failed=record.first_ms if record is not None and attempts else None,
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
            async with asyncio.timeout(_ACK_TIMEOUT_S):
                await consumer.acknowledge(ids)
        except TimeoutError as error:
            raise TransportError(
                f"acks on {self._plan.topic} are not confirmed in {_ACK_TIMEOUT_S:g} s: "
                "check the broker",
                result="Timeout",
                retryable=True,
            ) from error

    def _forget(self, waiting: _WaitingEntry, indexes: Sequence[int]) -> None:
        ledger, entry = waiting.key
        if -1 in indexes:
            self._topic_store.records.record_ack(ledger, entry)
            self._store.flush()
        else:
            self._topic_store.records.cancel_due_times((ledger, entry, each) for each in indexes)
            self._topic_store.records.record_ack(ledger, entry, sum(1 << each for each in indexes))
        if self._store.failure is not None:
            raise StoreError(
                f"the state cannot be written: {self._store.failure}. The next run may move "
                "some messages again"
            )

    def _drop(self, waiting: _WaitingEntry, reason: str) -> None:
        self._forget(waiting, list(waiting.dues))
        self._report.lose(self._plan.topic, waiting.ids(self._plan.topic), reason)
        self._progress()

    def _refuse(self, waiting_entries: Sequence[_WaitingEntry], reason: str) -> None:
        ids = (each for waiting in waiting_entries for each in waiting.ids(self._plan.topic))
        self._report.refuse(self._plan.topic, ids, reason)
        self._progress()

    def _progress(self) -> None:
        if self._options.on_progress is not None:
            self._options.on_progress(self._report)

    async def _topic_exists(self) -> bool:
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
                # The C++ client requests at least one message.
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


def _waiting_entries(topic_store: TopicStore) -> list[_WaitingEntry]:
    return [
        _WaitingEntry(key, record.dues_by_index(), record.fingerprint)
        for key, record in topic_store.records.entries_waiting()
    ]


def _run_length(waiting_entries: Sequence[_WaitingEntry], at: int) -> int:
    """Return how many entries to fetch ahead: up to the next long gap between waiting entries."""
    first = last = waiting_entries[at].key
    for waiting in waiting_entries[at + 1 : at + 1 + _MAX_FETCH_AHEAD]:
        ledger, entry = waiting.key
        if ledger != last[0] or entry - last[1] > NEAR:
            break
        last = waiting.key
    return last[1] - first[1] + 1
