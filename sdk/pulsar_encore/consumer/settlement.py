"""Finding whose message it is, and settling it: the calls an application makes, one step each.

Owns `Settlement`. A message or id is resolved to the record of its entry; the state changes in one
synchronous step, so a cancelled call has either not begun or is done. What cannot be settled here
is refused by name: an ack is never widened to siblings.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final, Protocol

from ..backoff import to_ms
from ..core.entry import HELD, NACKED, Entry, EntryKey
from ..core.in_flight import InFlight
from ..errors import ConfigurationError, MessageNotHeldError
from ..exceptions import OperationNotSupported
from ..ids import MessageId
from ..message import Message
from ..transport.base import ConsumerLink
from .ack_sender import AckSender
from .letter_desk import LetterDesk
from .redelivery import Redelivery

_NO_ID: Final = (1 << 63) - 1  # the ledger and entry of MessageId.latest


class AnyId(Protocol):
    """An id of this package, or the stock client's."""

    def serialize(self) -> bytes: ...


Settleable = Message | AnyId
"""A received message, or an id of one; the stock client's id too."""


class ForeignTopicError(MessageNotHeldError, OperationNotSupported):
    """The id is of no topic that this consumer reads, or does not say of which."""


class Settlement:
    """Acks and nacks of one consumer.

    Args:
        owner: The consumer; other consumers' messages are refused.
        link: The subscription.
        home: Gives the state of a source.
        acks: Sends acks.
        redelivery: Keeps the due times.
    """

    def __init__(
        self,
        owner: object,
        link: ConsumerLink,
        home: Callable[[int], InFlight],
        acks: AckSender,
        redelivery: Redelivery,
    ) -> None:
        self._owner = owner
        self._link = link
        self._home = home
        self._acks = acks
        self._redelivery = redelivery
        self.desk: LetterDesk | None = None  # where there are letter topics

    # Acks

    def ack(self, item: Settleable) -> None:
        if type(item) is Message:
            entry = self._own(item)
            home: InFlight = entry.home
            if entry.live:
                self._acks.added(home, home.ack(entry, item._index))
            else:
                self._ack_late(home, entry, item._index)
            return
        home, key, message_id = self._locate(item)
        entry_here = home.find(key)
        index = message_id.batch_index()
        if entry_here is not None and entry_here.batched and index >= 0:
            self._check_index(entry_here, message_id)
            self._acks.added(home, home.ack(entry_here, index))
        elif entry_here is None and message_id.first_chunk is not None:
            self._ack_chunked(home, key, message_id)
        elif index < 0 or message_id.batch_size == 1 or entry_here is not None:
            self._acks.added(home, home.ack_entry(key))
        elif not home.acks.covers(key):
            self._ack_part(home, Entry(home, key, message_id.batch_size, True, 0), index)

    def _ack_late(self, home: InFlight, entry: Entry, index: int) -> None:
        """Acked before, waiting for its nack, on its way back here, or from before a seek."""
        current = home.find(entry.key)
        if current is not None and current.size == entry.size:
            self._acks.added(home, home.ack(current, index))
        elif entry.first_chunk is not None and entry.era != home.era:
            if entry.unacked:
                raise _not_held(f"entry {entry.key}", "ack")
        elif entry.size == 1:
            self._acks.added(home, home.ack_entry(entry.key))
        elif entry.unacked and entry.era == home.era:
            home.adopt(entry)  # it comes again: known to be acked, and the broker is told then
            self._acks.added(home, home.ack(entry, index))

    def _ack_chunked(self, home: InFlight, key: EntryKey, message_id: MessageId) -> None:
        """A chunked message without a record: nacked, acked a moment ago, or not here.

        An ack of its last chunk, all that its id tells, would leave the others with nobody.
        """
        if (*key, -1) in home.nacks:
            self._acks.added(home, home.ack_entry(key))
        elif not home.acks.covers(key):
            raise _not_held(repr(message_id), "ack")

    def _ack_part(self, home: InFlight, entry: Entry, index: int) -> None:
        """One index of a batch that no record is kept of."""
        if not self._link.capabilities.ack_unseen_index:
            raise MessageNotHeldError(
                f"entry {entry.key} is a batch that this consumer does not hold (settled, sought "
                f"over, or received elsewhere), and the {self._link.capabilities.name} transport "
                "can only ack parts of batches it holds; ack it when it comes again"
            )
        if not 0 <= index < entry.size:
            raise MessageNotHeldError(
                f"batch index {index} needs the batch's size: use an id from a received message"
            )
        home.adopt(entry)
        self._acks.added(home, home.ack(entry, index))

    def ack_cumulative(self, item: Settleable) -> None:
        if type(item) is Message:
            entry = self._cumulative(item)
            home: InFlight = entry.home
            key, index, size = entry.key, item._index, entry.size
        else:
            home, key, message_id = self._locate(item)
            entry_here = home.find(key)
            index, size = message_id.batch_index(), message_id.batch_size
            if entry_here is not None and index >= 0:
                self._check_index(entry_here, message_id)
                size = entry_here.size
            if index >= size:  # -1, the whole entry, needs none
                raise MessageNotHeldError(
                    f"batch index {index} needs the batch's size: use an id from a received message"
                )
        settled = home.ack_cumulative(key, index, size)
        if len(home.acks):  # also where nothing of it is here any more
            self._acks.added(home, max(settled, 1))

    def _cumulative(self, message: Message) -> Entry:
        entry = self._own(message)
        if entry.home.shared:
            raise ConfigurationError(
                "a message of the retry-letter topic cannot be acked cumulatively: that topic is "
                "subscribed Shared; settle it alone"
            )
        return entry

    # Nacks

    def nack(
        self,
        item: Settleable,
        delay: float | timedelta | None,
        error: BaseException | str | None = None,
    ) -> None:
        delay_ms = None if delay is None else to_ms(delay, "delay")
        if type(item) is Message:
            entry = self._own(item)
            home: InFlight = entry.home
            if home.holds(entry, item._index, item._turn):
                self._nack_held(item, home, entry, delay_ms, error)
            elif entry.state[0] == NACKED and entry.size == 1 and not entry.live:
                self._nack_again(home, entry, item._count, delay_ms)
            return
        home, key, message_id = self._locate(item)
        entry_here = home.find(key)
        if entry_here is None:
            if message_id.first_chunk is not None and (*key, -1) not in home.nacks:
                raise _not_held(repr(message_id), "nack")
            due, bits = self._redelivery.nack_due(0, delay_ms)
            home.nack_unseen(key, due, bits)
            self._redelivery.nacked(home)
            return
        index = message_id.batch_index()
        if entry_here.size > 1 and index >= 0:
            self._check_index(entry_here, message_id)
            self._nack(home, entry_here, index, delay_ms)
        else:
            for each in range(entry_here.size):
                self._nack(home, entry_here, each, delay_ms)

    def _nack_held(
        self,
        message: Message,
        home: InFlight,
        entry: Entry,
        delay_ms: int | None,
        error: BaseException | str | None,
    ) -> None:
        index = message._index
        if self.desk is not None and entry.state[index] == HELD and not home.volatile:
            due, bits = self._redelivery.nack_due(message._count, delay_ms)
            if self.desk.takes_nack(message, due, error):
                return
            if home.nack(entry, index, due, bits):
                self._redelivery.nacked(home)
        else:
            self._nack(home, entry, index, delay_ms)

    def _nack(self, home: InFlight, entry: Entry, index: int, delay_ms: int | None) -> None:
        due, bits = self._redelivery.nack_due(entry.redelivery_count(index), delay_ms)
        if home.nack(entry, index, due, bits):
            self._redelivery.nacked(home)

    def _nack_again(self, home: InFlight, entry: Entry, count: int, delay_ms: int | None) -> None:
        """A plain message nacked before: move it, unless it was released in the meantime."""
        if (*entry.key, -1) in home.nacks:
            due, bits = self._redelivery.nack_due(count, delay_ms)
            home.nack_unseen(entry.key, due, bits)
            self._redelivery.nacked(home)

    # Letters

    def leave(self, message: Message, *, cumulative: bool) -> None:
        """A copy of a held message is about to be sent: nobody else settles it meanwhile.

        Raises:
            MessageNotHeldError: It is settled, waiting, or came back since this look.
            ConfigurationError: `cumulative`, and its topic is subscribed Shared.
        """
        entry = self._cumulative(message) if cumulative else self._own(message)
        home: InFlight = entry.home
        index = message._index
        if not (home.holds(entry, index, message._turn) and home.leave(entry, index)):
            raise MessageNotHeldError(
                f"{message.message_id()!r} was settled, is being forwarded, or came back since; "
                "only a message that is held can be sent on"
            )

    def give_back(self, message: Message, delay_ms: int, wall_now: int | None) -> None:
        """The copy failed: the message comes again, after `delay_ms`.

        Args:
            wall_now: When this look ended; None where it was counted before.
        """
        entry, index = self._own(message), message._index
        home: InFlight = entry.home
        if home.stay(entry, index):
            if home.attempts is not None and wall_now is not None:  # not every broker counts it
                home.attempts.failed(entry.due_key(index), wall_now, None)
            self._nack(home, entry, index, delay_ms)

    def forwarded(self, message: Message, *, cumulative: bool) -> None:
        """The copy is persisted: the original is acked."""
        if cumulative:
            self.ack_cumulative(message)
        else:
            self.ack(message)

    # Whose message is it?

    def _own(self, message: Message) -> Entry:
        entry = message._entry
        if entry is None:
            raise MessageNotHeldError("a reader's message has nothing to settle")
        if entry.home.owner is not self._owner:
            raise MessageNotHeldError(
                "the message was received by another consumer; settle it there, or by "
                "message.message_id() if both read the same subscription"
            )
        return entry

    def _locate(self, item: Settleable) -> tuple[InFlight, EntryKey, MessageId]:
        if hasattr(item, "message_id"):  # stock's Message
            raise MessageNotHeldError(
                f"{type(item).__module__}.{type(item).__name__} was not received here; "
                "pass a message of this consumer, or an id"
            )
        if not hasattr(item, "serialize"):
            raise ConfigurationError(
                f"expected a Message or a MessageId, got {type(item).__name__}: acknowledge also "
                "takes a list of them, the other calls one at a time"
            )
        message_id = MessageId.wrap(item)
        ledger, number = message_id.ledger_id(), message_id.entry_id()
        if not (0 <= ledger < _NO_ID and 0 <= number < _NO_ID):
            raise MessageNotHeldError(f"{message_id!r} is a position, not the id of a message")
        source = self._link.source_of(message_id.topic, message_id.partition(), ledger)
        if source is None:
            raise ForeignTopicError(
                f"{message_id!r} of topic {message_id.topic!r} is not of a topic this consumer "
                "reads; with several topics give it: MessageId.deserialize(data, topic)"
            )
        return self._home(source), (ledger, number), message_id

    @staticmethod
    def _check_index(entry: Entry, message_id: MessageId) -> None:
        if not 0 <= message_id.batch_index() < entry.size:
            raise ConfigurationError(
                f"{message_id!r}: the entry holds {entry.size} messages, there is no such index"
            )


def _not_held(what: str, do: str) -> MessageNotHeldError:
    return MessageNotHeldError(
        f"{what} is a chunked message that this consumer does not hold (settled, sought over, or "
        f"received elsewhere): only who holds it knows all its chunks; {do} it there, or when it "
        "comes again"
    )
