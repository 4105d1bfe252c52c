"""Letters: a copy to the retry-letter or dead-letter topic, then the ack of the original.

Owns `Forwarder`. The order is the invariant: the original is acked only after its copy is
persisted, and a copy that fails gives the message back with a growing delay. What is under way
belongs to a task of its own, so a cancelled caller leaves nothing half done. Counting and names are
`core.forwarding`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from .. import letters
from ..backoff import to_ms
from ..core.attempts import Attempt
from ..core.forwarding import letter_properties, reconsume_times
from ..core.in_flight import InFlight
from ..errors import (
    ClosedError,
    ConfigurationError,
    EncoreError,
    MessageNotHeldError,
    NotSupportedError,
)
from ..evidence import Evidence, evidence_of
from ..message import Message
from ..timer import wall_now_ms
from ..topics import base_name
from ..transport.base import Outgoing
from .letter_topics import LetterTopics

if TYPE_CHECKING:
    from .settlement import Settlement

logger = logging.getLogger(__name__)

_DRAIN_S: Final = 10.0  # at close, letters under way get this long
_LOG_EVERY_S: Final = 30.0
_MOST_DELAY_MS: Final = 100 * 365 * 86_400_000  # sums with the wall clock stay within 64 bits


class Forwarder:
    """Sends messages of one consumer on.

    Args:
        topics: The letter topics and their producers.
        settlement: Acks and nacks the originals.
        consumer_name: For the evidence.
        version: Of this package, for the evidence.
    """

    def __init__(
        self, topics: LetterTopics, settlement: Settlement, consumer_name: str, version: str
    ) -> None:
        self._topics = topics
        self._settlement = settlement
        self._consumer_name = consumer_name
        self._version = version
        self._under_way: set[asyncio.Task[None]] = set()
        self._logged = 0.0

    @property
    def max_redeliver_count(self) -> int:
        return self._topics.policy.max_redeliver_count

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def reconsume(
        self,
        message: Message,
        delay: float | timedelta,
        properties: Mapping[str, str] | None,
        error: BaseException | str | None,
        *,
        cumulative: bool = False,
    ) -> asyncio.Task[None]:
        """Through the retry-letter topic, or to the dead-letter topic when its retries are used up.

        Returns:
            What sends the letter, begun already; shield it from a caller's cancellation.

        Raises:
            ConfigurationError: Bad arguments; nothing was sent.
            MessageNotHeldError, NotSupportedError: The message is not here, or cannot be copied.
            TransportError: From the task: not known to be persisted; the message comes back.
            ClosedError: From the task: the consumer was closed first; the message comes back.
        """
        delay_ms = to_ms(delay, "delay")
        if delay_ms > _MOST_DELAY_MS:
            raise ConfigurationError(f"delay must be at most 100 years, got {delay!r}")
        custom = checked_properties(properties)
        if not isinstance(message, Message):
            raise ConfigurationError(
                "reconsume_later needs the received message, not an id: it is copied"
            )
        evidence = None if error is None else evidence_of(error, "reconsume_later")
        # Everything that can be wrong with the message is found before anything is begun.
        letter = self._copy(message, base_name(message.topic_name()))
        self._settlement.leave(message, cumulative=cumulative)
        return self._begin(self._reconsume(message, letter, delay_ms, custom, evidence, cumulative))

    async def reconsume_each(
        self,
        messages: Sequence[Message],
        delay: float | timedelta,
        properties: Mapping[str, str] | None,
        error: BaseException | str | None,
    ) -> None:
        """`reconsume` of each, all begun before the first wait.

        Raises:
            ExceptionGroup: The error of every message that failed.
        """
        failures: list[Exception] = []
        begun = []
        for message in messages:
            try:
                begun.append(asyncio.shield(self.reconsume(message, delay, properties, error)))
            except EncoreError as failure:
                failures.append(failure)
        outcomes = await asyncio.gather(*begun, return_exceptions=True)
        failures += [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if failures:
            raise ExceptionGroup(f"{len(failures)} of {len(messages)} letters failed", failures)

    async def _reconsume(
        self,
        message: Message,
        letter: dict[str, Any],
        delay_ms: int,
        custom: dict[str, str],
        evidence: Evidence | None,
        cumulative: bool,
    ) -> None:
        times = reconsume_times(letter["properties"]) + 1
        dead = times > self.max_redeliver_count
        wall_now = self._wall_now()
        properties = letter["properties"]
        properties.update(custom)
        properties.pop(letters.PARKED_LOOKS, None)  # the new letter's looks begin at none
        properties[letters.RECONSUME_TIMES] = str(times)
        properties[letters.DELAY_TIME] = str(delay_ms)
        properties.setdefault(letters.FIRST_TIME, str(wall_now))
        if dead:
            self._witness(properties, evidence, "reconsume_later", times, wall_now)
        elif evidence is not None:
            _tell(properties, evidence)
        if delay_ms and not dead:
            letter["deliver_at"] = wall_now + delay_ms
        topic = self._topics.dead(message) if dead else self._topics.retry(message)
        await self._deliver(message, topic, letter, cumulative=cumulative)

    def bury(self, message: Message, evidence: Evidence | None, reason: str) -> None:
        """The message had its looks: to the dead-letter topic. Returns at once.

        Args:
            message: LEAVING already.
            evidence: Of the last look, or None for what an earlier one left.
            reason: Where there is none at all.
        """
        self._begin(self._bury(message, evidence, reason))

    async def _bury(self, message: Message, evidence: Evidence | None, reason: str) -> None:
        topic = self._topics.dead(message)
        # Every failure costs a redelivery, so what came back over the limit tells of earlier ones.
        tries = message.redelivery_count() - self.max_redeliver_count
        try:
            letter = self._copy(message, message.topic_name())
        except NotSupportedError as error:
            self._complain(topic, error)
            self._give_back(message, self._topics.producer(topic).retry_delay_ms(tries))
            return
        wall_now = self._wall_now()
        attempt = _attempt(message)
        properties = letter["properties"]
        if attempt is not None:
            evidence = evidence or attempt.evidence
        _begun(properties, attempt)
        self._witness(properties, evidence, reason, message.redelivery_count() + 1, wall_now)
        try:
            await self._deliver(message, topic, letter, tries=tries)
        except EncoreError as error:
            self._complain(topic, error)

    def park(self, message: Message, delay_ms: int, evidence: Evidence | None) -> None:
        """A nack that would fill the broker's unacked window waits on the retry-letter topic."""
        self._begin(self._park(message, delay_ms, evidence))

    async def _park(self, message: Message, delay_ms: int, evidence: Evidence | None) -> None:
        topic = self._topics.retry(message)
        delay_ms = min(delay_ms, _MOST_DELAY_MS)
        attempt = _attempt(message)
        due = self._wall_now() + delay_ms
        try:
            letter = self._copy(message, base_name(message.topic_name()))
            properties = letter["properties"]
            if evidence is not None:
                _tell(properties, evidence)
            _begun(properties, attempt)
            properties[letters.PARKED_LOOKS] = str(message.redelivery_count() + 1)
            properties[letters.DELAY_TIME] = str(delay_ms)
            letter["deliver_at"] = due
            await self._deliver(message, topic, letter, give_back=False)
        except EncoreError as error:
            self._complain(topic, error)
            self._settlement.give_back(message, max(0, due - self._wall_now()), None)

    async def _deliver(
        self,
        message: Message,
        topic: str,
        letter: dict[str, Any],
        *,
        cumulative: bool = False,
        give_back: bool = True,
        tries: int = 0,
    ) -> None:
        producer = self._topics.producer(topic)
        try:
            await producer.publish(Outgoing(**letter))
        except BaseException as error:
            if give_back:
                self._give_back(message, producer.retry_delay_ms(tries))
            if isinstance(error, asyncio.CancelledError):  # by `close`, nobody else can
                raise ClosedError("closed before the letter was sent; its message stays") from None
            raise
        try:
            self._settlement.forwarded(message, cumulative=cumulative)
        except MessageNotHeldError as error:
            logger.warning("a letter was sent, its original cannot be acked: %s", error)

    def _give_back(self, message: Message, delay_ms: int) -> None:
        self._settlement.give_back(message, delay_ms, self._wall_now())

    @staticmethod
    def _wall_now() -> int:
        return wall_now_ms(asyncio.get_running_loop())

    def _copy(self, message: Message, real_topic: str) -> dict[str, Any]:
        """The fields of an `Outgoing`: everything of the original that a letter keeps."""
        try:
            event_time = message.event_timestamp()
            return {
                "payload": None if message.has_null_value() else message.data(),
                "properties": letter_properties(
                    message.properties(),
                    message.message_id(),
                    real_topic=real_topic,
                    subscription=self._topics.subscription,
                ),
                "partition_key": message.partition_key() or None,
                "ordering_key": message.ordering_key() or None,
                "event_timestamp": event_time if event_time > 0 else None,
            }
        except UnicodeDecodeError as error:
            raise NotSupportedError(
                f"{message.message_id()!r} has a key or property of raw bytes, which this "
                "transport cannot read; a letter would mangle it. Settle it another way, or use "
                "text keys"
            ) from error

    def _witness(
        self,
        properties: dict[str, str],
        evidence: Evidence | None,
        reason: str,
        attempts: int,
        wall_now: int,
    ) -> None:
        """What a dead letter says of its end; without new evidence, what it brought along."""
        if evidence is not None or letters.FINGERPRINT not in properties:
            _tell(properties, evidence or evidence_of(None, reason))
        properties.setdefault(letters.FIRST_TIME, str(wall_now))
        properties[letters.LAST_TIME] = str(wall_now)
        properties[letters.ATTEMPTS] = str(attempts)
        properties[letters.CONSUMER] = self._consumer_name
        properties[letters.VERSION] = self._version

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # Whoever awaited it got it; whoever was cancelled meanwhile did not.
            logger.debug("a letter failed: %r", task.exception())

    def _complain(self, topic: str, error: EncoreError) -> None:
        now = asyncio.get_running_loop().time()
        if self._logged == 0.0 or now - self._logged >= _LOG_EVERY_S:
            self._logged = now
            logger.warning("letters to %s fail, their originals come back: %s", topic, error)

    async def close(self) -> None:
        """Wait for the letters under way, for a while, and close the producers."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=_DRAIN_S)
        for task in tuple(self._under_way):
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._topics.close()


def checked_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    """Custom properties of a letter: strings, and none of the names that letters use."""
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):
        raise ConfigurationError("properties must be a dict of strings")
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name:
            raise ConfigurationError(f"properties[{name!r}] and its name must be strings")
        if name in letters.RESERVED:
            raise ConfigurationError(f"the property name {name} is reserved for letters")
        try:
            f"{name}{value}".encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"properties[{name!r}] cannot be written as UTF-8") from error
    return dict(properties)


def _tell(properties: dict[str, str], evidence: Evidence) -> None:
    """All of one failure, and nothing of the one before."""
    for name in letters.FAILURE:
        properties.pop(name, None)
    properties.update(evidence.properties())


def _begun(properties: dict[str, str], attempt: Attempt | None) -> None:
    if attempt is not None:
        properties.setdefault(letters.FIRST_TIME, str(attempt.first_ms))


def _attempt(message: Message) -> Attempt | None:
    """What is known here of earlier looks at a message."""
    entry = message._entry
    assert entry is not None  # a consumer's message
    home: InFlight = entry.home
    return None if home.attempts is None else home.attempts.get(entry.due_key(message._index))
