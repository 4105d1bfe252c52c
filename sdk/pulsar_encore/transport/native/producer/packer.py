"""Turns messages into frames: sequence ids, batches, chunks.

One timer serves all batches: it is set for the first one, and set again if it fires too early for a
later one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from ....errors import EncoreError
from ....eventloop.alarm import wall_now_ms
from ....options import BatchingType, ProducerOptions
from ....values.outgoing_message import MessageTransaction, OutgoingMessage
from .send_batches import SendBatch, SendBatches
from .send_encoder import SendEncoder, goes_alone
from .unconfirmed_frames import SendFrame, Waiter


class Packer:
    """The messages of one topic or partition that are not frames yet.

    Attributes:
        early: Messages that wait for `encoder`, with their waiters and queue slots.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: ProducerOptions,
        on_packed: Callable[[Sequence[SendFrame]], None],
        on_failed: Callable[[Sequence[Waiter], int, Exception], None],
    ) -> None:
        self._loop = loop
        self._options = options
        self._on_packed = on_packed
        self._on_failed = on_failed
        self.encoder: SendEncoder | None = None
        self.early: list[tuple[OutgoingMessage, Waiter, int]] = []
        self._by_key = options.batching_type is BatchingType.KeyBased
        self._batching: SendBatches | None = None
        if options.batching_enabled:
            self._batching = SendBatches(
                max_messages=options.batching_max_messages,
                max_bytes=options.batching_max_allowed_size_in_bytes,
                by_key=self._by_key,
            )
        self._delay_s = options.batching_max_publish_delay_ms / 1000
        self._batch_begun_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._next_id = 0
        self._batch_txn: MessageTransaction | None = None
        self.highest_id: int = -1

    def set_encoder(self, encoder: SendEncoder) -> None:
        self.encoder = encoder
        if self._batching is not None:
            most = self._options.batching_max_allowed_size_in_bytes
            self._batching.max_bytes = min(most, encoder.batch_limit)

    def begin(self, last_sequence_id: int) -> None:
        """Number messages from here on, first the early ones."""
        self.highest_id = last_sequence_id
        self._next_id = last_sequence_id + 1
        for message, waiter, slots in self.take_early():
            self.add(message, waiter, slots)

    def slots_of(self, message: OutgoingMessage) -> int:
        """Return the queue slots of a message: one, or its number of chunks before compression."""
        if self.encoder is None:
            return 1
        return max(1, math.ceil(len(message.payload or b"") / self.encoder.batch_limit))

    def check(self, message: OutgoingMessage) -> None:
        """Raise the error that each send of this message would get. The limits must be known."""
        encoder = self.encoder
        if encoder is None or encoder.surely_fits(message):
            return
        encode = encoder.chunks if self._options.chunking_enabled else encoder.single
        encode(message, self._next_id, wall_now_ms(self._loop))

    def add(self, message: OutgoingMessage, waiter: Waiter, slots: int) -> None:
        encoder = self.encoder
        if encoder is None:
            self.early.append((message, waiter, slots))
            return
        if message.txn is not self._batch_txn:
            self.flush()  # an abort would delete the other messages of a batch too
            self._batch_txn = message.txn
        given = message.sequence_id
        sequence_id = self._next_id if given is None else given
        batching = self._batching
        # A broker that deduplicates compares the first id of a batch, and drops the whole batch. So
        # a message that the broker may have is its own entry.
        if batching is None or sequence_id <= self.highest_id or goes_alone(message):
            if not self._add_alone(encoder, message, sequence_id, waiter, slots):
                return
        else:
            if not batching.count:
                self._batch_begun_s = self._loop.time()
            try:
                full = batching.add(message, sequence_id, waiter)
            except EncoreError as error:
                self._on_failed((waiter,), slots, error)
                return
            if full:
                self._pack(full)
                self._batch_begun_s = self._loop.time()
            if batching.count and self._timer is None:
                self._timer = self._loop.call_later(self._delay_s, self._on_timer)
        if given is None:
            self._next_id = sequence_id + 1
        if sequence_id > self.highest_id:
            self.highest_id = sequence_id

    def _add_alone(
        self,
        encoder: SendEncoder,
        message: OutgoingMessage,
        sequence_id: int,
        waiter: Waiter,
        slots: int,
    ) -> bool:
        wall_ms = wall_now_ms(self._loop)
        try:
            if self._options.chunking_enabled:
                frames = encoder.chunks(message, sequence_id, wall_ms)
            else:
                frames = [encoder.single(message, sequence_id, wall_ms)]
        except EncoreError as error:
            self._on_failed((waiter,), slots, error)
            return False
        self.flush()
        now = self._loop.time()
        first: SendFrame | None = None
        packed: list[SendFrame] = []
        for frame in frames[:-1]:
            chunk = SendFrame(
                frame,
                sequence_id,
                [],
                since=now,
                last=sequence_id,
                slots=0,
                first_chunk=first,
                txn=message.txn,
            )
            first = first or chunk
            packed.append(chunk)
        packed.append(
            SendFrame(
                frames[-1],
                sequence_id,
                [waiter],
                since=now,
                last=sequence_id,
                slots=slots,
                first_chunk=first,
                txn=message.txn,
            )
        )
        self._on_packed(packed)
        return True

    def _on_timer(self) -> None:
        self._timer = None
        if self._batching is None or not self._batching.count:
            return
        left = self._batch_begun_s + self._delay_s - self._loop.time()
        if left > 0:  # set for an earlier batch
            self._timer = self._loop.call_later(left, self._on_timer)
        else:
            self.flush()

    def flush(self) -> None:
        if self._batching is not None and self._batching.count:
            self._pack(self._batching.take())

    def _pack(self, batches: Sequence[SendBatch]) -> None:
        encoder = self.encoder
        assert encoder is not None  # else there are no batches
        now = self._loop.time()
        wall_ms = wall_now_ms(self._loop)
        packed: list[SendFrame] = []
        for batch in batches:
            try:
                packed.append(self._entry_of(encoder, batch, now, wall_ms))
            except EncoreError as error:
                self._on_failed(batch.waiters, len(batch.waiters), error)
        self._on_packed(packed)

    def _entry_of(
        self, encoder: SendEncoder, batch: SendBatch, now: float, wall_ms: int
    ) -> SendFrame:
        count = len(batch.waiters)
        if count == 1:  # a plain entry, as in Java
            frame = encoder.single(batch.message, batch.first, wall_ms)
            return SendFrame(
                frame,
                batch.first,
                batch.waiters,
                since=now,
                last=batch.first,
                txn=batch.message.txn,
            )
        # The ids of a batch by key have gaps that other batches fill: only its last id names it.
        first = batch.last if self._by_key else batch.first
        last = None if self._by_key else batch.last
        frame = encoder.batch(batch.message, batch.parts, count, first, last, wall_ms)
        return SendFrame(
            frame,
            first,
            batch.waiters,
            since=now,
            last=batch.last,
            slots=count,
            batched=True,
            txn=batch.message.txn,
        )

    def take_back(self) -> tuple[list[Waiter], int]:
        """Drop all messages that are not frames yet; return their waiters and queue slots."""
        early = self.take_early()
        batches = self._batching.take() if self._batching is not None else []
        waiters = [waiter for batch in batches for waiter in batch.waiters]
        slots = len(waiters) + sum(slots for _, _, slots in early)
        return [*waiters, *(waiter for _, waiter, _ in early)], slots

    def transactions(self) -> set[MessageTransaction]:
        """Return the transactions of all messages that are not frames yet."""
        found = {each[0].txn for each in self.early}
        if self._batching is not None and self._batching.count:
            found.add(self._batch_txn)
        return {txn for txn in found if txn is not None}

    def take_back_of(self, txn: MessageTransaction) -> tuple[list[Waiter], int]:
        """Do as `take_back` for the messages of one transaction."""
        mine = [each for each in self.early if each[0].txn is txn]
        self.early = [each for each in self.early if each[0].txn is not txn]
        waiters, slots = [each[1] for each in mine], sum(each[2] for each in mine)
        if self._batching is not None and self._batch_txn is txn:
            batched = [waiter for batch in self._batching.take() for waiter in batch.waiters]
            waiters += batched
            slots += len(batched)
        return waiters, slots

    def take_early(self) -> list[tuple[OutgoingMessage, Waiter, int]]:
        early, self.early = self.early, []
        return early

    def skip_ids(self, sequence_id: int) -> None:
        """Skip ids up to this one, which frames of another part have used."""
        self.highest_id = max(self.highest_id, sequence_id)
        self._next_id = max(self._next_id, sequence_id + 1)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
