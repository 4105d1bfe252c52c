"""State in RocksDB: attempts and due times that survive a kill, after RocketMQ's RIP-73.

RocketMQ's design: `docs/notes/delayed-delivery.md#rip-73-pop-consumption-on-a-key-value-store`.

`RocksStore` is one directory for a whole process; a `TopicStore` of it, which stands for one topic
and subscription, has `AttemptRecords` (how often messages were handed over, and until when they
wait). Needs the extra `state`. What is here reads no clock and starts no timer; the one thread
there is belongs to `durability="power"`. `RocksBlobs` is a `BlobStore`, for a `SpillingIndex`.
"""

from .attempt_records import MOST_DIFFERENT, AttemptRecords, DeliveredRecord, RecalledAttempts
from .rocks_blobs import RocksBlobs
from .rocks_store import RocksStore, StoreStatistics, StoreUser, TopicStore
from .state_reader import FoundRecord, FoundTopic, StateReader

__all__ = [
    "MOST_DIFFERENT",
    "AttemptRecords",
    "DeliveredRecord",
    "FoundRecord",
    "FoundTopic",
    "RecalledAttempts",
    "RocksBlobs",
    "RocksStore",
    "StateReader",
    "StoreStatistics",
    "StoreUser",
    "TopicStore",
]
