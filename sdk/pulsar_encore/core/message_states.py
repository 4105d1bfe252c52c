"""The states of a message, and the table of the legal transitions.

Each row of `TRANSITIONS` is a method of `entry.Entry`. It maps each state that the method changes
to the next one. `queue`, `queue_all` and `wait_on` trust their caller; the others leave any other
state as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

AWAY: Final = 0  # with the broker, or in flight
QUEUED: Final = 1  # here, not yet delivered to the application
HELD: Final = 2  # delivered to the application, not settled
NACKED: Final = 3  # waiting here for its due time
ACKED: Final = 4
# A release of everything leaves these two states as they are.
FORWARDING: Final = 5  # being forwarded to a letter topic; acked once the letter is stored
ACK_PENDING: Final = 6  # acked in a transaction that has not ended

TRANSITIONS: Final[Mapping[str, Mapping[int, int]]] = {
    # It was delivered. A NACKED message is queued only if its redelivery was requested.
    "queue": {AWAY: QUEUED, NACKED: QUEUED},
    # An unknown entry was delivered as a whole.
    "queue_all": {AWAY: QUEUED},
    # Another copy arrived sooner than the requested one can.
    "wait_on": {AWAY: NACKED},
    # The broker's ack set names acked messages.
    "learn_acked": {AWAY: ACKED},
    # A message that its ack set did not name was acked in a transaction that was aborted.
    "learn_unacked": {ACKED: AWAY},
    # Only this delivery can nack it now.
    "deliver": {QUEUED: HELD},
    "deliver_all": {QUEUED: HELD},
    # `negative_acknowledge` was called for the message (for a queued one, by id), or the broker
    # delivered it before the requested delay because its timer is coarser than ours.
    "nack": {QUEUED: NACKED, HELD: NACKED, NACKED: NACKED},
    "begin_forwarding": {QUEUED: FORWARDING, HELD: FORWARDING},
    "forward_failed": {FORWARDING: HELD},
    # By message or by id, in any state.
    "ack": {
        AWAY: ACKED,
        QUEUED: ACKED,
        HELD: ACKED,
        NACKED: ACKED,
        FORWARDING: ACKED,
        ACK_PENDING: ACKED,
    },
    # Several at once, on the fast path.
    "ack_held": {HELD: ACKED},
    "ack_all": {
        AWAY: ACKED,
        QUEUED: ACKED,
        HELD: ACKED,
        NACKED: ACKED,
        FORWARDING: ACKED,
        ACK_PENDING: ACKED,
    },
    # In a transaction: by message, by id, or cumulatively; or with its letter.
    "begin_pending_ack": {
        QUEUED: ACK_PENDING,
        HELD: ACK_PENDING,
        NACKED: ACK_PENDING,
        FORWARDING: ACK_PENDING,
    },
    # The transaction was aborted. On Exclusive and Failover the message counts as held until the
    # rewind that follows in the same step.
    "give_up_pending_ack": {ACK_PENDING: AWAY},
    "hold_again": {ACK_PENDING: HELD},
    # Ordered leases: it failed and is delivered again before the next of its key.
    "requeue": {HELD: QUEUED},
    # Its attempt failed, and the application keeps it for the next one.
    "fail_in_place": {HELD: HELD},
    # It is due, or its ack timeout has passed.
    "release": {HELD: AWAY, NACKED: AWAY},
    # Everything is requested again. A FORWARDING message stays, or it would be forwarded twice. An
    # ACK_PENDING one is not redelivered before its transaction ends.
    "release_all": {QUEUED: AWAY, HELD: AWAY, NACKED: AWAY},
    # Its connection was lost: the broker sends it again.
    "drop_queued": {QUEUED: AWAY},
    # A record is used again, to ack a part of a batch that is not here.
    "readopt": {QUEUED: AWAY, HELD: AWAY, NACKED: AWAY, FORWARDING: AWAY, ACK_PENDING: AWAY},
}
"""The next state, by step and state."""
