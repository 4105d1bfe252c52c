"""The due indexes of one consumer's nacks that spill to disk.

A thread of the consumer writes and reads snapshots. The rest of the work runs on the event loop in
short steps: in the calls of the index and, while there is work, in a timer. Without the timer, ids
of the last nacks would stay in memory until the next nack.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from ..eventloop.affinity import end_all
from ..eventloop.shielded_work import shielded
from ..options import ConsumerOptions
from ..options.nack_index import SpillingNackIndex
from ..state.blobs.transient_blobs import TransientBlobs, TransientDirectory
from ..state.spilling.spilling_index import SpillingIndex
from ..state.spilling.spilling_metrics import MetricSample

# A step takes at most about 1 ms. Between two steps the loop runs other tasks.
_PAUSE_S: Final = 0.005
# Pause after a step that failed for an unknown reason, such as a bug.
_RETRY_S: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NackIndexStatistics:
    """Counts of the due indexes of a consumer, with the option `nack_index`.

    Attributes:
        in_memory: Ids of waiting nacks that are in memory. Each other id takes about one bit.
        snapshots: Snapshots on disk.
        stored_bytes: Bytes of these snapshots.
        error: Why ids are in memory that belong on disk, such as a full disk; None if the last
            writes succeeded. Failed writes are retried after a minute.
    """

    in_memory: int
    snapshots: int
    stored_bytes: int
    error: str | None


class NackSpilling:
    def __init__(
        self,
        options: SpillingNackIndex,
        directory: TransientDirectory,
        subscription: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._options = options
        self._directory = directory
        self._subscription = subscription
        self._loop = loop
        self._executor = ThreadPoolExecutor(1, "pulsar-encore-nacks")
        self._indexes: list[SpillingIndex] = []
        # The position of each topic's index. A topic that is created again gets another index.
        self._topics: dict[str, int] = {}
        self._working: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @classmethod
    async def open(cls, options: ConsumerOptions) -> NackSpilling | None:
        """Make the directory of the option `nack_index`; return None without the option."""
        wanted: SpillingNackIndex | None = options.nack_index
        if wanted is None:
            return None
        loop = asyncio.get_running_loop()
        making = loop.run_in_executor(None, TransientDirectory.make, Path(wanted.path))
        try:
            directory = await shielded(making)
        except asyncio.CancelledError:
            making.add_done_callback(_remove)
            raise
        return cls(wanted, directory, options.subscription_name, loop)

    def new(self, topic: str) -> SpillingIndex:
        """Make the index of a topic. It creates no file before it spills."""
        options = self._options
        step_s = options.max_time_step_per_bucket_snapshot_segment_seconds
        at = self._topics[topic] = len(self._indexes)
        index = SpillingIndex(
            TransientBlobs(self._directory.path / str(at)),
            min_index_count_per_bucket=options.min_index_count_per_bucket,
            max_time_step_per_bucket_snapshot_segment_seconds=step_s,
            max_indexes_per_bucket_snapshot_segment=options.max_indexes_per_bucket_snapshot_segment,
            max_num_buckets=options.max_num_buckets,
            executor=self._executor,
            clock=self._loop.time,
            transient=True,
            on_work=partial(self._watch, at),
        )
        self._indexes.append(index)
        return index

    def _watch(self, at: int) -> None:
        self._working.add(at)
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(_PAUSE_S, self._work)

    def _work(self) -> None:
        self._timer = None
        for at in list(self._working):
            try:
                more = self._indexes[at].maintain()
            except Exception as error:
                more = False
                self._loop.call_later(_RETRY_S, self._watch, at)
                text = "the work of an index of waiting nacks failed; it is tried again in 60 s"
                self._loop.call_exception_handler({"message": text, "exception": error})
            if not more:
                self._working.discard(at)
        if self._working and self._timer is None:
            self._timer = self._loop.call_later(_PAUSE_S, self._work)

    def statistics(self) -> NackIndexStatistics:
        found = [index.statistics() for index in self._indexes]
        return NackIndexStatistics(
            in_memory=sum(each.loaded for each in found),
            snapshots=sum(each.bucket_total - 1 for each in found),
            stored_bytes=sum(each.bucket_snapshot_size_bytes for each in found),
            error=next((each.error for each in found if each.error is not None), None),
        )

    def metrics(self) -> list[MetricSample]:
        return [
            sample
            for topic, at in self._topics.items()
            for sample in self._indexes[at].metrics(
                {"topic": topic, "subscription": self._subscription}
            )
        ]

    async def close(self) -> None:
        """End all indexes and remove their files, even if an index fails."""
        if self._closed:
            return
        try:
            self._end()
        finally:  # a thread waits for the write in progress
            await self._loop.run_in_executor(None, self._removed)

    def abandon(self) -> None:
        """Do the same without an event loop, blocking."""
        if self._closed:
            return
        try:
            self._end()
        finally:
            self._removed()

    def _end(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        end_all(self._loop, *[index.close for index in self._indexes])

    def _removed(self) -> None:
        self._executor.shutdown()
        self._directory.remove()


def _remove(making: asyncio.Future[TransientDirectory]) -> None:
    """Remove the empty directory of a subscribe call that was cancelled."""
    if not making.cancelled() and making.exception() is None:
        making.result().remove()
