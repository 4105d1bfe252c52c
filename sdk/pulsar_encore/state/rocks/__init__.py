"""State in RocksDB: attempts and due times that survive a kill, after RocketMQ's RIP-73.

RocketMQ's design: `docs/notes/delayed-delivery.md#rip-73-pop-consumption-on-a-key-value-store`. The
store reads no clock and starts no timer. Needs the extra `state`.
"""

from .attempt_records import MAX_DIFFERENT, AttemptRecords, DeliveredRecord
from .owner_file import Owner
from .rocks_blobs import RocksBlobs
from .rocks_store import RocksStore, StoreStatistics, StoreUser, TopicStore
from .state_reader import FoundRecord, FoundTopic, StateReader

__all__ = [
    "MAX_DIFFERENT",
    "AttemptRecords",
    "DeliveredRecord",
    "FoundRecord",
    "FoundTopic",
    "Owner",
    "RocksBlobs",
    "RocksStore",
    "StateReader",
    "StoreStatistics",
    "StoreUser",
    "TopicStore",
]
