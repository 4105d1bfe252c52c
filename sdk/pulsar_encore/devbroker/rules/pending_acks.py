"""The acks of one subscription that belong to open transactions (PIP-31).

These rules copy Pulsar 4.2.4 with its faults. They do not know whether a transaction is open: an
ack that comes after the end of its transaction stays pending until `end` of a later one sweeps it.
"""

from __future__ import annotations

from typing import NamedTuple

from ...errors import EncoreError
from .cursor import Cursor
from .refusal import Refusal
from .topic_log import TopicLog
from .transactions import TransactionId

_WORD = 64
# Pulsar puts the name of its exception before the text.
_EXCEPTION = "org.apache.pulsar.transaction.common.exception.TransactionConflictException"


class UnansweredAck(EncoreError):
    """Pulsar 4.2.4 fails at this ACK and never answers it."""


class AckedId(NamedTuple):
    """One message id of an ACK.

    Args:
        mask: The indexes that are not acked (bit 1); None for the whole entry.
        size: `batch_size` of the id, 0 if it is absent.
    """

    ledger: int
    entry: int
    mask: int | None = None
    size: int = 0


class EndedAcks(NamedTuple):
    """The acks to apply or to give back after a transaction has ended.

    Args:
        entries: The acked entries by sequence number, with the mask of each; None for the whole.
        cumulative: A cumulative ack.
    """

    entries: dict[int, int | None]
    cumulative: AckedId | None = None


NOTHING = EndedAcks({})


