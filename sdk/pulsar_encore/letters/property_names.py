"""Names of the properties of retry letters and dead letters.

The first group is Java's, byte for byte, so that Java, Go and this client understand each other's
letters. The second group is this package's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..errors import ConfigurationError

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
"""Properties of a nack that overflowed to the retry letter topic. No later letter keeps them."""

COUNTERS: Final = PARKED | {RECONSUME_TIMES, DELAY_TIME, ATTEMPTS, FIRST_TIME}
"""Properties that a replay removes, unless it is told to keep them."""

FAILURE: Final = frozenset({REASON, ERROR_CLASS, ERROR_MESSAGE, ERROR_STACK, FINGERPRINT})
"""Properties that describe one failure. They are replaced together: a letter never mixes two."""

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


def checked_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):
        raise ConfigurationError("properties must be a dict of strings")
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name:
            raise ConfigurationError(f"properties[{name!r}] and its name must be strings")
        if name in RESERVED:
            raise ConfigurationError(f"the property name {name} is reserved for letters")
        try:
            f"{name}{value}".encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"properties[{name!r}] cannot be written as UTF-8") from error
    return dict(properties)
