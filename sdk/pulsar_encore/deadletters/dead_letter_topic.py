"""Read and replay one dead letter topic.

Reading needs no subscription and changes nothing: it uses one reader per partition.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
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
from .discard import Discard, DiscardReport
from .letter_errors import LetterNotFoundError, NoLettersError, NothingSelectedError
from .letter_groups import Grouping, LetterGroup
from .replay import RateLimit, Replay, ReplayOptions, checked_replay_id
from .replay_report import ReplayReport
from .selection import Selection

SUBSCRIPTION: Final = "encore-replay"
_EVERYTHING: Final = Selection()
_POLL_MS: Final = 50  # read this long before asking the broker whether more is available
_LAST_LETTER_TIMEOUT_MS: Final = 500  # an available last letter arrives sooner
_MAX_NAMED: Final = 5


class DeadLetters:
    """The letters of one dead letter topic.

    A broker with topic auto-creation creates a missing topic when a client asks for it. A misspelt
    topic then looks empty.

    Args:
        client: An open client. It stays open.
        topic: The dead letter topic, as short or full name. All its partitions are read.
        subscription: The durable subscription that remembers which letters were replayed. A letter
            is replayed once per subscription; with another name all letters are replayed again.
        schema: Registered with the target topics for letters that have no schema of their own. Some
            target topics require one. A letter with a schema is sent with the schema version that
            it was written with. Payload bytes are never changed.
        crypto_key_reader: Decrypts the letters of encrypted topics, and encrypts their copies with
            the same keys. Without it such letters are listed but not replayed.
        text_keys: Letter keys are text, even if they look like base64
            (`DeadLetterPolicy.text_keys`).

    Raises:
        ConfigurationError: if a name is blank or is not a topic name.

    Example:
        Replay the letters of one failure, at most 50 a second::

            dead = DeadLetters(client, "orders-billing-DLQ")
            for group in await dead.list():
                print(group.count, group.fingerprint, group.error_message)
            report = await dead.replay(Selection(fingerprints=("4f0c9a2b71de",)), rate=50)
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
        """Yield the selected letters, the oldest first in each partition.

        Letters that arrive after the reading of their partition started are not waited for.

        Raises:
            TransportError: if the broker refuses.
        """
        for partition in await self._partitions():
            async with aclosing(self._scan(partition, MessageId.earliest)) as scan:
                async for letter in scan:
                    if selection.takes(letter):
                        yield letter

    async def show(self, which: str | MessageId) -> Letter:
        """Return one letter.

        Args:
            which: A letter id as listed, or a fingerprint, for the last letter that has it.

        Raises:
            LetterNotFoundError: if there is no such letter; `NoLettersError` if the topic has no
                letters at all.
            TransportError: if the broker refuses.
        """
        if isinstance(which, str) and ":" not in which:
            return await self._last_of(which)
        [wanted] = Selection(ids=[which]).ids or ()
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
        """Send letters back to their topics, and ack each one when its copy is stored.

        Letters that are not selected stay on the subscription, and cost about 200 bytes of memory
        each while the replay runs. One replay at a time runs on a subscription.

        An interrupted replay can be run again, because an acked letter is not sent again. A cancel
        waits for the copies in flight and leaves no duplicates. After a kill, up to 64 letters in
        flight and those of the last 0.1 s, with unsent acks, may be sent again. Then two messages
        carry the same `letters.REPLAYED_FROM`, the id of the letter.

        A publisher may have forged the topic that a letter names, and a replay has the operator's
        rights. A letter is therefore sent there only if the dead letter topic is named after that
        topic and the letter's subscription, or if `selection.real_topics` lists the topic.

        Args:
            selection: The letters to replay, and other topics to which they may go.
            dry_run: Send and ack nothing, and count the letters that would be sent. A dry run reads
                the topic without a subscription, so it also counts letters that were replayed
                before.
            rate: Maximum letters per second; None for no limit.
            limit: Stop after this many letters.
            keep_counters: Keep attempt counts and evidence. By default they are dropped, so that
                the message gets all its delivery attempts again.
            replay_id: Written on every message as `letters.REPLAY_ID`; None generates one.
            target: One topic for all letters, instead of the topics that they name.
            quiet: If the last letters of the topic were replayed before, the only sign of the end
                is that no letter arrives for this time, in s.
            on_progress: Called with the running report after each letter, on the event loop.

        Returns:
            The report. Letters that could not be sent are listed in it, stay on the subscription
            and delay no other letter.

        Raises:
            ConfigurationError: if an argument is wrong. Nothing was connected.
            NothingSelectedError: if no letter that is left on the subscription is selected. No
                subscription was created.
            ReplayStoppedError: if the client was closed meanwhile. Letters replayed before stay
                replayed.
            NoLettersError: if the topic has no letters. No subscription was created.
            TransportError: if the broker refuses, or another replay runs on the subscription.
        """
        _check_selection(selection)
        target_topic = None if target is None else full_name(topic_name(target, "target"))
        if target_topic is not None and base_name(target_topic) == base_name(self.topic):
            raise ConfigurationError(
                "target is the dead-letter topic itself: letters would go round in circles"
            )
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
            quiet_s=_checked_quiet(quiet),
            on_progress=on_progress,
        )
        report = ReplayReport(checked_replay_id(replay_id), dry_run=boolean(dry_run, "dry_run"))
        partitions = await self._partitions()
        replay = Replay(self._client, options, report)
        if dry_run:
            await self._check_letters(any_message=target_topic is not None)
            async with aclosing(self.letters()) as scan:
                await replay.count(scan)
        else:
            # Read without a subscription first. Nothing shows later whether the replay created its
            # subscription, and on a wrong topic it would retain messages for ever.
            without_sends = await self._find_letter_to_send(options, report.replay_id)
            if without_sends is None:
                await replay.run(partitions)
            else:
                report = without_sends
        if not report.selected and not report.refused:
            raise NothingSelectedError(await self._nothing_selected_reason(selection))
        return report

    async def discard(
        self,
        selection: Selection,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        quiet: float = 2.0,
        on_progress: Callable[[DiscardReport], None] | None = None,
    ) -> DiscardReport:
        """Ack letters without sending them anywhere. A later replay does not see them.

        The letters stay in the topic until its retention removes them, and a replay on another
        subscription sends them. An interrupted discard can be run again. Replays and discards of a
        subscription exclude each other.

        Args:
            selection: The letters to discard; `Selection()` for all of them.
            dry_run: Ack nothing, and count the letters that would be acked. A dry run reads the
                topic without a subscription, so it also counts letters that were replayed or
                discarded before.
            limit: Stop after this many letters.
            quiet: If the last letters of the topic were acked before, the only sign of the end is
                that no letter arrives for this time, in s.
            on_progress: Called with the running report after each letter, on the event loop.

        Raises:
            ConfigurationError: if an argument is wrong. Nothing was connected.
            NothingSelectedError: if no letter that is left on the subscription is selected.
            NoLettersError: if the topic has no letters. No subscription was created.
            TransportError: if the broker refuses, or a replay runs on the subscription.
        """
        _check_selection(selection)
        report = DiscardReport(boolean(dry_run, "dry_run"))
        discard = Discard(
            self._client,
            report,
            selection,
            subscription=self.subscription,
            crypto_key_reader=self._crypto_key_reader,
            limit=None if limit is None else integer(limit, "limit", low=1, unit="letters"),
            quiet_s=_checked_quiet(quiet),
            on_progress=on_progress,
        )
        partitions = await self._partitions()
        # On a wrong topic, a subscription would retain messages for ever.
        await self._check_letters(any_message=False)
        if dry_run:
            async with aclosing(self.letters()) as scan:
                await discard.count(scan)
        elif await self._selects_any(selection):
            await discard.run(partitions)
        if not report.discarded:
            raise NothingSelectedError(await self._nothing_selected_reason(selection))
        return report

    async def _selects_any(self, selection: Selection) -> bool:
        async with aclosing(self.letters(selection)) as scan:
            async for _ in scan:
                return True
        return False

    async def list(self, selection: Selection = _EVERYTHING) -> list[LetterGroup]:
        """Count the selected letters by fingerprint and topic, the largest group first.

        Raises:
            TransportError: if the broker refuses.
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
        """Return the id of the last letter; None if the partition is empty.

        Raises ReceiveTimeout if the last letter is chunked: a reader that starts at its last chunk
        gets no message.
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
                # A message that cannot be decrypted is a letter too. With FAIL the reader would
                # never reach the end.
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

    async def _find_letter_to_send(
        self, options: ReplayOptions, replay_id: str
    ) -> ReplayReport | None:
        """Return None if a replay has a letter to send; else the report of a replay without one.

        Reads up to the first letter that can be sent. Letters that were replayed before count as
        well.

        Raises:
            NoLettersError: if the topic holds no letter.
        """
        report = ReplayReport(replay_id)
        replay = Replay(self._client, options, report)
        messages, has_letter = 0, False
        try:
            async with aclosing(self.letters()) as scan:
                async for letter in scan:
                    if await replay.can_send(letter):
                        return None
                    messages += 1
                    has_letter = has_letter or self._is_letter(letter, options.target is not None)
        finally:
            await replay.close()
        if not has_letter:
            raise self._no_letters_error(messages)
        replay.end_report(reached_end=True)
        return report

    async def _check_letters(self, *, any_message: bool) -> None:
        """Raise `NoLettersError` unless the topic holds a letter.

        With `any_message`, any message counts, because a target topic was given.
        """
        messages = 0
        async with aclosing(self.letters()) as scan:
            async for letter in scan:
                if self._is_letter(letter, any_message):
                    return
                messages += 1
        raise self._no_letters_error(messages)

    def _is_letter(self, letter: Letter, any_message: bool) -> bool:
        # A replayed message keeps properties of its letter. On its own topic it is no letter.
        is_at_home = letter.real_topic == base_name(self.topic)
        return any_message or (letter.marked and not is_at_home)

    def _no_letters_error(self, messages: int) -> NoLettersError:
        if messages:
            return NoLettersError(
                f"none of the {messages} messages of {self.topic} is a letter: is this the "
                "dead-letter topic? (where its letters name no topic, give a target)"
            )
        return NoLettersError(self._empty())

    async def check(self) -> None:
        """Raise `NoLettersError` if the topic is empty or missing."""
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
                f"{self.subscription!r}, or discarded: replay again under another subscription name"
            )
        fingerprints = {group.fingerprint for group in groups}
        for each in selection.fingerprints or ():
            if each not in fingerprints:
                return self._unknown(each, groups)
        if selection.ids:
            return f"{self.topic} has no letter {_names(sorted(map(str, selection.ids)))}"
        return f"none of the {sum(group.count for group in groups)} letters of {self.topic} matches"

    def _unknown(self, fingerprint: str, groups: Any) -> str:
        # Fingerprints come from the letters and are not trusted. Their reprs are safe to print.
        known = _names(
            [repr(each) for each in dict.fromkeys(group.fingerprint for group in groups)]
        )
        return (
            f"{self.topic} has no letter with fingerprint {fingerprint!r}; it has {known or 'none'}"
        )


