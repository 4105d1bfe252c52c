"""Replaying: receive through a subscription, publish where it died, ack what is persisted.

How it works. An Exclusive subscription delivers in order what was not acked, has no unacked window
to run full while letters that were not selected are passed by, and admits one replay at a time. Its
single acks are the broker's to remember, so a second run begins where the first was cut off. A
letter passed by is left unacked and costs memory until the replay closes; then all of them are the
subscription's again.

Invariant: an ack follows the copy's receipt. Owns `Replay`; a cancelled or failed one waits for the
copies under way, so that only a kill can leave some sent and not acked. A letter that cannot be
sent is refused and named, and holds up no other; nor does a topic that takes none.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ..client import Client, transport_of
from ..consumer.consumer import Consumer
from ..consumer.forwarding.copy_options import producer_options
from ..errors import ClosedError, ConfigurationError, ConsumerBusy, EncoreError, ReceiveTimeout
from ..eventloop.close_once import to_its_end
from ..letters.letter_form import LetterForm, form_of
from ..message import Message
from ..options import ConsumerCryptoFailureAction, ConsumerType, InitialPosition
from ..options.checks import integer, text
from ..transport.interface import TransportProducer
from ..values.outgoing_message import OutgoingMessage
from .dead_letter import Letter
from .letter_errors import ReplayStoppedError
from .rate_limit import RateLimit
from .replay_report import ReplayReport
from .selection import Selection

# What a kill can leave to be sent twice: the copies under way, and acks that had not left yet. The
# stock library keeps those for up to 100 ms (stock-client notes 3), and no setting changes that.
_UNDER_WAY: Final = 64
_ACK_GROUP_MS: Final = 10
_MOST_PRODUCERS: Final = 64
_NO_WINDOW: Final = 2**62  # brokers limit what is unacked on Shared and Key_Shared only
_DRAIN_S: Final = 35.0  # over the producers' send timeout, so that copies have ended by then
_MOST_ID: Final = 200
# Failures of one letter; what is under way to its topic is as good as before.
_OF_THE_MESSAGE: Final = frozenset({"MessageTooBig", "InvalidMessage", "CryptoError"})

Way: TypeAlias = tuple[str, LetterForm]
"""Where a copy goes, and how it is written; a producer for each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayOptions:
    """Checked arguments of `DeadLetters.replay`."""

    dead_topic: str
    subscription: str
    schema: Any
    crypto_key_reader: Any
    text_keys: bool
    selection: Selection
    pace: RateLimit
    limit: int | None
    keep_counters: bool
    target: str | None
    quiet_s: float
    on_progress: Callable[[ReplayReport], None] | None


