"""Names of span attributes.

Those that begin with `messaging.` and `error.` are OpenTelemetry's. The package of semantic
conventions is a beta release whose names move between versions, so the names are written here.
"""

from __future__ import annotations

from typing import Final

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
SUBSCRIPTION: Final = "messaging.destination.subscription.name"
PUBLISHED_TO: Final = "messaging.destination_publish.name"
MESSAGE_ID: Final = "messaging.message.id"
BODY_SIZE: Final = "messaging.message.body.size"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"

WORKER: Final = "pulsar_encore.worker"
ATTEMPT: Final = "pulsar_encore.attempt"
RESULT: Final = "pulsar_encore.result"
SETTLEMENT: Final = "pulsar_encore.settlement"
RETRY_DELAY: Final = "pulsar_encore.retry_delay"
LETTER: Final = "pulsar_encore.letter"