class _KnownEnd:
    """The end of a partition: its last letter when the reading started."""

    def __init__(self, last: MessageId) -> None:
        self.last: MessageId | None = last

    async def is_before(self, position: MessageId) -> bool:
        assert self.last is not None
        return position > self.last


class _UnknownEnd:
    """The end of a partition with a chunked last letter, which cannot be read alone.

    A second reader was opened at the end when the reading started. Its first message is after the
    end.
    """

    last: MessageId | None = None

    def __init__(self, tail_reader: Reader) -> None:
        self._tail_reader = tail_reader
        self._first: MessageId | None = None

    async def is_before(self, position: MessageId) -> bool:
        if self._first is None and await self._tail_reader.has_message_available():
            try:
                first = await self._tail_reader.read_next(timeout_millis=_LAST_LETTER_TIMEOUT_MS)
            except ReceiveTimeout:
                return False  # a chunked message that is not complete yet
            self._first = first.message_id()
        return self._first is not None and position >= self._first


def _check_selection(selection: object) -> None:
    if not isinstance(selection, Selection):
        raise ConfigurationError(f"selection must be a Selection, got {type(selection).__name__}")


def _checked_quiet(quiet: Any) -> float:
    if isinstance(quiet, bool) or not isinstance(quiet, (int, float)) or not 0 < quiet < 86_400:
        raise ConfigurationError(f"quiet must be seconds above 0, got {quiet!r}")
    return float(quiet)


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _number(partition: str) -> int:
    tail = partition.removeprefix(base_name(partition)).rpartition("-")[2]
    return int(tail) if tail else -1