class PendingAcks:
    """Pending acks. The cursor withholds their messages from delivery.

    Args:
        title: Topic and subscription, for the texts of refusals.
    """

    def __init__(self, log: TopicLog, cursor: Cursor, title: str) -> None:
        self._log = log
        self._cursor = cursor
        self._title = title
        self._individual: dict[TransactionId, dict[int, AckedId]] = {}
        self._cumulative: tuple[TransactionId, AckedId] | None = None

    def add(self, txn: TransactionId, ids: list[AckedId], shares: bool) -> list[int]:
        """Ack entries or batch indexes. Return their sequence numbers.

        Args:
            shares: The subscription is Shared or Key_Shared. Only there, an earlier plain ack of
                some indexes conflicts with an ack of the whole entry.

        Raises:
            Refusal: TransactionConflict. No id is acked.
            UnansweredAck: an index of an entry that is pending as a whole.
        """
        found: list[tuple[int, AckedId]] = []
        for each in ids:
            seq = self._log.locate(each.ledger, each.entry)
            problem = self._conflict(seq, each, shares)
            if problem:
                raise self._refusal(txn, problem)
            if seq is not None:
                found.append((seq, each))
        pending = self._individual.setdefault(txn, {})
        for seq, each in found:
            before = pending.get(seq)
            if before is not None and before.mask is not None and each.mask is not None:
                pending[seq] = each._replace(mask=before.mask & each.mask)
            else:
                pending[seq] = each
            self._withhold(seq, each.mask, shares)
        return [seq for seq, _ in found]

    def _conflict(self, seq: int | None, acked: AckedId, shares: bool) -> str:
        position = _position(acked, "ackSet is null")
        cursor = self._cursor
        if self._is_acked(seq, acked):
            return f"try to ack message:{position} already acked before."
        if seq is None:
            return ""  # Pulsar accepts the id of a message that does not exist
        partial, withheld = cursor.partial(seq), cursor.withheld.get(seq)
        if acked.mask is None:
            if withheld is not None or (shares and partial is not None):
                return f"try to ack message:{position} in pending ack status."
            return ""
        new = ~acked.mask & (1 << acked.size) - 1
        if partial is not None and new & _seen_as_acked(partial):
            return f"try to ack message:{position} already acked before."
        if withheld is not None and new & _seen_as_acked(withheld):
            return f"try to ack batch message:{position} in pending ack status."
        if withheld == 0 and self._is_whole(seq):
            raise UnansweredAck(f"an index of {position}, which is pending as a whole")
        return ""

    def _is_whole(self, seq: int) -> bool:
        return any(seq in acks and acks[seq].mask is None for acks in self._individual.values())

    def _is_acked(self, seq: int | None, acked: AckedId) -> bool:
        if seq is not None:
            return self._cursor.is_acked(seq)
        log = self._log
        is_trimmed = acked.ledger < log.id_before(log.base)[0]
        return is_trimmed or log.locate_from(acked.ledger, acked.entry) < self._cursor.mark

    def _withhold(self, seq: int, mask: int | None, shares: bool) -> None:
        cursor = self._cursor
        if mask is None:
            cursor.withheld[seq] = 0
            return
        before = cursor.withheld.get(seq)
        if before is None:
            partial = cursor.partial(seq) if shares else None
            before = (1 << self._log.at(seq).messages) - 1 if partial is None else partial
        cursor.withheld[seq] = before & mask

    def set_cumulative(self, txn: TransactionId, acked: AckedId) -> None:
        """Ack every entry up to an id, or up to the acked indexes of its batch.

        Raises:
            Refusal: TransactionConflict.
        """
        position = _position(acked)
        log, cursor = self._log, self._cursor
        seq = log.locate(acked.ledger, acked.entry)
        is_marked = self._is_acked(None, acked) if seq is None else seq < cursor.mark
        if is_marked:
            ledger, entry = log.id_before(cursor.mark)
            marked = f"{ledger}:{-1 if entry == 2**64 - 1 else entry}"
            raise self._refusal(
                txn,
                f"try to cumulative ack position: {position} within range of cursor's "
                f"markDeletePosition: {marked}",
            )
        previous = self._cumulative
        if previous is not None and (previous[0] != txn or not _is_after(acked, previous[1])):
            raise self._refusal(
                txn,
                f"try to cumulative batch ack position: {position} within range of current "
                f"currentPosition: {_position(previous[1])}",
            )
        self._cumulative = (txn, acked)

    def _refusal(self, txn: TransactionId, problem: str) -> Refusal:
        return Refusal(
            "TransactionConflict",
            f"{_EXCEPTION}: {self._title} Transaction:({txn[0]},{txn[1]}) {problem}",
        )

    def end(self, txn: TransactionId, commit: bool) -> EndedAcks | None:
        """Forget the acks of a transaction, and return them. None if it has none here.

        As on Pulsar, a cumulative ack of another transaction keeps individual acks pending: their
        commit or abort is lost.
        """
        if self._cumulative is not None:
            if self._cumulative[0] != txn:
                return None
            acked = self._cumulative[1]
            self._cumulative = None
            return EndedAcks({}, acked) if commit else NOTHING
        acks = self._individual.pop(txn, None)
        if acks is None:
            return None
        if not commit:
            for seq, each in acks.items():
                self._give_back(seq, each)
        return EndedAcks({seq: each.mask for seq, each in acks.items()})

    def _give_back(self, seq: int, acked: AckedId) -> None:
        """Withhold the messages of an aborted ack no longer."""
        cursor = self._cursor
        withheld = cursor.withheld.get(seq)
        if withheld is None:
            return
        full = (1 << acked.size) - 1
        left = full if acked.mask is None else withheld | (~acked.mask & full)
        if left == full:
            del cursor.withheld[seq]
        else:
            cursor.withheld[seq] = left

    def late(self, coordinator: int, low_water: int) -> TransactionId | None:
        """Return the transaction with the oldest individual acks if it has ended long ago.

        Args:
            low_water: All transactions of this coordinator up to this counter have ended.
        """
        oldest = next(iter(self._individual), None)
        is_late = oldest is not None and oldest[0] == coordinator and oldest[1] <= low_water
        return oldest if is_late else None

    def restore(self) -> None:
        """Withhold again what is pending, after an unload has lost all partial acks."""
        self._cursor.withheld.clear()
        for acks in self._individual.values():
            for seq, each in acks.items():
                if not self._cursor.is_acked(seq):
                    self._withhold(seq, each.mask, shares=False)


def _seen_as_acked(mask: int) -> int:
    """Return the acked indexes that Pulsar sees: it cuts off the last 64-bit words if they are 0.

    So once every index is acked, or every index of the last words, Pulsar misses conflicts.
    """
    words = -(-mask.bit_length() // _WORD)
    return ~mask & (1 << words * _WORD) - 1


def _position(acked: AckedId, whole: str = "") -> str:
    """Return an id as Pulsar prints it."""
    words = 0 if acked.mask is None else max(-(-acked.mask.bit_length() // _WORD), 1)
    ack_set = f"ackSet with long[] size of {words}" if words else whole
    return f"{acked.ledger}:{acked.entry}" + (f" ({ack_set})" if ack_set else "")


def _is_after(acked: AckedId, previous: AckedId) -> bool:
    if (acked.ledger, acked.entry) != (previous.ledger, previous.entry):
        return (acked.ledger, acked.entry) > (previous.ledger, previous.entry)
    if not previous.mask:
        return False
    return not acked.mask or _first_bit(acked.mask) > _first_bit(previous.mask)


def _first_bit(mask: int) -> int:
    return (mask & -mask).bit_length()
