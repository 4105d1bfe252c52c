"""Keeps due times and attempts of a consumer in the store: `StateWriter`, for `core.Durable`.

Owns the translation of clocks (the loop's, which no restart survives, to the wall's), when what is
in memory is written, and what becomes of a disk that refuses. Invariants: the store is open before
the first message comes, and closed after the last is settled; a store that fails stops no message,
and is said in `statistics().state_trouble`.
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
from ..core.entry import HELD, Entry, EntryKey, set_bits
from ..core.fingerprint import NO_FINGERPRINT
from ..core.message_key import MessageKey
from ..core.topic_state import TopicState
from ..errors import EncoreError, MessageNotHeldError, StateMismatchError, StoreError
from ..eventloop.alarm import now_ms, wall_now_ms
from ..options import ConsumerOptions
from ..options.durable_state import RocksState
from ..state.rocks import (
    MOST_DIFFERENT,
    DeliveredRecord,
    RocksStore,
    StoreStatistics,
    StoreUser,
    TopicStore,
)
from ..values.backoff import to_ms
from ..values.message_id import MessageId
from ..values.topic_names import base_name, full_name

logger: logging.Logger = logging.getLogger(__name__)

# How often what is in memory is looked at; nothing waits for it.
_LOOK_S: Final = 1.0
# A write that failed is tried with each look, and the database opened anew after so many.
_MEND_LOOKS: Final = 5
_ARRIVED_MS: Final = 5_000  # after so long an ack is at the broker, or its loss was noticed
_BURST: Final = 500  # keys or entries in one turn of the loop: 3 ms or so
_HELD_DIGITS: Final = bytes(0x31 if state == HELD else 0x30 for state in range(256))


class StateWriter:
    """The state of one consumer. Made by `open`.

    Args:
        store: The directory.
        state: What was asked for.
        options: The subscription.
        loop: The consumer's event loop.
    """

    def __init__(
        self,
        store: RocksStore,
        state: RocksState,
        options: ConsumerOptions,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._store: RocksStore | None = store
        self._path = state.path
        self._options = options
        self._loop = loop
        before = options.dead_letter_policy is not None
        if state.count_attempts is not None:
            before = state.count_attempts == "before"
        #: A hand-over is on disk before the application has the message.
        self.before: bool = before
        self._stay_s = to_ms(state.stay_buffer, "stay_buffer") / 1000
        self._sources: dict[str, TopicStateWriter] = {}
        self._states: Iterable[TopicState] = ()
        self._held = _HeldForLong()
        self._sweeping = False
        self._swept_at = loop.time()
        self._failed_looks = 0
        self._catching_up = False
        #: Called with a source of which something is due at another time than before.
        self.rearm: Callable[[TopicState], None] = _no_hook
        #: Acks a message of this consumer, or one that is on its way here, by its id.
        self.ack: Callable[[MessageId], object] = _no_hook
        #: Delay in ms of an expired lease, by the attempts that failed before.
        self.revive_delay_of: Callable[[int], int] = _at_once
        #: Ends the consumer, as its messages are not those that the directory knows.
        self.fail: Callable[[StateMismatchError], object] = _no_hook
        self._fresh = state.on_mismatch == "fresh"
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, options: ConsumerOptions) -> StateWriter | None:
        """The state that a subscription asks for; None where it asks for none.

        Raises:
            StateInUseError: Another process has the directory, or another thread of this one.
            StateFormatError: It holds something else, or what a newer version wrote.
            StateDamagedError: Files of it are lost or damaged.
            StoreError: The system does not let it be opened.
            ConfigurationError: `rocksdict` is not installed, or the directory is open with another
                `durability` in this process.
        """
        state: RocksState | None = options.state
        if state is None:
            return None
        loop = asyncio.get_running_loop()
        store = await RocksStore.open(
            state.path,
            wall_now_ms=wall_now_ms(loop),
            durability=state.durability,
            salvage=state.salvage,
        )
        try:
            store.claim()
        except BaseException:
            await store.aclose()
            raise
        return cls(store, state, options, loop)

    def start(self, states: Iterable[TopicState]) -> None:
        """Look at what is in memory from now on."""
        self._states = states
        self.watch()

    def topics(self) -> list[str]:
        """Topics and partitions of which something is known from before."""
        return [] if self._store is None else self._store.topics(self._options.subscription_name)

    def watch(self) -> None:
        """Schedule a look, unless one is scheduled already: something came or changed."""
        if self._store is None:
            return
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK_S, self._look)

    def of(self, topic: str) -> TopicStateWriter | None:
        """What is kept of a topic or partition; None where the store takes no more."""
        if self._store is None:
            return None
        try:
            source = self._store.source(topic, self._options.subscription_name)
        except EncoreError as error:
            logger.error("%s: what waits is in memory only: %s", topic, error)
            return None
        if self._fresh:
            source.records.drop_mismatched()
        there = self._sources.pop(topic, None)
        if there is not None:
            there.close()
        made = self._sources[topic] = TopicStateWriter(source, self._loop, self.watch, self)
        return made

    def mismatched(self, source: TopicStore) -> None:
        """A message that came is another one than its record was written for."""
        topic, records = source.name[0], source.records
        if records.mismatched == 1:
            logger.warning(
                "%s: a message has the id of another one that the state in %s knows: the cluster "
                "is another one, or the topic was deleted and made again. The message is handed "
                "over as new. This is logged once for each topic",
                topic,
                self._path,
            )
        if records.foreign and not self._fresh:
            self.fail(
                StateMismatchError(
                    f"the state in {self._path} is of another cluster, or the topic {topic} was "
                    f"deleted and made again: all of the first {MOST_DIFFERENT} entries (messages "
                    "or batches) differ from those whose ids it knows. Their records are kept. Use "
                    "another directory for this cluster, or RocksState(..., "
                    'on_mismatch="fresh") to drop what it knows'
                )
            )

    def state_of(self, durable: TopicStateWriter) -> TopicState | None:
        """Return the topic state that a `TopicStateWriter` belongs to; None before it is made."""
        return next((state for state in self._states if state.durable is durable), None)

    # Hand-overs, with `before`

    def begin(self, entry: Entry, indexes: Sequence[int]) -> None:
        """The application is about to get messages of an entry."""
        state: TopicState = entry.source
        durable = state.durable
        if isinstance(durable, TopicStateWriter):
            state.special = True
            durable.started(entry, state, indexes)

    def begin_unwritten(self, entry: Entry, indexes: Sequence[int]) -> None:
        """The same with "lazy": only other consumers of this process are told."""
        state: TopicState = entry.source
        durable = state.durable
        if isinstance(durable, TopicStateWriter):
            durable.tell_attempts(entry, state, indexes)

    def one_write(self) -> AbstractContextManager[object]:
        """What begins inside is one write."""
        assert self._store is not None
        return self._store.one_batch()

    # The disk

    @property
    def trouble(self) -> str | None:
        """Why something is in memory only that should be on disk; None when nothing is."""
        trouble = None if self._store is None else self._store.trouble
        return None if trouble is None else str(trouble)

    def statistics(self) -> StoreStatistics | None:
        """Counts of the store; None once the consumer was closed."""
        return None if self._store is None else self._store.statistics()

    def _look(self) -> None:
        self._timer = None
        if self._store is None:
            return
        for durable in self._sources.values():
            durable.look()
        for state in self._states:
            state.consider()
        sweeps = not (self.before or self._sweeping)
        if sweeps and self._loop.time() - self._swept_at >= self._stay_s:
            self._swept_at = self._loop.time()
            self._sweeping = True
            self._write_held(self._held.since_last(self._states))
        if self._store.late and self._store.trouble is None:
            self._store.flush()  # one write for all acks of a second, and none for fast ones
        self._try_again(self._store)
        pause = self._pause(self._store)
        if pause is not None:
            self._timer = self._loop.call_later(pause, self._look)

    def _pause(self, store: RocksStore) -> float | None:
        """When there is something to look at, in s; None when there is nothing."""
        if store.trouble is not None or any(each.unwritten for each in self._sources.values()):
            return _LOOK_S
        return _LOOK_S if not self.before and any(each.unacked for each in self._states) else None

    def _write_held(self, held: Iterator[tuple[TopicState, Entry, int]]) -> None:
        """What the application has had for long: a burst now, the rest in the next turn."""
        if self._store is None:
            return
        burst = list(islice(held, _BURST))
        with self._store.one_batch():
            for state, entry, mask in burst:
                if isinstance(state.durable, TopicStateWriter) and entry.live:
                    still = [index for index in set_bits(mask) if entry.state[index] == HELD]
                    if still:
                        state.special = True
                        state.durable.started(entry, state, still)
        if burst:
            self._loop.call_soon(self._write_held, held)
        else:
            self._sweeping = False

    def _try_again(self, store: RocksStore) -> None:
        if store.trouble is None or store.flush():
            self._failed_looks = 0
            return
        if not store.refuses:
            self._failed_looks = 0
            if not self._catching_up:
                self._catching_up = True
                self._loop.call_soon(self._catch_up)
            return
        self._failed_looks += 1
        if self._failed_looks % _MEND_LOOKS == 0:
            try:
                store.mend()
            except StoreError as error:
                logger.warning("state is kept in memory still: %s", error)

    def _catch_up(self) -> None:
        """The disk takes writes again: so much of what failed now, the rest in the next turns."""
        store = self._store
        self._catching_up = store is not None and not store.flush() and not store.refuses
        if self._catching_up:
            self._loop.call_soon(self._catch_up)

    # Endings

    def end_acks(self) -> None:
        """The consumer acks no more: what another one settles is acked there alone."""
        self.ack = _no_hook

    def forget(self) -> None:
        """The subscription was deleted: nothing of it counts any more."""
        if self._store is None:
            return
        options = self._options
        read = {full_name(topic) for topic in options.topics}
        if options.retry_letter_topic is not None:
            read.add(options.retry_letter_topic)

        def ours(topic: str) -> bool:
            return topic in self._sources or topic in read or base_name(topic) in read

        for state in self._states:
            state.end_durability()  # or what is under way would be written again
        self._store.forget(options.subscription_name, ours)

    async def close(self) -> None:
        """Write everything. What cannot be is told, and comes again with lower counts."""
        try:
            for _ in self._write_all_held():
                await asyncio.sleep(0)
        finally:
            await self._close_store()

    async def _close_store(self) -> None:
        store = self._ended(acked=True)
        if store is not None:
            try:
                while not (store.alone or store.flush() or store.refuses):  # noqa: ASYNC110
                    await asyncio.sleep(0)
            finally:
                await _closed(store)  # where it is alone, the thread that closes writes the rest

    def abandon(self) -> None:
        """The same without an event loop, so that acks may not have been sent."""
        try:
            for _ in self._write_all_held():
                pass
        finally:
            store = self._ended(acked=False)
            if store is not None:
                try:
                    store.close()
                except StoreError as error:
                    logger.error("%s", error)

    def _write_all_held(self) -> Iterator[None]:
        """Count the attempts under way, which "lazy" has not written yet, a burst in each step.

        The application has these messages and did not settle them. A process that is killed with
        `count_attempts="before"` counts these attempts too.
        """
        if self._store is None or self.before:
            return
        every = ((state, entry) for state in self._states for entry in state.held())
        while burst := list(islice(every, _BURST)):
            with self._store.one_batch():
                for state, entry in burst:
                    held = [at for at, what in enumerate(entry.state) if what == HELD]
                    if held and isinstance(state.durable, TopicStateWriter):
                        state.durable.started(entry, state, held)
            yield
            if self._store is None:
                return

    def _ended(self, *, acked: bool) -> RocksStore | None:
        if self._timer is not None:
            self._timer.cancel()
        store, self._store = self._store, None
        if acked:
            for durable in self._sources.values():
                durable.forget_buried(math.inf)
        for state in self._states:
            state.end_durability()
        for durable in self._sources.values():
            durable.close()
        self._sources.clear()
        if store is not None:
            store.flush()  # another consumer has it, and may have nothing to look at
        return store


class TopicStateWriter:
    """`core.Durable` of one topic or partition, in a store.

    Args:
        source: The source in the store.
        loop: The loop whose clock due times use.
        changed: Called when there is something to look at.
        home: The consumer's `StateWriter`.
    """

    def __init__(
        self,
        source: TopicStore,
        loop: asyncio.AbstractEventLoop,
        changed: Callable[[], None],
        home: StateWriter,
    ) -> None:
        self._changed = changed
        self._home = home
        self._state: TopicState | None = None  # whose it is
        source.sharers.add(self)
        self._source = source
        self._records = source.records
        self._loop = loop
        self._buried: set[EntryKey] = set()  # letters of some of it; the rest is not acked yet
        self._arriving: dict[EntryKey, float] = {}  # all of it is: when that has arrived, ms

    def __bool__(self) -> bool:
        return bool(self._records)

    def knows(self, key: EntryKey) -> bool:
        if self._records.knows(key):
            return True
        return any(each.attempts_in_hands(key) for each in self._sharers())

    def is_of(self, key: EntryKey, fingerprint: int) -> bool:
        same = self._records.compare(*key, fingerprint)
        self._source.wake()
        if same:
            return True
        self._buried.discard(key)
        self._arriving.pop(key, None)
        self._home.mismatched(self._source)
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
                    # The record keeps the end of a lease, because its handle is good until then.
                    due_ms += self._revive_ms((*key, index))
                    if due_ms > wall:
                        dues[max(index, 0)] = due_ms - wall + now + 1
        for each in self._sharers():
            for index, count in each.attempts_in_hands(key).items():
                attempts[index] = max(attempts.get(index, 0), count)
        return Recall(attempts, dues)

    def first_ms(self, key: EntryKey) -> int | None:
        record = self._records.recall_entry(*key)
        return None if record is None else record.first_ms

    def started(self, entry: Entry, state: TopicState, indexes: Sequence[int]) -> None:
        """Messages of an entry are handed over, or were."""
        ledger, number = entry.key
        wall = wall_now_ms(self._loop)
        for attempt, mask in self._masks(entry, state, indexes).items():
            handed = DeliveredRecord(ledger, number, entry.size, mask, attempt, entry.fingerprint())
            try:
                self._records.started((handed,), wall)
            except StoreError:
                pass  # it is counted in memory, written when that goes, and said in the statistics
        self.tell_attempts(entry, state, indexes)

    def tell_attempts(self, entry: Entry, state: TopicState, indexes: Sequence[int]) -> None:
        """Tell the other consumers of the process: copies that they have queued are later attempts.

        A copy is queued there when the broker redelivered a sibling of its batch, or when a
        connection was lost. It was counted when it arrived, before this attempt began.
        """
        others = self._sharers()
        if others:
            for attempt, mask in self._masks(entry, state, indexes).items():
                for each in others:
                    each.attempted(entry.key, mask, attempt)

    def _masks(self, entry: Entry, state: TopicState, indexes: Sequence[int]) -> dict[int, int]:
        """Masks of messages by the number of the attempt that begins."""
        masks: dict[int, int] = {}
        if entry.failed is None and not state.attempts.failures:  # nearly always: all alike
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

    def waits(
        self,
        key: MessageKey,
        due_ms: int,
        bits: int,
        attempts: int,
        size: int,
        fingerprint: int = NO_FINGERPRINT,
    ) -> None:
        self._records.waits(
            key,
            self._on_the_wall(due_ms),
            attempts,
            wall_now_ms(self._loop),
            bits=bits,
            size=size,
            fingerprint=fingerprint,
        )
        self._changed()

    def leased(
        self,
        key: MessageKey,
        due_ms: int,
        bits: int,
        attempt: int,
        size: int,
        fingerprint: int = NO_FINGERPRINT,
    ) -> None:
        for each in self._sharers():
            each.moved(key, due_ms, bits)  # or it would come to an end at the time of before
        self._records.leased(
            key,
            self._on_the_wall(due_ms),
            attempt,
            wall_now_ms(self._loop),
            bits=bits,
            size=size,
            fingerprint=fingerprint,
        )
        self._changed()

    def leased_until(self, key: MessageKey, attempt: int) -> int | None:
        if any(each.in_hands(key) for each in self._source.sharers):
            return None
        due_ms = self._records.leased_until(key, attempt) if self.trusts(key[:2]) else None
        wall, now = wall_now_ms(self._loop), now_ms(self._loop)
        return None if due_ms is None or due_ms <= wall else due_ms - wall + now + 1

    def trusts(self, key: EntryKey) -> bool | None:
        return self._records.trusts(key)

    def compared(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._source.waiters.add(future)
        future.add_done_callback(self._source.waiters.discard)
        return future

    def waits_anywhere(
        self, key: MessageKey, due_ms: int, bits: int, size: int, *, leased: bool
    ) -> None:
        comes_ms = due_ms + (self._revive_ms(key) if leased else 0)
        self.moved(key, comes_ms, bits)
        for each in self._sharers():
            each.moved(key, comes_ms, bits)
        wall, until = wall_now_ms(self._loop), self._on_the_wall(due_ms)
        if leased:
            self._records.moved(key, until, bits)
        else:
            self._records.waits(key, until, 0, wall, bits=bits, size=size)
        self._changed()

    def _sharers(self) -> list[StoreUser]:
        """The other consumers of the process that have the source."""
        sharers = self._source.sharers
        return [each for each in sharers if each is not self] if len(sharers) > 1 else []

    def moved(self, key: MessageKey, due_ms: int, bits: int) -> None:
        """What waits here, if it does, waits until `due_ms`."""
        state = self._whose()
        if state is not None:
            state.moved(key, due_ms, bits)
            self._home.rearm(state)

    def in_hands(self, key: MessageKey) -> bool:
        """Whether the application has a message, from this consumer."""
        state = self._whose()
        return state is not None and state.in_hands(key)

    def attempted(self, key: EntryKey, mask: int, attempt: int) -> None:
        """Another consumer has handed over messages of which copies may be queued here."""
        state = self._whose()
        if state is not None:
            state.attempted_elsewhere(key, mask, attempt)

    def attempts_in_hands(self, key: EntryKey) -> dict[int, int]:
        """Attempts, by index, at messages that the application has from this consumer."""
        state = self._whose()
        return {} if state is None else state.attempts_in_hands(key)

    def _whose(self) -> TopicState | None:
        if self._state is None:
            self._state = self._home.state_of(self)
        return self._state

    def _on_the_wall(self, due_ms: int) -> int:
        # Up, as each of the two clocks was read downwards.
        return max(due_ms - now_ms(self._loop) + wall_now_ms(self._loop) + 1, 0)

    def acked_anywhere(self, message_id: MessageId) -> None:
        for each in self._sharers():
            each.acked(message_id)

    def acked(self, message_id: MessageId) -> None:
        """A message was acked at another consumer: what there is of it here, or comes, is done."""
        # One of a batch that is not here cannot be acked on each transport, and need not be: the
        # broker has that from where it was acked.
        with suppress(MessageNotHeldError):
            self._home.ack(message_id)

    def one_write(self) -> AbstractContextManager[object]:
        return self._home.one_write()

    def returned(self, key: EntryKey, attempts: Mapping[int, int]) -> None:
        self._records.returned(*key, attempts, wall_now_ms(self._loop))
        self._changed()

    def passed(self, keys: Iterable[MessageKey]) -> None:
        self._records.passed(keys)
        self._changed()

    def ends_waiting(self, keys: Iterable[MessageKey]) -> None:
        self._records.ends_waiting(keys)

    def settled(self, key: EntryKey, mask: int | None = None) -> None:
        if mask is None and key in self._buried:
            self._buried.remove(key)
            self._arriving[key] = now_ms(self._loop) + _ARRIVED_MS
        else:
            self._records.settled(*key, mask)
        if mask is not None:
            self._changed()
        self._removed()

    def buried(self, key: EntryKey, mask: int, whole: bool) -> None:
        if not self._records.knows(key):
            return
        self._buried.add(key)
        self._records.given_back(*key, mask, wall_now_ms(self._loop))  # the count stays
        if whole:
            self.settled(key)
        else:  # a lease that was out when it failed
            self._records.passed((*key, index) for index in set_bits(mask))
        self._changed()

    def settled_through(self, key: EntryKey) -> None:
        self._records.settled_through(*key)
        self._removed()

    def clear(self) -> None:
        self._buried.clear()
        self._arriving.clear()
        self._records.clear()
        self._source.wake()

    def _removed(self) -> None:
        """Schedule a write if deletes are pending. After a kill, `evacuate` would send again every
        message whose record is still on disk."""
        if self._source.late:
            self._changed()

    def look(self) -> None:
        """Write what was in memory for long."""
        wall = wall_now_ms(self._loop)
        self._records.flush(wall, _BURST)
        if self._arriving:
            self.forget_buried(now_ms(self._loop), _BURST)

    def _revive_ms(self, key: MessageKey) -> int:
        """Backoff that follows the end of a lease on disk; 0 for a message that is not leased."""
        record = self._records.recall_entry(*key[:2])
        attempts = 0 if record is None else record.attempts_of(key[2])
        if record is None or not (attempts and record.held >> max(key[2], 0) & 1):
            return 0
        return self._home.revive_delay_of(attempts - 1)

    def forget_buried(self, now: float, most: int | None = None) -> None:
        """Of what letters were written and whose acks have arrived by now (ms), nothing is kept."""
        state = self._whose()
        acks = None if state is None or not (len(state.acks) or state.acks.lost) else state.acks
        for key, at in list(islice(self._arriving.items(), most)):  # in the order of their times
            if at > now:
                break
            del self._arriving[key]
            if acks is not None and acks.covers(key):  # not even sent, or with a connection lost
                self._arriving[key] = now + _ARRIVED_MS
            else:
                self._records.settled(*key)

    @property
    def unwritten(self) -> bool:
        """Something is in memory only, and is to be written in a while."""
        return self._records.buffered > 0 or len(self._arriving) > 0

    def close(self) -> None:
        """Write what is in memory only."""
        self._source.wake()
        self._source.sharers.discard(self)
        self._source.close()


class _HeldForLong:
    """What the application had at two looks, one after the other."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, EntryKey], int] = {}

    def since_last(self, states: Iterable[TopicState]) -> Iterator[tuple[TopicState, Entry, int]]:
        """Entries, and masks of what of them was held at the last look too, 0 for nothing.

        Looks as it is asked, so that there may be pauses; one at a time.
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


async def _closed(store: RocksStore) -> None:
    try:
        await store.aclose()
    except StoreError as error:
        logger.error("%s", error)


def _at_once(failed: int) -> int:
    return 0


def _no_hook(concerned: object) -> None:
    """Placeholder until the consumer sets the hook."""
