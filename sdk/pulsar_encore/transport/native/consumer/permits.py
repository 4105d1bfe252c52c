"""Counts how many messages a broker may send, in number and in bytes. Pure.

Open permits and held messages are kept at the window together. The window is the receiver queue, or
less if messages are so large that a full queue would exceed the allowed bytes, because a permit
says nothing about size (`docs/notes/wire-protocol.md#flow-permits`).
"""

from __future__ import annotations

from typing import Final

# Permits before the first message arrives. Its size is unknown until then; it may be 5 MiB.
_FIRST: Final = 16
_SMOOTHING: Final = 8  # deliveries that the average size follows


class Permits:
    """The permits of one topic.

    Args:
        queue: Most messages at a time; 0 for as many as the application waits for.
        most_bytes: Most bytes at a time, estimated from the average size of messages.

    Attributes:
        open: Messages that the broker may still send. Below 0 after a batch with more messages than
            permits.
        held: Messages that have arrived and were not consumed.
        window: Most messages that may be open and held together.
        stopped: No more permits may be given.
        taken: Messages that the application has taken, in all.
    """

    def __init__(self, queue: int, most_bytes: int) -> None:
        self._queue = queue
        self._wanted = 0
        self._most_bytes = most_bytes
        self._average = 0.0  # bytes of a message; 0 while unknown
        self._is_first = False  # only the first permits were given
        self.open: int = 0
        self.held: int = 0
        self.stopped: bool = False
        self.taken: int = 0
        self._set_window()

    def _set_window(self) -> None:
        """Follow a change of the queue, of the average size, or of `_is_first`."""
        if not self._queue:
            window = self._wanted
        elif not self._average:
            window = min(self._queue, _FIRST)
        else:
            window = max(1, min(self._queue, int(self._most_bytes / self._average)))
        self.window: int = window
        # Permits are due once half the window is free, so that few FLOW commands are sent. Kept,
        # because `consumed` compares it for every delivery.
        self._due_at = window - (1 if self._is_first else max(1, window // 2))

    def reset(self, *, keeps: bool = False) -> None:
        """Start with no permits on a new connection. With `keeps`, keep the held messages."""
        self.open = 0
        if not keeps:
            self.held = 0

    def arrived(self, charged: int, delivered: int, size: int) -> None:
        """Count an entry that arrived.

        Args:
            charged: Permits that the broker took for it.
            delivered: Its messages that the application will take.
            size: Bytes of the entry, as it is held.
        """
        self.open -= charged
        self.held += delivered
        if self._wanted:
            self.want(max(0, self._wanted - delivered))
        self._learn(charged, size)

    def kept_chunk(self) -> None:
        """Count a chunk that arrived. Its bytes count once its message is complete."""
        self.open -= 1

    def queued(self, charged: int, size: int) -> None:
        """Count an entry that arrived and is delivered later; arguments as in `arrived`."""
        self.open -= charged
        self.held += charged
        self._learn(charged, size)

    def unqueued(self, charged: int) -> None:
        """Undo `queued` for an entry that leaves the queue. Call `arrived` next."""
        self.open += charged
        self.held -= charged

    def consumed(self, messages: int) -> bool:
        """Count messages that the application took; return True if `take_due` may give permits."""
        self.held = held = max(0, self.held - messages)
        self.taken += messages
        return self.open + held <= self._due_at

    def withdrawn(self, messages: int) -> None:
        """Count messages that arrived and were dropped before delivery."""
        self.held = max(0, self.held - messages)

    def _learn(self, charged: int, size: int) -> None:
        mean, average = size / max(1, charged), self._average
        if mean != average:
            self._average = average + (mean - average) / _SMOOTHING if average else mean
            self._set_window()

    def want(self, messages: int) -> None:
        """Set the number of messages that the application waits for, for a queue of 0."""
        self._wanted = messages
        self._set_window()

    def take_due(self) -> int:
        """Return the permits to give now, and count them as given.

        Return 0 until half the window is free, so that few FLOW commands are sent.
        """
        used = self.open + self.held
        if self.stopped or used > self._due_at:
            return 0
        free = self.window - used
        # Once the size of the first message is known, give the rest of the window without delay.
        is_first = not self._average
        if is_first is not self._is_first:
            self._is_first = is_first
            self._set_window()
        self.open += free
        return free
