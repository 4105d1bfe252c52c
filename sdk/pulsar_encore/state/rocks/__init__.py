"""State in RocksDB: attempts and due times that survive a kill, after RocketMQ's RIP-73.

`RocksStore` is one directory for a whole process; a `Source` of it, which stands for one topic and
subscription, has `Records` (how often messages were handed over, and until when they wait). Needs
the extra `state`. What is here reads no clock and starts no timer; the one thread there is belongs
to `durability="power"`. `RocksBlobs` is a `BlobStore`, for a `SpillingIndex`.
"""

from .attempt_records import MOST_DIFFERENT, HandedOver, Recalled, Records
from .rocks_blobs import RocksBlobs
from .rocks_store import RocksStore, Sharer, Source, StoreStatistics
from .state_reader import FoundRecord, FoundSource, StateReader

__all__ = [
    "MOST_DIFFERENT",
    "FoundRecord",
    "FoundSource",
    "HandedOver",
    "Recalled",
    "Records",
    "RocksBlobs",
    "RocksStore",
    "Sharer",
    "Source",
    "StateReader",
    "StoreStatistics",
]
