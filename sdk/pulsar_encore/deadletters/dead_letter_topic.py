"""A dead-letter topic: what lies there, one letter in full, and the way back.

Owns `DeadLetters`. Looking needs no subscription and changes nothing: readers from the beginning,
one for each partition. Replaying is `Replay`'s. A broker that makes topics by itself makes one of
any name asked for, so an empty answer may be a misspelt name; errors say so.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final

from ..client import Client
from ..errors import ConfigurationError, ReceiveTimeout, TopicNotFound, TransportError
from ..letters.id_text import parse_id
from ..options import ConsumerCryptoFailureAction
from ..options.checks import boolean, check_crypto_key_reader, integer, text, topic_name
from ..reader.reader import Reader
from ..values.message_id import MessageId
from ..values.topic_names import base_name, full_name
from .dead_letter import Letter
from .letter_errors import LetterNotFoundError, NoLettersError, NothingSelectedError
from .letter_groups import Grouping, LetterGroup
from .replay import RateLimit, Replay, ReplayOptions, checked_replay_id
from .replay_report import ReplayReport
from .selection import Selection

SUBSCRIPTION: Final = "encore-replay"
_EVERYTHING: Final = Selection()
_POLL_MS: Final = 50  # read so long before asking whether there is anything
_LAST_LETTER_TIMEOUT_MS: Final = 500  # a last letter that is there comes sooner
_MAX_NAMED: Final = 5


class DeadLetters:
    """The letters of one dead-letter topic.

    Args:
        client: Open; stays open.
        topic: The dead-letter topic, short or full; with partitions, all of them are read.
        subscription: The durable subscription that remembers what was replayed. A letter replayed
            under it is not replayed under it again; another name starts anew.
        schema: Registered with the target topics when letters without a schema of their own are
            replayed; needed where a target insists on one. Letters that have one are sent with
            the version they were written with. Payload bytes are copied as they are in any case.
        crypto_key_reader: Decrypts letters of encrypted topics, and encrypts their copies with the
            same keys. Without it they are listed, and not replayed.
        text_keys: The letters' keys are text, also where they read as base64 of bytes
            (`DeadLetterPolicy.text_keys`).

    Raises:
        ConfigurationError: A name is blank, or is no topic's.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        subscription: str = SUBSCRIPTION,
        schema: Any = None,
        crypto_key_reader: Any = None,
        text_keys: bool = False,
    ) -> None:
        self._client = client
        self.topic: str = full_name(topic_name(topic, "topic"))
        self.subscription: str = text(subscription, "subscription")
        self._schema = schema
        check_crypto_key_reader(crypto_key_reader)
        self._crypto_key_reader = crypto_key_reader
        self._text_keys = boolean(text_keys, "text_keys")

    async def letters(self, selection: Selection = _EVERYTHING) -> AsyncGenerator[Letter, None]:
        """Every letter selected, oldest first in each partition, up to the end there is now.

        Now is when a partition's turn comes; letters that arrive from then on are not waited for.

        Raises:
            TransportError: The broker refused. A topic that is missing looks empty where the
                broker makes topics by itself, and is made by asking.
        """
        for partition in await self._partitions():
            async with aclosing(self._scan(partition, MessageId.earliest)) as scan:
                async for letter in scan:
                    if selection.takes(letter):
                        yield letter

    async def show(self, which: str | MessageId) -> Letter:
        """One letter in full.

        Args:
            which: Its id, as listed, or a fingerprint, for the last letter that has it.

        Raises:
            LetterNotFoundError: There is none; `NoLettersError` where there are none at all.
            TransportError: The broker refused. A topic that is missing looks empty where the
                broker makes topics by itself, and is made by asking.
        """
        if isinstance(which, str) and ":" not in which:
            return await self._last_of(which)
        wanted = next(iter(Selection(ids=(which,)).ids))
        assert isinstance(wanted, str)
        message_id = parse_id(wanted)
        start = message_id.first_chunk or message_id
        position = MessageId(start.partition(), start.ledger_id(), start.entry_id())
        for partition in await self._partitions():
            if _number(partition) != message_id.partition():
                continue
            async with aclosing(self._scan(partition, position)) as scan:
                async for letter in scan:
                    if letter.id == wanted:
                        return letter
                    if letter.message.message_id() > message_id:
                        break
        await self.check()
        raise LetterNotFoundError(
            f"{self.topic} has no letter {wanted}: the broker has dropped it, or the id is of "
            "another topic; the listing (`letters()`) names those there are"
        )

    async def _last_of(self, fingerprint: str) -> Letter:
        found = None
        known = Grouping()
        async with aclosing(self.letters()) as scan:
            selection = Selection(fingerprints=(fingerprint,))
            async for letter in scan:
                known.add(letter)
                if selection.takes(letter):
                    found = letter
        if found is None:
            if not known.result():
                raise NoLettersError(self._empty())
            raise LetterNotFoundError(self._unknown(fingerprint, known.result()))
        return found

    async def replay(
        self,
        selection: Selection = _EVERYTHING,
        *,
        dry_run: bool = False,
        rate: float | None = None,
        limit: int | None = None,
        keep_counters: bool = False,
        replay_id: str | None = None,
        target: str | None = None,
        quiet: float = 2.0,
        on_progress: Callable[[ReplayReport], None] | None = None,
    ) -> ReplayReport:
        """Send letters back to the topics they died on, and ack each once its copy is persisted.

        A letter that is not selected stays with the subscription for a later replay. Interrupted,
        by a cancel or a kill, it can be run again: what was acked is not sent again. A cancel waits
        for what is under way, and leaves no doubles. After a kill, what was sent and whose ack had
        not left (64 letters, and those of the last 0.1 s) may be sent again: then two messages
        carry the same `letters.REPLAYED_FROM`, the id of the letter. One replay runs at a time on a
        subscription. A letter passed by costs about 200 bytes of memory while the replay runs.

        A letter is sent to the topic that it names only if the dead-letter topic is named after
        that and the letter's subscription, or the selection names it in `real_topics`: the name may
        be the publisher's own word, and a replay has an operator's rights.

        Args:
            selection: Which letters, and which other topics they may go to.
            dry_run: Send and ack nothing; count what would be. Reads the topic and leaves no
                subscription, so it cannot tell what was replayed before and counts that too.
            rate: Most letters a second; None for as fast as the targets take them.
            limit: Stop after so many letters.
            keep_counters: Keep attempt counts and evidence; they are dropped otherwise, and the
                message has all its attempts again.
            replay_id: Written on every message as `letters.REPLAY_ID`; made up when None.
            target: A topic for all of them, instead of their own.
            quiet: When the topic's last letters were replayed before, nothing tells that the end
                is reached but that nothing comes for so long, in s.
            on_progress: Called with the running report after each letter, on the event loop.

        Returns:
            What was done. Letters that cannot be sent are named in it with the reason, and stay;
            the others go on.

        Raises:
            ConfigurationError: An argument is wrong; nothing was connected.
            NothingSelectedError: No letter left under the subscription is selected.
            ReplayStoppedError: The client was closed meanwhile; what was done before counts.
            NoLettersError: The topic holds none; it is not subscribed to then. A topic that is
                missing looks so where the broker makes topics by itself.
            TransportError: The broker refused, or another replay runs on the subscription.
        """
        if not isinstance(selection, Selection):
            raise ConfigurationError(
                f"selection must be a Selection, got {type(selection).__name__}"
            )
        target_topic = None if target is None else full_name(topic_name(target, "target"))
        if target_topic is not None and base_name(target_topic) == base_name(self.topic):
            raise ConfigurationError(
                "target is the dead-letter topic itself: letters would go round in circles"
            )
        if isinstance(quiet, bool) or not isinstance(quiet, (int, float)) or not 0 < quiet < 86_400:
            raise ConfigurationError(f"quiet must be seconds above 0, got {quiet!r}")
        options = ReplayOptions(
            dead_topic=self.topic,
            subscription=self.subscription,
            schema=self._schema,
            crypto_key_reader=self._crypto_key_reader,
            text_keys=self._text_keys,
            selection=selection,
            rate_limit=RateLimit(rate),
            limit=None if limit is None else integer(limit, "limit", low=1, unit="letters"),
            keep_counters=boolean(keep_counters, "keep_counters"),
            target=target_topic,
            quiet_s=float(quiet),
            on_progress=on_progress,
        )
        report = ReplayReport(checked_replay_id(replay_id), dry_run=boolean(dry_run, "dry_run"))
        partitions = await self._partitions()
        # Before the subscription is made: on a wrong topic it would keep messages for ever.
        await self._check_letters(any_message=target_topic is not None)
        replay = Replay(self._client, options, report)
        if dry_run:
            async with aclosing(self.letters()) as scan:
                await replay.count(scan)
        else:
            await replay.run(partitions)
        if not report.selected and not report.refused:
            raise NothingSelectedError(await self._nothing_selected_reason(selection))
        return report

    async def list(self, selection: Selection = _EVERYTHING) -> list[LetterGroup]:
        """The letters selected, counted by fingerprint and topic; largest group first.

        Raises:
            TransportError: The broker refused. A topic that is missing looks empty where the
                broker makes topics by itself, and is made by asking.
        """
        grouping = Grouping()
        async with aclosing(self.letters(selection)) as scan:
            async for letter in scan:
                grouping.add(letter)
        return grouping.result()

    async def _partitions(self) -> tuple[str, ...]:
        try:
            return tuple(await self._client.get_topic_partitions(self.topic))
        except TransportError as error:
            raise self._with_name_hint(error) from error

    async def _scan(self, partition: str, start: MessageId) -> AsyncGenerator[Letter, None]:
        async with AsyncExitStack() as stack:
            end: _KnownEnd | _UnknownEnd
            try:
                last = await self._last(partition)
                if last is None:
                    return
                end = _KnownEnd(last)
            except ReceiveTimeout:
                tail_reader = await self._reader(partition, MessageId.latest, inclusive=False)
                end = _UnknownEnd(await stack.enter_async_context(tail_reader))
            letters = await stack.enter_async_context(aclosing(self._read(partition, start)))
            async for letter in letters:
                position = letter.message.message_id()
                if await end.is_before(position):
                    return
                yield letter
                if end.last == position:
                    return

    async def _read(self, partition: str, start: MessageId) -> AsyncGenerator[Letter, None]:
        async with await self._reader(partition, start) as reader:
            while True:
                try:
                    entry = await reader.read_entry(timeout_millis=_POLL_MS)
                except ReceiveTimeout:
                    if not await reader.has_message_available():
                        return
                else:
                    for message in entry:
                        yield Letter(message)

    async def _last(self, partition: str) -> MessageId | None:
        """Id of the last letter there is; None when there is none.

        Raises:
            ReceiveTimeout: It is chunked, and a reader that begins with its last chunk gets none.
        """
        async with await self._reader(partition, MessageId.latest) as reader:
            if not await reader.has_message_available():
                return None
            return (await reader.read_next(timeout_millis=_LAST_LETTER_TIMEOUT_MS)).message_id()

    async def _reader(self, partition: str, start: MessageId, *, inclusive: bool = True) -> Reader:
        try:
            return await self._client.create_reader(
                partition,
                start,
                crypto_key_reader=self._crypto_key_reader,
                start_message_id_inclusive=inclusive,
                # What cannot be decrypted is a letter too; a reader that refuses it never ends.
                crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
            )
        except TransportError as error:
            raise self._with_name_hint(error) from error

    def _with_name_hint(self, error: TransportError) -> TransportError:
        if error.result != "TopicNotFound":
            return error
        return TopicNotFound(
            f"there is no dead-letter topic {self.topic}: check the name; Java's and this "
            "package's default is <topic>-<subscription>-DLQ"
        )

    async def _check_letters(self, *, any_message: bool) -> None:
        """There is a letter; with `any_message` any message will do, as it is told where to go."""
        messages = 0
        async with aclosing(self.letters()) as scan:
            async for letter in scan:
                if any_message or letter.marked:
                    return
                messages += 1
        if messages:
            raise NoLettersError(
                f"none of the {messages} messages of {self.topic} is a letter: is this the "
                "dead-letter topic? (where its letters name no topic, give a target)"
            )
        raise NoLettersError(self._empty())

    async def check(self) -> None:
        """There is something on the topic.

        Raises:
            NoLettersError: There is not, or no such topic.
            TransportError: The broker refused.
        """
        await self._check_letters(any_message=True)

    def _empty(self) -> str:
        return (
            f"{self.topic} holds no letters: check the name (where a broker makes topics by "
            "itself, asking for one that is missing may have made it)"
        )

    async def _nothing_selected_reason(self, selection: Selection) -> str:
        known, matching = Grouping(), 0
        async with aclosing(self.letters()) as scan:
            async for letter in scan:
                known.add(letter)
                matching += selection.takes(letter)
        groups = known.result()
        if matching:
            return (
                f"{matching} letters match, and all of them were replayed under the subscription "
                f"{self.subscription!r}: replay again under another subscription name"
            )
        fingerprints = {group.fingerprint for group in groups}
        for each in selection.fingerprints:
            if each not in fingerprints:
                return self._unknown(each, groups)
        if selection.ids:
            missing = [str(each) for each in sorted(selection.ids, key=str)]
            return f"{self.topic} has no letter {', '.join(missing[:_MAX_NAMED])}" + (
                "" if len(missing) <= _MAX_NAMED else f" and {len(missing) - _MAX_NAMED} more"
            )
        return f"none of the {sum(group.count for group in groups)} letters of {self.topic} matches"

    def _unknown(self, fingerprint: str, groups: Any) -> str:
        # Fingerprints are the letters' own words; as reprs they are safe to print.
        known = list(dict.fromkeys(group.fingerprint for group in groups))
        names = ", ".join(repr(each) for each in known[:_MAX_NAMED]) or "none"
        more = "" if len(known) <= _MAX_NAMED else f" and {len(known) - _MAX_NAMED} more"
        return f"{self.topic} has no letter with fingerprint {fingerprint!r}; it has {names}{more}"


class _KnownEnd:
    """The last letter there was when a look began."""

    def __init__(self, last: MessageId) -> None:
        self.last: MessageId | None = last

    async def is_before(self, position: MessageId) -> bool:
        assert self.last is not None
        return position > self.last


class _UnknownEnd:
    """The end when a look began, where its last letter cannot be read alone: before whatever a
    reader gets that began there."""

    last: MessageId | None = None

    def __init__(self, tail_reader: Reader) -> None:
        self._tail_reader = tail_reader
        self._first: MessageId | None = None

    async def is_before(self, position: MessageId) -> bool:
        if self._first is None and await self._tail_reader.has_message_available():
            try:
                first = await self._tail_reader.read_next(timeout_millis=_LAST_LETTER_TIMEOUT_MS)
            except ReceiveTimeout:
                return False  # a chunked one, of which only some chunks are there
            self._first = first.message_id()
        return self._first is not None and position >= self._first


def _number(partition: str) -> int:
    tail = partition.removeprefix(base_name(partition)).rpartition("-")[2]
    return int(tail) if tail else -1
