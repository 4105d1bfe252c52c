"""The properties of retry and dead letters: one place for their names, shared with the Spark code.

The first group is Java's, byte for byte, so that Java, Go and this client understand each other's
letters. The second is the evidence that a letter of this
package carries, and what a replay leaves behind.
"""

from __future__ import annotations

from typing import Final

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
ORIGIN_MESSAGE_ID_LEGACY: Final = "ORIGIN_MESSAGE_IDY_TIME"
RECONSUME_TIMES: Final = "RECONSUMETIMES"
DELAY_TIME: Final = "DELAY_TIME"

REASON: Final = "ENCORE_REASON"
ERROR_CLASS: Final = "ENCORE_ERROR_CLASS"
ERROR_MESSAGE: Final = "ENCORE_ERROR_MESSAGE"
ERROR_STACK: Final = "ENCORE_ERROR_STACK"
FINGERPRINT: Final = "ENCORE_FINGERPRINT"
ATTEMPTS: Final = "ENCORE_ATTEMPTS"
FIRST_TIME: Final = "ENCORE_FIRST_TIME"
LAST_TIME: Final = "ENCORE_LAST_TIME"
CONSUMER: Final = "ENCORE_CONSUMER"
VERSION: Final = "ENCORE_VERSION"
PARKED_LOOKS: Final = "ENCORE_PARKED_LOOKS"
PARKED_TIMES: Final = "ENCORE_PARKED_TIMES"
REPLAY_ID: Final = "ENCORE_REPLAY_ID"
REPLAYED_FROM: Final = "ENCORE_REPLAYED_FROM"

PARKED: Final = frozenset({PARKED_LOOKS, PARKED_TIMES})
"""Of a parked nack only; no letter after it has them."""

COUNTERS: Final = PARKED | {RECONSUME_TIMES, DELAY_TIME, ATTEMPTS, FIRST_TIME}
"""What a replay resets, unless told to keep it."""

FAILURE: Final = frozenset({REASON, ERROR_CLASS, ERROR_MESSAGE, ERROR_STACK, FINGERPRINT})
"""What describes one failure; replaced together, or a letter would mix two."""

EVIDENCE: Final = FAILURE | {ATTEMPTS, FIRST_TIME, LAST_TIME, CONSUMER, VERSION}

RESERVED: Final = (
    frozenset(
        {
            REAL_TOPIC,
            REAL_SUBSCRIPTION,
            ORIGIN_MESSAGE_ID,
            ORIGIN_MESSAGE_ID_LEGACY,
            RECONSUME_TIMES,
            DELAY_TIME,
            REPLAY_ID,
            REPLAYED_FROM,
        }
    )
    | EVIDENCE
    | PARKED
)
"""Names that an application may not give to `reconsume_later`."""
