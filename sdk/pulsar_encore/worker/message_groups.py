"""Which messages of a worker are handled one after the other."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Any, Final

from ..errors import UnreadableError
from ..message import Message, batch_of, has_siblings
from .scheduler import Order

_UNREADABLE_KEY: Final = "unreadable"  # one group for keys that the stock transport cannot read


class MessageGroups:
    """Finds the group of a message: its topic, or its topic and key. No group: no order.

    Args:
        worker: Name of the worker, for a log line.
    """

    def __init__(self, order: Order, worker: str, logger: logging.Logger) -> None:
        self._order = order
        self._worker = worker
        self._log = logger
        self._has_warned = False
        self._latest_batch: tuple[Any, str] = (None, "")  # and its key

    def of(self, message: Message, topic: str) -> Hashable | None:
        if self._order is Order.NONE:
            return None
        if self._order is Order.PARTITION:
            return topic
        try:
            key = message.ordering_key() or message.partition_key()
        except UnreadableError:
            key = _UNREADABLE_KEY
        if not self._has_warned and has_siblings(message):
            self._check_batch(message, topic, key)
        return (topic, key) if key else None

    def _check_batch(self, message: Message, topic: str, key: str) -> None:
        """Warn once of a batch with several keys, which several workers handle out of order."""
        batch = batch_of(message)
        if batch is not self._latest_batch[0] or key == self._latest_batch[1]:
            self._latest_batch = (batch, key)
            return
        self._has_warned = True
        self._latest_batch = (None, "")
        self._log.warning(
            "worker %s: a batch of %s has messages of several keys. The broker delivers a batch as "
            "a whole, so several workers may handle messages of one key at the same time. Let the "
            "producers use batching_type=BatchingType.KeyBased, or batching_enabled=False",
            self._worker,
            topic,
        )
