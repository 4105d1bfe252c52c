"""State in RocksDB: attempts and due times that survive a kill, after RocketMQ's RIP-73.

RocketMQ's design: `docs/notes/delayed-delivery.md#rip-73-pop-consumption-on-a-key-value-store`.

`RocksStore` is one directory for a whole process; a `Source` of it, which stands for one topic and
subscription, has `Records` (how often messages were handed over, and until when they wait). Needs
the extra `state`. What is here reads no clock and starts no timer; the one thread there is belongs
to `durability="power"`. `RocksBlobs` is a `BlobStore`, for a `SpillingIndex`.
"""

from .blobs import RocksBlobs
from .offline import FoundRecord, FoundSource, StateReader
from .records import MOST_DIFFERENT, HandedOver, Recalled, Records
from .store import RocksStore, Sharer, Source, StoreStatistics

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
