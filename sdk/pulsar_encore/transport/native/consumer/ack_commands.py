"""ACK and REDELIVER commands for thousands of entries, encoded by hand.

The bytes that the ids of a ledger share are made once per ledger. That takes a tenth of the time of
an object for each id (`docs/notes/wire-protocol.md#cost-per-message`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ....wire import ack_set_words
from ....wire.varints import SMALL_VARINTS, varint

#: Ids in one command; a frame could hold thirty times as many.
MOST_IDS: Final = 5_000

_ACK: Final = (b"\x08\x0a\x52", 0x1A)  # type, tag of the body; tag of an id in it
_REDELIVER: Final = (b"\x08\x14\xa2\x01", 0x12)
_CONSUMER: Final = b"\x08"
_INDIVIDUAL: Final = b"\x10\x00"
_CUMULATIVE: Final = b"\x10\x01"
_ACK_LEAST: Final = b"\x30"  # of the id of a transaction
_ACK_MOST: Final = b"\x38"
_ACK_REQUEST: Final = b"\x40"
_EPOCH: Final = b"\x18"
_LEDGER: Final = b"\x08"
_ENTRY: Final = b"\x10"
_ACK_SET: Final = b"\x28"
_BATCH_SIZE: Final = b"\x30"
_ONE: Final = 0x80  # smaller numbers are varints of one byte
_TWO: Final = 0x4000  # smaller numbers are varints of at most two bytes
_THREE: Final = 0x20_0000
_FIRST_OF_MORE: Final = [bytes((bits | 0x80,)) for bits in range(0x80)]


def individual_acks(
    consumer_id: int,
    entries: Sequence[tuple[int, int]],
    partial: Sequence[tuple[int, int, int, int]] = (),
    request_id: int | None = None,
    txn: tuple[int, int] | None = None,
) -> bytes:
    """Encode an ACK of whole entries and of parts of batches.

    Args:
        partial: (ledger, entry, batch size, mask of the unacked indexes) of each batch. In a
            transaction, the mask has all indexes that this command does not ack.
        request_id: Makes the broker answer.
        txn: Most and least significant bits of the id of a transaction.
    """
    parts = _ids(_ACK[1], entries)
    for ledger, entry, size, mask in partial:
        parts.append(_with_ack_set(ledger, entry, size, mask, with_size=txn is not None))
    return _frame(_ACK[0], consumer_id, _INDIVIDUAL, parts, _after_ids(request_id, txn))


def cumulative_ack(
    consumer_id: int, ledger: int, entry: int, request_id: int | None = None
) -> bytes:
    """Encode a cumulative ACK.

    Args:
        entry: The last acked entry; -1 is before the first one of its ledger.
    """
    parts = _ids(_ACK[1], [(ledger, entry)])
    return _frame(_ACK[0], consumer_id, _CUMULATIVE, parts, _after_ids(request_id, None))


def cumulative_ack_in_transaction(
    consumer_id: int,
    position: tuple[int, int, int, int],
    request_id: int,
    txn: tuple[int, int],
) -> bytes:
    """Encode a cumulative ACK that is part of a transaction.

    Args:
        position: (ledger, entry, batch size, mask of the unacked indexes). A mask of -1 covers the
            entry.
        txn: Most and least significant bits of the id of the transaction.
    """
    ledger, entry, size, mask = position
    if mask == -1:
        parts = _ids(_ACK[1], [(ledger, entry)])
    else:
        parts = [_with_ack_set(ledger, entry, size, mask, with_size=True)]
    return _frame(_ACK[0], consumer_id, _CUMULATIVE, parts, _after_ids(request_id, txn))


def redeliver(
    consumer_id: int, entries: Sequence[tuple[int, int]], epoch: int | None = None
) -> bytes:
    """Encode REDELIVER_UNACKNOWLEDGED_MESSAGES; no entries mean all unacked ones."""
    after = b"" if epoch is None else _EPOCH + varint(epoch)
    return _frame(_REDELIVER[0], consumer_id, b"", _ids(_REDELIVER[1], entries), after)


def _after_ids(request_id: int | None, txn: tuple[int, int] | None) -> bytes:
    """Encode the fields of an ACK that follow its ids."""
    parts = b""
    if txn is not None:  # both halves, also if one is 0: otherwise the ack is a plain one
        most, least = txn
        parts = _ACK_LEAST + varint(least) + _ACK_MOST + varint(most)
    return parts if request_id is None else parts + _ACK_REQUEST + varint(request_id)


def _frame(head: bytes, consumer_id: int, kind: bytes, ids: list[bytes], after: bytes) -> bytes:
    body = b"".join((_CONSUMER, varint(consumer_id), kind, *ids, after))
    size = varint(len(body))
    command = len(head) + len(size) + len(body)
    return b"".join(
        ((command + 4).to_bytes(4, "big"), command.to_bytes(4, "big"), head, size, body)
    )


def _ids(tag: int, entries: Iterable[tuple[int, int]]) -> list[bytes]:
    parts: list[bytes] = []
    last = -1
    short = long = longer = b""
    for ledger, entry in entries:
        if ledger != last:
            last = ledger
            inside = _LEDGER + varint(ledger) + _ENTRY
            short = bytes((tag, len(inside) + 1)) + inside
            long = bytes((tag, len(inside) + 2)) + inside
            longer = bytes((tag, len(inside) + 3)) + inside
        if entry < _ONE and entry >= 0:
            parts += (short, SMALL_VARINTS[entry])
        elif 0 <= entry < _TWO:
            parts += (long, SMALL_VARINTS[entry])
        elif 0 <= entry < _THREE:
            parts += (longer, _FIRST_OF_MORE[entry & 0x7F], SMALL_VARINTS[entry >> 7])
        else:
            number = varint(entry)
            parts += (bytes((tag, len(short) - 2 + len(number))), short[2:], number)
    return parts


def _with_ack_set(
    ledger: int, entry: int, size: int, mask: int, *, with_size: bool = False
) -> bytes:
    inside = [_LEDGER, varint(ledger), _ENTRY, varint(entry)]
    for word in ack_set_words.to_words(mask, size):
        inside += (_ACK_SET, varint(word))
    if with_size:  # a broker checks acks in transactions against it
        inside += (_BATCH_SIZE, varint(size))
    body = b"".join(inside)
    return bytes((_ACK[1],)) + varint(len(body)) + body
