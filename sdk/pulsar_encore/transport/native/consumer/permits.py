"""How many messages a broker may send: bounded in number and in bytes. Pure.

Owns `Permits`, of one source on one connection. The broker counts down a permit for each message it
sends; what it still has, plus what was delivered and not consumed, is kept at the window. The
window is the receiver queue, or less where messages are so large that the queue of them would be
more than the bytes allowed (a permit says nothing about size, wire-protocol notes 5.2). With a
queue of 0 it is what somebody waits for.
"""

from __future__ import annotations

from typing import Final

# Until the first message came nobody knows how large they are: so many may be 5 MiB each.
_FIRST: Final = 16
_SMOOTHING: Final = 8  # the average size follows the last so many deliveries


class Permits:
    """Permits of one source.

    Args:
        queue: Most messages at a time; 0 for those that are `wanted`.
        most_bytes: Most bytes at a time, by the average size of those that came.
    """

    __slots__ = (
        "_average",
        "_held",
        "_most_bytes",
        "_open",
        "_queue",
        "_waits",
        "_wanted",
        "stopped",
        "taken",
    )

    def __init__(self, queue: int, most_bytes: int) -> None:
        self._queue = queue
        self._wanted = 0
        self._most_bytes = most_bytes
        self._average = 0.0  # bytes of a message; 0 while unknown
        self._open = 0  # what the broker has left; below 0 after a batch larger than that
        self._held = 0  # delivered and not consumed
        self._waits = False
        self.stopped: bool = False  # ask for nothing more
        #: Messages that the application has taken, in all.
        self.taken: int = 0

    @property
    def open(self) -> int:
        """Messages that the broker may still send."""
        return self._open

    @property
    def held(self) -> int:
        """Messages that have arrived and were not consumed."""
        return self._held

    @property
    def window(self) -> int:
        """Most messages that may be open and held together."""
        if not self._queue:
            return self._wanted
        if not self._average:
            return min(self._queue, _FIRST)
        return max(1, min(self._queue, int(self._most_bytes / self._average)))

    def reset(self, *, keeps: bool = False) -> None:
        """Another connection: the broker has none.

        Args:
            keeps: What was delivered stays, and does not come again: of a reader.
        """
        self._open = 0
        if not keeps:
            self._held = 0

    def arrived(self, charged: int, delivered: int, size: int) -> None:
        """An entry came.

        Args:
            charged: What the broker counted down.
            delivered: Messages of it that will be consumed; the others are at once.
            size: Bytes of the entry, as it is held.
        """
        self._open -= charged
        self._held += delivered
        self._wanted = max(0, self._wanted - delivered)
        self._learn(charged, size)

    def kept_chunk(self) -> None:
        """A chunk came that is kept for its message, which counts its bytes once it is complete."""
        self._open -= 1

    def queued(self, charged: int, size: int) -> None:
        """An entry came that is delivered later.

        Args:
            charged: Messages that the broker counted down.
            size: Bytes of the entry, as it is held: compressed.
        """
        self._open -= charged
        self._held += charged
        self._learn(charged, size)

    def unqueued(self, charged: int) -> None:
        """Undo `queued` for an entry that leaves the queue; the caller calls `arrived` next."""
        self._open += charged
        self._held -= charged

    def consumed(self, messages: int) -> None:
        """The application has taken so many: there is room for as many more."""
        self._held = max(0, self._held - messages)
        self.taken += messages

    def withdrawn(self, messages: int) -> None:
        """Count messages that arrived and were dropped before delivery."""
        self._held = max(0, self._held - messages)

    def _learn(self, charged: int, size: int) -> None:
        mean = size / max(1, charged)
        self._average += (mean - self._average) / _SMOOTHING if self._average else mean

    def want(self, messages: int) -> None:
        """Somebody waits for so many."""
        self._wanted = messages

    def due(self) -> int:
        """Permits to give now; they count as given. 0 until half of the window is free."""
        if self.stopped:
            return 0
        window = self.window
        free = window - self._open - self._held
        if free < (1 if self._waits else max(1, window // 2)):
            return 0
        self._waits = not self._average  # once it is known how much more may come, it is asked for
        self._open += free
        return free