class Replay:
    """One run.

    Args:
        client: Open.
        options: What to replay, and how.
        report: Kept up to date.
    """

    def __init__(self, client: Client, options: ReplayOptions, report: ReplayReport) -> None:
        self._client = client
        self._transport = transport_of(client)
        self._refuse_bytes = not (self._transport.capabilities.binary_keys or options.text_keys)
        self._options = options
        self._report = report
        real_topics = options.selection.real_topics
        assert isinstance(real_topics, frozenset)
        self._allowed = real_topics
        self._missing = {each for each in options.selection.ids if isinstance(each, str)}
        self._producers: dict[Way, TransportProducer] = {}
        self._failures: dict[Way, int] = {}  # in a row
        self._blocked: dict[Way, EncoreError] = {}
        self._under_way: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_UNDER_WAY)
        self._failure: BaseException | None = None
        self._failed_at = ""

    async def run(self, partitions: Sequence[str]) -> None:
        """Replay one partition after the other.

        Raises:
            ReplayStoppedError: The client was closed.
            TransportError: A partition could not be subscribed.
        """
        ended = []
        try:
            for partition in partitions:
                if self._full or self._failure is not None:
                    break
                ended.append(await self._replay(partition))
        finally:
            await to_its_end(self._close_producers())
        if self._failure is not None:
            if not isinstance(self._failure, EncoreError):
                raise self._failure
            raise self._stopped(self._failure) from self._failure
        self._end_report(len(ended) == len(partitions) and all(ended))

    async def count(self, found: AsyncIterator[Letter]) -> None:
        """A dry run: what would become of these letters."""
        async for letter in found:
            if self._full:
                return self._end_report(False)
            judged = self._judge(letter)
            if judged is not None:
                self._report.select(judged[0][0])
        self._end_report(True)

    def _end_report(self, reached_end: bool) -> None:
        report = self._report
        report.reached_end = reached_end
        report.at_limit = self._full and not reached_end
        report.missing = [] if report.at_limit else sorted(self._missing)

    @property
    def _full(self) -> bool:
        limit = self._options.limit
        return limit is not None and self._report.selected >= limit

    async def _replay(self, partition: str) -> bool:
        """All of one partition; True when its last letter was seen."""
        consumer = await self._subscribe(partition)
        try:
            last = await consumer.get_last_message_id()
            end = (last.ledger_id(), last.entry_id())
            if end[1] < 0:
                return True
            while not self._full and self._failure is None:
                try:
                    message = await consumer.receive(timeout=self._options.quiet_s)
                except ReceiveTimeout:
                    if consumer.is_connected():
                        return False
                    continue
                await self._look(consumer, message)
                if self._last(message, end):
                    return True
            return False
        finally:
            # Also when cancelled: what is under way will be persisted, and is acked then.
            await to_its_end(self._end(consumer))

    async def _end(self, consumer: Consumer) -> None:
        await self._settle()
        await consumer.close()

    @staticmethod
    def _last(message: Message, end: tuple[int, int]) -> bool:
        message_id = message.message_id()
        here = (message_id.ledger_id(), message_id.entry_id())
        whole = message_id.batch_index() >= message_id.batch_size - 1
        return here > end or (here == end and whole)

    async def _subscribe(self, partition: str) -> Consumer:
        options = self._options
        try:
            return await self._client.subscribe(
                partition,
                options.subscription,
                ConsumerType.Exclusive,
                initial_position=InitialPosition.Earliest,
                batch_index_ack_enabled=True,
                ack_group_time_ms=_ACK_GROUP_MS,
                max_unacked_messages=_NO_WINDOW,
                crypto_key_reader=options.crypto_key_reader,
                crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
            )
        except ConsumerBusy as error:
            raise ConsumerBusy(
                f"the subscription {options.subscription!r} of {partition} is in use: another "
                "replay runs, or it is not a replay's; wait for it, or name another subscription"
            ) from error

    async def _look(self, consumer: Consumer, message: Message) -> None:
        letter = Letter(message)
        judged = self._judge(letter)
        if judged is None:
            return
        way, copy = judged
        await self._options.pace.step()
        await self._room.acquire()
        if self._failure is not None:
            self._room.release()
            return
        try:
            producer = await self._producer(way)
        except BaseException as error:
            self._room.release()
            if not isinstance(error, EncoreError):
                raise
            if not isinstance(error, ClosedError):
                self._blocked[way] = error
            self._refuse(letter, error)
            return
        self._report.select(way[0])
        work = self._send(consumer, letter, way, producer, copy)
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def _judge(self, letter: Letter) -> tuple[Way, OutgoingMessage] | None:
        """The copy to send, and its way; None for a letter that stays."""
        options, report = self._options, self._report
        if not options.selection.takes(letter):
            report.passed += 1
            return None
        self._missing.discard(letter.id)
        try:
            target = letter.target(options.dead_topic, options.target, self._allowed)
            way = (target, form_of(letter.message))
            copy = letter.copy(
                report.replay_id,
                keep_counters=options.keep_counters,
                refuse_bytes=self._refuse_bytes,
            )
            if way in self._blocked:
                raise self._blocked[way]
        except EncoreError as error:
            report.refuse(letter.id, str(error))
            return None
        return way, copy

    async def _send(
        self,
        consumer: Consumer,
        letter: Letter,
        way: Way,
        producer: TransportProducer,
        copy: OutgoingMessage,
    ) -> None:
        try:
            try:
                await producer.publish(copy)
            except EncoreError as error:
                self._unsent(letter, way, error)
                return
            self._failures.pop(way, None)
            await consumer.acknowledge(letter.message)
            self._report.replayed += 1
            if self._options.on_progress is not None:
                self._options.on_progress(self._report)
        except BaseException as error:
            self._failed(letter, error)
        finally:
            self._room.release()

    def _unsent(self, letter: Letter, way: Way, error: EncoreError) -> None:
        self._report.unselect(way[0])
        if getattr(error, "result", "") not in _OF_THE_MESSAGE:
            self._failures[way] = self._failures.get(way, 0) + 1
            if self._failures[way] >= _UNDER_WAY:
                self._blocked[way] = error
        self._refuse(letter, error)

    def _refuse(self, letter: Letter, error: EncoreError) -> None:
        if isinstance(error, ClosedError):
            self._failed(letter, error)
        else:
            self._report.refuse(letter.id, str(error))

    def _failed(self, letter: Letter, error: BaseException) -> None:
        if self._failure is None and not isinstance(error, asyncio.CancelledError):
            self._failure, self._failed_at = error, letter.id

    async def _producer(self, way: Way) -> TransportProducer:
        producer = self._producers.get(way)
        if producer is None:
            if len(self._producers) >= _MOST_PRODUCERS:
                await self._settle()
                await self._close_producers()
            target, form = way
            options = await producer_options(
                form,
                self._transport.schema_of,
                self._options.crypto_key_reader,
                self._options.schema,
                byte_keys=self._transport.capabilities.binary_keys,
                topic=target,
            )
            producer = self._producers[way] = await self._transport.create_producer(options)
        return producer

    async def _settle(self) -> None:
        """Wait for the copies under way."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=_DRAIN_S)
        self._report.doubtful = len(self._under_way)

    async def _close_producers(self) -> None:
        producers, self._producers = list(self._producers.values()), {}
        closing = (producer.close() for producer in producers)
        # A producer that is gone already is closed, which is what was wanted.
        await asyncio.gather(*closing, return_exceptions=True)

    def _stopped(self, error: EncoreError) -> ReplayStoppedError:
        return ReplayStoppedError(
            f"letter {self._failed_at} could not be sent, {self._report.replayed} were before it: "
            f"{error}. Run it again to go on: what was replayed is not sent again",
            self._report,
        )


def checked_limit(limit: Any) -> int | None:
    """A number of letters, at least 1, or None."""
    return None if limit is None else integer(limit, "limit", low=1, unit="letters")


def checked_replay_id(replay_id: Any) -> str:
    """The id given, or a new one."""
    if replay_id is None:
        return uuid.uuid4().hex[:12]
    checked = text(replay_id, "replay_id")
    if len(checked) > _MOST_ID or not checked.isprintable():
        raise ConfigurationError(f"replay_id must be at most {_MOST_ID} printable characters")
    return checked
