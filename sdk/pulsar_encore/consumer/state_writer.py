"""Durable due times and attempts of a consumer, converted from the loop's clock to the wall clock.

The store is open before the first message arrives and is closed after the last one is settled. A
failing store stops no message and is reported in `statistics().state_failure`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import islice
from typing import Final

from ..core.durable import Recall
from ..core.entry import Entry, EntryKey
from ..core.fingerprint import NO_FINGERPRINT
from ..core.message_key import MessageKey, set_bits
from ..core.message_states import HELD
from ..core.topic_state import TopicState
from ..errors import EncoreError, MessageNotHeldError, StateMismatchError, StoreError
from ..eventloop.alarm import now_ms, wall_now_ms
from ..options import ConsumerOptions
from ..options.durable_state import RocksState
from ..state.rocks import (
    MAX_DIFFERENT,
    DeliveredRecord,
    RocksStore,
    StoreStatistics,
    StoreUser,
    TopicStore,
)
from ..values.backoff import to_ms
from ..values.message_id import MessageId
from ..values.topic_names import base_name, full_name

# How often pending changes are written.
_POLL_S: Final = 1.0
# After so many failed retries, one at each poll, the database is opened again.
_REPAIR_POLLS: Final = 5
_ARRIVED_MS: Final = 5_000  # after this time an ack is at the broker, or its loss was noticed
_BURST: Final = 500  # keys or entries in one iteration of the loop: about 3 ms
_HELD_DIGITS: Final = bytes(0x31 if state == HELD else 0x30 for state in range(256))


async def open_store(state: RocksState) -> RocksStore:
    """Open a state directory for consumers of this thread. The caller must close it."""
    store = await RocksStore.open(
        state.path,
        wall_now_ms=wall_now_ms(asyncio.get_running_loop()),
        durability=state.durability,
        salvage=state.salvage,
    )
    try:
        store.claim()
    except BaseException:
        await store.aclose()
        raise
    return store


class StateWriter:
    def __init__(
        self,
        store: RocksStore,
        state: RocksState,
        options: ConsumerOptions,
        loop: asyncio.AbstractEventLoop,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._logger = logger_of(__name__)
        self._store: RocksStore | None = store
        self._path = state.path
        self._options = options
        self._loop = loop
        #: True if a delivery is on disk before the application receives the message.
        self.writes_before_delivery: bool = options.dead_letter_policy is not None
        if state.count_attempts is not None:
            self.writes_before_delivery = state.count_attempts == "before"
        # "lazy": deliveries that are held for long are written at a poll.
        self._writes_held = not self.writes_before_delivery and state.count_attempts != "explicit"
        self._buffer_s = to_ms(state.stay_buffer, "stay_buffer") / 1000
        self._writers: dict[str, TopicStateWriter] = {}
        self._states: Iterable[TopicState] = ()
        self._held = _LongHeld()
        self._sweeping = False
        self._swept_at = loop.time()
        self._failed_polls = 0
        self._catching_up = False
        self.rearm: Callable[[TopicState], None] = _no_hook
        #: Acks a message by its id.
        self.ack_by_id: Callable[[MessageId], object] = _no_hook
        #: Returns the delay in ms after an expired lease, by the number of failed attempts before.
        self.revive_delay_of: Callable[[int], int] = _no_delay
        #: Called when the state directory turns out to be of another cluster. The consumer then
        #: ends.
        self.on_foreign_state: Callable[[StateMismatchError], object] = _no_hook
        self._fresh = state.on_mismatch == "fresh"
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls,
        options: ConsumerOptions,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> StateWriter | None:
        """Open the state directory of a subscription; return None without the option `state`."""
        state: RocksState | None = options.state
        if state is None:
            return None
        store = await open_store(state)
        return cls(store, state, options, asyncio.get_running_loop(), logger_of)

    def start(self, states: Iterable[TopicState]) -> None:
        self._states = states
        self.watch()

    def topics(self) -> list[str]:
        return [] if self._store is None else self._store.topics(self._options.subscription_name)

    def watch(self) -> None:
        if self._store is not None and self._timer is None:
            self._timer = self._loop.call_later(_POLL_S, self._poll)

    def open_topic(self, topic: str) -> TopicStateWriter | None:
        """Open the durable state of a topic, in place of an earlier writer of it.

        Return None if the store fails; attempts and due times are then in memory only.
        """
        if self._store is None:
            return None
        try:
            topic_store = self._store.topic_store(topic, self._options.subscription_name)
        except EncoreError as error:
            self._logger.error(
                "%s: attempts and due times are kept in memory only, because the store failed: %s",
                topic,
                error,
            )
            return None
        if self._fresh:
            topic_store.records.drop_mismatched()
        earlier = self._writers.pop(topic, None)
        if earlier is not None:
            earlier.close()
        writer = TopicStateWriter(topic_store, self._loop, self.watch, self)
        self._writers[topic] = writer
        return writer

    def mismatched(self, topic_store: TopicStore) -> None:
        topic, records = topic_store.name[0], topic_store.records
        if records.mismatched == 1:
            self._logger.warning(
                "%s: the state in %s has a record for the id of this message, but the record "
                "belongs to a different message. The client is connected to another cluster, or "
                "the topic was deleted and created again. The message is delivered as new. Logged "
                "once per topic",
                topic,
                self._path,
            )
        if records.foreign and not self._fresh:
            self.on_foreign_state(
                StateMismatchError(
                    f"the state in {self._path} belongs to another cluster, or the topic {topic} "
                    f"was deleted and created again: {MAX_DIFFERENT} entries (messages or batches) "
                    "differ from the recorded entries with the same ids. The records are kept. Use "
                    "another state directory for this cluster, or delete the old records with "
                    'RocksState(..., on_mismatch="fresh")'
                )
            )

    def state_of(self, durable: TopicStateWriter) -> TopicState | None:
        return next((state for state in self._states if state.durable is durable), None)

    # Deliveries

    def on_delivery_before(self, entry: Entry, indexes: Sequence[int]) -> None:
        """Write a delivery before it happens (`count_attempts="before"`), or begins."""
        state: TopicState = entry.topic_state
        durable = state.durable
        if isinstance(durable, TopicStateWriter):
            state.special = True
            durable.record_deliveries(entry, state, indexes)

    def on_delivery_lazy(self, entry: Entry, indexes: Sequence[int]) -> None:
        """Only notify the other consumers of this process (`count_attempts="lazy"`)."""
        state: TopicState = entry.topic_state
        durable = state.durable
        if isinstance(durable, TopicStateWriter):
            state.special |= durable.is_shared  # the ack also ends a record of another consumer
            durable.tell_attempts(entry, state, indexes)

    def one_write(self) -> AbstractContextManager[object]:
        assert self._store is not None
        return self._store.batched_writes()

    # Writing

    @property
    def failure(self) -> str | None:
        failure = None if self._store is None else self._store.failure
        return None if failure is None else str(failure)

    def statistics(self) -> StoreStatistics | None:
        return None if self._store is None else self._store.statistics()

    def _poll(self) -> None:
        self._timer = None
        if self._store is None:
            return
        for durable in self._writers.values():
            durable.write_buffered()
        for state in self._states:
            state.clear_special()
        sweeps = self._writes_held and not self._sweeping
        if sweeps and self._loop.time() - self._swept_at >= self._buffer_s:
            self._swept_at = self._loop.time()
            self._sweeping = True
            self._write_held(self._held.held_since_last(self._states))
        if self._store.has_deferred_deletes and self._store.failure is None:
            # One write for all acks of a second.
            self._store.flush()
        self._retry_writes(self._store)
        pause = self._pause(self._store)
        if pause is not None:
            self._timer = self._loop.call_later(pause, self._poll)

    def _pause(self, store: RocksStore) -> float | None:
        if store.failure is not None or any(each.unwritten for each in self._writers.values()):
            return _POLL_S
        return _POLL_S if self._writes_held and any(each.unacked for each in self._states) else None

    def _write_held(self, held: Iterator[tuple[TopicState, Entry, int]]) -> None:
        """Write the attempts at messages that were held at two polls, in steps."""
        if self._store is None:
            return
        burst = list(islice(held, _BURST))
        with self._store.batched_writes():
            for state, entry, mask in burst:
                if isinstance(state.durable, TopicStateWriter) and entry.live:
                    still = [index for index in set_bits(mask) if entry.state[index] == HELD]
                    if still:
                        state.special = True
                        state.durable.record_deliveries(entry, state, still)
        if burst:
            self._loop.call_soon(self._write_held, held)
        else:
            self._sweeping = False

    def _retry_writes(self, store: RocksStore) -> None:
        if store.failure is None or store.flush():
            self._failed_polls = 0
            return
        if not store.last_write_failed:
            self._failed_polls = 0
            if not self._catching_up:
                self._catching_up = True
                self._loop.call_soon(self._catch_up)
            return
        self._failed_polls += 1
        if self._failed_polls % _REPAIR_POLLS == 0:
            try:
                store.reopen()
            except StoreError as error:
                self._logger.warning("state is kept in memory still: %s", error)

    def _catch_up(self) -> None:
        """Write the changes of failed writes, in steps."""
        store = self._store
        self._catching_up = store is not None and not store.flush() and not store.last_write_failed
        if self._catching_up:
            self._loop.call_soon(self._catch_up)

    # End of the consumer

    def end_acks(self) -> None:
        """Stop acking messages that another consumer settles."""
        self.ack_by_id = _no_hook

    def forget(self) -> None:
        if self._store is None:
            return
        options = self._options
        read = {full_name(topic) for topic in options.topics}
        if options.retry_letter_topic is not None:
            read.add(options.retry_letter_topic)

        def is_ours(topic: str) -> bool:
            return topic in self._writers or topic in read or base_name(topic) in read

        for state in self._states:
            state.end_durability()  # otherwise pending changes would be written again
        self._store.forget(options.subscription_name, is_ours)

    async def close(self) -> None:
        try:
            for _ in self._write_all_held():
                await asyncio.sleep(0)
        finally:
            await self._close_store()

    async def _close_store(self) -> None:
        store = self._detach_store(acks_arrived=True)
        if store is not None:
            try:
                while not (store.is_sole_user or store.flush() or store.last_write_failed):  # noqa: ASYNC110
                    await asyncio.sleep(0)
            finally:
                # The closing thread writes the rest, if the store has no other user.
                await self._close_logging_errors(store)

    async def _close_logging_errors(self, store: RocksStore) -> None:
        try:
            await store.aclose()
        except StoreError as error:
            self._logger.error("%s", error)

    def close_now(self) -> None:
        """Write all state and close, without an event loop."""
        try:
            for _ in self._write_all_held():
                pass
        finally:
            store = self._detach_store(acks_arrived=False)
            if store is not None:
                try:
                    store.close()
                except StoreError as error:
                    self._logger.error("%s", error)

    def _write_all_held(self) -> Iterator[None]:
        """Count the attempts of held messages, which "lazy" has not written yet, in steps."""
        if self._store is None or not self._writes_held:
            return
        entries = ((state, entry) for state in self._states for entry in state.held())
        while burst := list(islice(entries, _BURST)):
            with self._store.batched_writes():
                for state, entry in burst:
                    held = [at for at, what in enumerate(entry.state) if what == HELD]
                    if held and isinstance(state.durable, TopicStateWriter):
                        state.durable.record_deliveries(entry, state, held)
            yield
            if self._store is None:
                return

    def _detach_store(self, *, acks_arrived: bool) -> RocksStore | None:
        """Write pending changes, and return the store.

        Args:
            acks_arrived: True after a normal close: the acks of dead-lettered messages have
                arrived, so their records are deleted.
        """
        if self._timer is not None:
            self._timer.cancel()
        store, self._store = self._store, None
        if acks_arrived:
            for durable in self._writers.values():
                durable.forget_dead_lettered(math.inf)
        for state in self._states:
            state.end_durability()
        for durable in self._writers.values():
            durable.close()
        self._writers.clear()
        if store is not None:
            store.flush()  # another consumer uses the store, and may not poll
        return store


class TopicStateWriter:
    """`core.Durable` of one topic or partition, in a store."""

    def __init__(
        self,
        topic_store: TopicStore,
        loop: asyncio.AbstractEventLoop,
        changed: Callable[[], None],
        writer: StateWriter,
    ) -> None:
        self._changed = changed
        self._writer = writer
        self._state: TopicState | None = None  # set by `_topic_state` on first use
        topic_store.users.add(self)
        self._topic_store = topic_store
        self._records = topic_store.records
        self._loop = loop
        # Entries with dead-lettered messages that are not fully acked.
        self._dead_lettered: set[EntryKey] = set()
        # Fully acked ones, with the time in ms by which the ack has arrived.
        self._arriving: dict[EntryKey, float] = {}

    def __bool__(self) -> bool:
        return bool(self._records)

    @property
    def is_shared(self) -> bool:
        return len(self._topic_store.users) > 1

    def has_record(self, key: EntryKey) -> bool:
        if self._records.has_record(key):
            return True
        return any(each.held_attempts(key) for each in self._sharers())

    def compare(self, key: EntryKey, fingerprint: int) -> bool:
        same = self._records.compare(*key, fingerprint)
        self._topic_store.wake()
        if same:
            return True
        self._dead_lettered.discard(key)
        self._arriving.pop(key, None)
        self._writer.mismatched(self._topic_store)
        self._removed()
        return False

    def recall(self, key: EntryKey) -> Recall:
        record = self._records.recall_entry(*key)
        attempts: dict[int, int] = {}
        dues: dict[int, int] = {}
        if record is not None:
            for count, mask in record.groups:
                attempts.update(dict.fromkeys(set_bits(mask), count))
            if record.dues:
                wall, now = wall_now_ms(self._loop), now_ms(self._loop)
                for index, due_ms in record.dues_by_index().items():
                    # The record keeps the end of a lease, because its handle is valid until then.
                    due_ms += self._revive_ms((*key, index))
                    if due_ms > wall:
                        dues[max(index, 0)] = due_ms - wall + now + 1
        for each in self._sharers():
            for index, count in each.held_attempts(key).items():
                attempts[index] = max(attempts.get(index, 0), count)
        return Recall(attempts, dues)

    def first_ms(self, key: EntryKey) -> int | None:
        record = self._records.recall_entry(*key)
        return None if record is None else record.first_ms

    def record_deliveries(self, entry: Entry, state: TopicState, indexes: Sequence[int]) -> None:
        ledger, number = entry.key
        wall = wall_now_ms(self._loop)
        for attempt, mask in self._masks(entry, state, indexes).items():
            handed = DeliveredRecord(ledger, number, entry.size, mask, attempt, entry.fingerprint())
            try:
                self._records.record_deliveries((handed,), wall)
            except StoreError:
                pass  # counted in memory, retried, and reported in the statistics
        self.tell_attempts(entry, state, indexes)

    def tell_attempts(self, entry: Entry, state: TopicState, indexes: Sequence[int]) -> None:
        """Notify the other consumers of this process, because their queues may have copies.

        A copy is there after a lost connection, or if the broker redelivered a sibling. Its attempt
        number was counted at its arrival, before this attempt began.
        """
        others = self._sharers()
        if others:
            for attempt, mask in self._masks(entry, state, indexes).items():
                for each in others:
                    each.attempted(entry.key, mask, attempt)

    def _masks(self, entry: Entry, state: TopicState, indexes: Sequence[int]) -> dict[int, int]:
        """Return masks of batch indexes by the number of the attempt."""
        masks: dict[int, int] = {}
        # Nearly always: all have the same number.
        if entry.failed is None and not state.attempts.failures:
            if len(indexes) > 1 and type(indexes) is range:
                mask = (1 << indexes.stop) - (1 << indexes.start)
            else:
                mask = sum(1 << index for index in indexes)
            masks[entry.redelivered + 1] = mask
        else:
            for index in indexes:
                attempt = state.attempts.count(entry, index) + 1
                masks[attempt] = masks.get(attempt, 0) | 1 << index
        return masks

    def record_nack(
        self,
        key: MessageKey,
        due_ms: int,
        bits: int,
        attempts: int,
        size: int,
        fingerprint: int = NO_FINGERPRINT,
    ) -> None:
        self._records.record_nack(
            key,
            self._to_wall_ms(due_ms),
            attempts,
            wall_now_ms(self._loop),
            bits=bits,
            size=size,
            fingerprint=fingerprint,
        )
        self._changed()

    def record_failure(
        self, key: MessageKey, attempts: int, size: int, fingerprint: int = NO_FINGERPRINT
    ) -> None:
        self._records.record_failure(
            key, attempts, wall_now_ms(self._loop), size=size, fingerprint=fingerprint
        )
        self._changed()

    def record_lease(
        self,
        key: MessageKey,
        due_ms: int,
        bits: int,
        attempt: int,
        size: int,
        fingerprint: int = NO_FINGERPRINT,
    ) -> None:
        for each in self._sharers():
            each.change_due(key, due_ms, bits)  # otherwise their copy would end at the earlier time
        self._records.record_lease(
            key,
            self._to_wall_ms(due_ms),
            attempt,
            wall_now_ms(self._loop),
            bits=bits,
            size=size,
            fingerprint=fingerprint,
        )
        self._changed()

    def leased_until(self, key: MessageKey, attempt: int) -> int | None:
        if any(each.is_held(key) for each in self._topic_store.users):
            return None
        due_ms = self._records.leased_until(key, attempt) if self.is_trusted(key[:2]) else None
        wall, now = wall_now_ms(self._loop), now_ms(self._loop)
        return None if due_ms is None or due_ms <= wall else due_ms - wall + now + 1

    def is_trusted(self, key: EntryKey) -> bool | None:
        return self._records.is_trusted(key)

    def next_comparison(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._topic_store.waiters.add(future)
        future.add_done_callback(self._topic_store.waiters.discard)
        return future

    def set_due_at_owner(
        self, key: MessageKey, due_ms: int, bits: int, size: int, *, leased: bool
    ) -> None:
        comes_ms = due_ms + (self._revive_ms(key) if leased else 0)
        self.change_due(key, comes_ms, bits)
        for each in self._sharers():
            each.change_due(key, comes_ms, bits)
        wall, until = wall_now_ms(self._loop), self._to_wall_ms(due_ms)
        if leased:
            self._records.change_due(key, until, bits)
        else:
            self._records.record_nack(key, until, 0, wall, bits=bits, size=size)
        self._changed()

    def _sharers(self) -> list[StoreUser]:
        users = self._topic_store.users
        return [each for each in users if each is not self] if self.is_shared else []

    def change_due(self, key: MessageKey, due_ms: int, bits: int) -> None:
        state = self._topic_state()
        if state is not None:
            state.set_due(key, due_ms, bits)
            self._writer.rearm(state)

    def is_held(self, key: MessageKey) -> bool:
        state = self._topic_state()
        return state is not None and state.is_held(key)

    def attempted(self, key: EntryKey, mask: int, attempt: int) -> None:
        state = self._topic_state()
        if state is not None:
            state.attempted_elsewhere(key, mask, attempt)

    def held_attempts(self, key: EntryKey) -> dict[int, int]:
        state = self._topic_state()
        return {} if state is None else state.held_attempts(key)

    def _topic_state(self) -> TopicState | None:
        if self._state is None:
            self._state = self._writer.state_of(self)
        return self._state

    def _to_wall_ms(self, due_ms: int) -> int:
        # Rounded up, because both clocks were rounded down.
        return max(due_ms - now_ms(self._loop) + wall_now_ms(self._loop) + 1, 0)

    def ack_at_owner(self, message_id: MessageId) -> None:
        for each in self._sharers():
            each.ack_here(message_id)

    def ack_here(self, message_id: MessageId) -> None:
        # Not every transport can ack a batch message that is not in this process. The other
        # consumer has acked it.
        with suppress(MessageNotHeldError):
            self._writer.ack_by_id(message_id)

    def one_write(self) -> AbstractContextManager[object]:
        return self._writer.one_write()

    def record_return(self, key: EntryKey, attempts: Mapping[int, int]) -> None:
        self._records.record_return(*key, attempts, wall_now_ms(self._loop))
        self._changed()

    def record_due(self, keys: Iterable[MessageKey]) -> None:
        self._records.record_due(keys)
        self._changed()

    def cancel_due_times(self, keys: Iterable[MessageKey]) -> None:
        self._records.cancel_due_times(keys)

    def record_ack(self, key: EntryKey, mask: int | None = None) -> None:
        if mask is None and key in self._dead_lettered:
            self._dead_lettered.remove(key)
            self._arriving[key] = now_ms(self._loop) + _ARRIVED_MS
        else:
            self._records.record_ack(*key, mask)
        if mask is not None:
            self._changed()
        self._removed()

    def record_dead_lettered(self, key: EntryKey, mask: int, whole: bool) -> None:
        if not self._records.has_record(key):
            return
        self._dead_lettered.add(key)
        self._records.end_attempts(*key, mask, wall_now_ms(self._loop))  # the count stays
        if whole:
            self.record_ack(key)
        else:  # a leased message
            self._records.record_due((*key, index) for index in set_bits(mask))
        self._changed()

    def record_ack_through(self, key: EntryKey) -> None:
        self._records.record_ack_through(*key)
        self._removed()

    def clear(self) -> None:
        self._dead_lettered.clear()
        self._arriving.clear()
        self._records.clear()
        self._topic_store.wake()

    def _removed(self) -> None:
        """Schedule a write if deletes are pending.

        After a kill, `evacuate` sends a copy of every message with a record on disk.
        """
        if self._topic_store.has_deferred_deletes:
            self._changed()

    def write_buffered(self) -> None:
        wall = wall_now_ms(self._loop)
        self._records.flush(wall, _BURST)
        if self._arriving:
            self.forget_dead_lettered(now_ms(self._loop), _BURST)

    def _revive_ms(self, key: MessageKey) -> int:
        """Return the backoff in ms after a lease on disk; 0 for a message that is not leased."""
        record = self._records.recall_entry(*key[:2])
        attempts = 0 if record is None else record.attempts_of(key[2])
        if record is None or not (attempts and record.held >> max(key[2], 0) & 1):
            return 0
        return self._writer.revive_delay_of(attempts - 1)

    def forget_dead_lettered(self, now: float, most: int | None = None) -> None:
        """Delete the records of dead-lettered entries whose acks have arrived by `now` (ms)."""
        state = self._topic_state()
        acks = None if state is None or not (len(state.acks) or state.acks.lost) else state.acks
        for key, at in list(islice(self._arriving.items(), most)):  # in the order of their times
            if at > now:
                break
            del self._arriving[key]
            # The ack is not sent, or was lost with a connection.
            if acks is not None and acks.covers(key):
                self._arriving[key] = now + _ARRIVED_MS
            else:
                self._records.record_ack(*key)

    @property
    def unwritten(self) -> bool:
        return self._records.buffered > 0 or len(self._arriving) > 0

    def close(self) -> None:
        self._topic_store.wake()
        self._topic_store.users.discard(self)
        self._topic_store.close()


class _LongHeld:
    """Finds the messages that the application held at two consecutive polls."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, EntryKey], int] = {}

    def held_since_last(
        self, states: Iterable[TopicState]
    ) -> Iterator[tuple[TopicState, Entry, int]]:
        """Yield held entries with masks of the messages that were held at the last call too.

        Run one walk at a time.
        """
        before, self._seen = self._seen, {}
        for state in states:
            if state.durable is None:
                continue
            for entry in state.held():
                mask = int(entry.state[::-1].translate(_HELD_DIGITS), 2)
                at = (state.number, entry.key)
                self._seen[at] = mask
                yield state, entry, mask & before.get(at, 0)


def _no_delay(failed: int) -> int:
    return 0


def _no_hook(concerned: object) -> None:
    """Placeholder until the consumer sets the hook."""
