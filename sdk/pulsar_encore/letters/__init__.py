"""The content of letters: retry letters, dead letters, overflow letters and replayed copies.

Consumers, the triage of dead letter topics and the Spark sink write and read letters with this
package. It is pure: times are arguments, a message is an `OriginalMessage`, and a letter is an
`OutgoingMessage`. The names of the properties are public.
"""

from .properties import (
    ATTEMPTS,
    CONSUMER,
    COUNTERS,
    DELAY_TIME,
    ERROR_CLASS,
    ERROR_MESSAGE,
    ERROR_STACK,
    EVIDENCE,
    FAILURE,
    FINGERPRINT,
    FIRST_TIME,
    LAST_TIME,
    ORIGIN_MESSAGE_ID,
    ORIGIN_MESSAGE_ID_LEGACY,
    PARKED,
    PARKED_LOOKS,
    PARKED_TIMES,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    REASON,
    RECONSUME_TIMES,
    REPLAY_ID,
    REPLAYED_FROM,
    RESERVED,
    VERSION,
)

__all__ = [
    "ATTEMPTS",
    "CONSUMER",
    "COUNTERS",
    "DELAY_TIME",
    "ERROR_CLASS",
    "ERROR_MESSAGE",
    "ERROR_STACK",
    "EVIDENCE",
    "FAILURE",
    "FINGERPRINT",
    "FIRST_TIME",
    "LAST_TIME",
    "ORIGIN_MESSAGE_ID",
    "ORIGIN_MESSAGE_ID_LEGACY",
    "PARKED",
    "PARKED_LOOKS",
    "PARKED_TIMES",
    "REAL_SUBSCRIPTION",
    "REAL_TOPIC",
    "REASON",
    "RECONSUME_TIMES",
    "REPLAYED_FROM",
    "REPLAY_ID",
    "RESERVED",
    "VERSION",
]
