"""Restore an index when it is opened.

The state is that of the manifest and then of the journals, in their order. Blobs and journals that
the manifest does not need are removed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyroaring import BitMap64

from ...core.message_key import MessageKey
from ...errors import StateDamagedError
from ..blobs.blob_store import BlobStore
from . import journal_records as records
from . import manifest
from . import snapshot_meta as snapshot
from .heads import Heads
from .manifest import Manifest
from .membership import Membership
from .snapshot_cursor import SnapshotCursor
from .snapshots import Snapshots

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveredIndex:
    """The stored state that was found.

    Attributes:
        journal: Number of the next journal.
        journals: Journals that are still needed, of `size` bytes.
        torn: Bytes of records that a crash had cut short.
    """

    start: Manifest
    journal: int
    journals: list[int]
    size: int
    torn: int


def open_store(
    store: BlobStore, heads: Heads, membership: Membership, snapshots: Snapshots, *, sync: bool
) -> RecoveredIndex:
    stored_generations, journals = store.generations(), store.journals()
    data = store.read_manifest()
    if data is None:
        if stored_generations or journals:
            raise StateDamagedError(
                f"there are {len(stored_generations)} snapshots and {len(journals)} journals, "
                "and no manifest that says which count; remove them to begin with nothing"
            )
        start = Manifest()
        store.write_manifest(manifest.encoded(start), sync=sync)
    else:
        start = manifest.decoded(data)
    _read_snapshots(store, start, stored_generations, membership, snapshots)
    membership.slots.next = max(membership.slots.next, start.next_slot)
    needed: list[int] = []
    size = torn = 0
    player = _Player(heads, membership, snapshots)
    for number in journals:
        if number < start.first_journal:
            store.delete_journal(number)
            continue
        data = store.read_journal(number)
        needed.append(number)
        size += len(data)
        torn_bytes = records.play(data, player, f"journal {number}")
        if torn_bytes:
            logger.warning("journal %d: a crash cut its last %d bytes short", number, torn_bytes)
        torn += torn_bytes
    next_journal = max([start.first_journal, *(number + 1 for number in journals)])
    return RecoveredIndex(start, next_journal, needed, size, torn)


def _read_snapshots(
    store: BlobStore,
    start: Manifest,
    stored_generations: list[int],
    membership: Membership,
    snapshots: Snapshots,
) -> None:
    copies = BitMap64()
    for generation in stored_generations:
        if generation not in start.blobs:
            store.delete(generation)
    for generation, superseded in start.blobs.items():
        meta = snapshot.read(store, generation)
        copies |= meta.ids
        cursor = SnapshotCursor(generation, meta.firsts, len(meta.ids), superseded)
        cursor.size = store.size(generation)
        live = meta.ids - start.left
        live -= superseded
        cursor.handed = cursor.total - len(live)
        membership.add_restored(live, meta.slots)
        snapshots.add(cursor)
    membership.left = start.left & copies


class _Player:
    def __init__(self, heads: Heads, membership: Membership, snapshots: Snapshots) -> None:
        self._heads = heads
        self._membership = membership
        self._snapshots = snapshots

    def put(self, key: MessageKey, due_ms: int, bits: int) -> None:
        self._heads.put(key, due_ms, bits)
        self._membership.shadow(key)

    def gone(self, key: MessageKey) -> None:
        self._heads.discard(key)
        self._membership.leave(key)

    def entry_gone(self, ledger: int, entry: int) -> None:
        self._heads.discard_entry(ledger, entry)
        self._membership.leave_entry(ledger, entry)

    def through_gone(self, ledger: int, entry: int) -> None:
        self._heads.discard_through(ledger, entry)
        self._membership.leave_through(ledger, entry)

    def clear(self) -> None:
        self._heads.clear()
        self._membership.clear()
        self._snapshots.clear()
