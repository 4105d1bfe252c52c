"""What letters say: retry letters, dead letters, parked nacks and the copies that a replay sends.

One format, written and read here for consumers, for the triage of dead-letter topics, and for
whoever has rows instead of messages. Pure: times are arguments, a message comes in as an
`Original`, a letter goes out as an `Outgoing`. The names of the properties are public, and are
here.
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
