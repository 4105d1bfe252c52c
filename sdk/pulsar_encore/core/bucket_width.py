"""The width of due-time buckets, and the rounding of due times to them (PIP-393).

A due time is rounded up, so that no message is redelivered early, and by less than one bucket.
"""

from __future__ import annotations

from pulsar_encore.errors import ConfigurationError

from .message_key import MAX_ID_BITS

MAX_BITS = 40  # buckets of 35 years; bounds the shift

# All messages of a bucket are requested together, and the last one arrives when the broker has read
# and sent all of them: after 12 ms for 64 messages and 80 ms for 512 (Pulsar 4.2.4, p99). So delays
# that thousands of nacks a second can have within the broker's window of 50,000 unacked messages
# have narrow buckets. These are a thousand at most, which bounds their memory. A longer delay is
# late by at most 1/64 of itself. With 1/256, keys of scattered delays up to an hour would take 23
# bytes each, not 13.
_NARROW_MS = 32
_NARROW_UP_TO_MS = 1 << 15
_SHARE = 64


def precision_bits(delay_ms: int, fixed_bits: int | None = None) -> int:
    """Return the number of low bits of a due time to drop; a bucket is ``2**bits`` ms wide.

    Long delays get wider buckets, so that scattered due times do not make a bucket each.
    `fixed_bits` is the user's `negative_ack_precision_bit_cnt` (PIP-393), which wins.
    """
    if fixed_bits is not None:
        if not 0 <= fixed_bits <= MAX_BITS:
            raise ConfigurationError(f"precision bits must be 0 to {MAX_BITS}, not {fixed_bits}")
        return fixed_bits
    if delay_ms < 0:
        raise ConfigurationError(f"a delay must not be negative, got {delay_ms} ms")
    width_ms = delay_ms // _SHARE if delay_ms > _NARROW_UP_TO_MS else _NARROW_MS
    return min(width_ms.bit_length() - 1, MAX_BITS)


def bucket_edge(due_ms: int, bits: int) -> int:
    """Round a due time up to the edge of its bucket: never early, late by less than 2**bits."""
    if due_ms >> MAX_ID_BITS or not 0 <= bits <= MAX_BITS:  # -1 when negative
        raise ConfigurationError(
            f"due time and precision must be 0 to 2**63 - 1 ms and 0 to {MAX_BITS} bits, "
            f"got {due_ms} and {bits}"
        )
    return -(-due_ms >> bits) << bits
