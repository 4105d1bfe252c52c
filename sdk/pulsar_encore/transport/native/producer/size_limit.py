"""The largest message that a producer may send, and how much of it a chunk may take.

The broker names its limit in CONNECTED (`max_message_size`). It counts for the payload; a frame may
have `FRAME_OVERHEAD` bytes more.
"""

from __future__ import annotations

from ....errors import MessageTooBig
from ....wire.frames import FRAME_OVERHEAD


class SizeLimit:
    """The broker's limit for one message.

    Args:
        max_message_size: Largest payload, in bytes.
    """

    __slots__ = ("_max_message_size",)

    def __init__(self, max_message_size: int) -> None:
        self._max_message_size = max_message_size

    @property
    def batch(self) -> int:
        """The largest batch that is always accepted, in bytes before compression."""
        return self._max_message_size - FRAME_OVERHEAD

    def chunk(self, metadata: int) -> int:
        """Return the payload bytes that fit into a chunk beside its metadata, at least 1.

        The storage layer's limit may be exactly the broker's limit, so the metadata counts too:
        `docs/notes/wire-protocol.md#frame-sizes`.

        Raises:
            MessageTooBig: if the metadata alone, which each chunk repeats, is over the limit.
        """
        most = self.batch - metadata
        if most <= 0:
            raise MessageTooBig(
                f"MessageTooBig: the metadata of a chunk takes the whole of "
                f"{self._max_message_size} bytes, the broker's limit: use fewer or shorter "
                "properties and keys"
            )
        return most

    def check_payload(self, size: int) -> None:
        limit = self._max_message_size
        if size > limit:
            raise MessageTooBig(
                f"MessageTooBig: {size} bytes, the broker takes {limit}: split the "
                "message, compress it, or use chunking_enabled=True with batching_enabled=False"
            )

    def check_frame(self, frame: int, payload: int, metadata: int) -> None:
        limit = self._max_message_size + FRAME_OVERHEAD
        if frame > limit:
            raise MessageTooBig(
                f"MessageTooBig: {payload} bytes with {metadata} of metadata, the "
                f"broker takes {limit} together: use fewer or shorter properties and keys"
            )
