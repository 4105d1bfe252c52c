"""State in RocksDB: attempts and due times that survive a kill, after RocketMQ's RIP-73.

`RocksStore` is one directory for a whole process; a `Source` of it, which stands for one topic and
subscription, has a `RocksIndex` (what waits until when) and `Records` (how often what was handed
over). Needs the extra `state`. What is here reads no clock and starts no timer; the one thread
there is belongs to `durability="power"`. `RocksBlobs` is a `BlobStore`, for a `SpillingIndex`.
"""

from .blobs import RocksBlobs
from .index import RocksIndex
from .offline import FoundRecord, FoundSource, StateReader
from .records import HandedOver, Recalled, Records
from .store import RocksStore, Sharer, Source, StoreStatistics

__all__ = [
    "FoundRecord",
    "FoundSource",
    "HandedOver",
    "Recalled",
    "Records",
    "RocksBlobs",
    "RocksIndex",
    "RocksStore",
    "Sharer",
    "Source",
    "StateReader",
    "StoreStatistics",
]
