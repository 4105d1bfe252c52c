"""The largest message that a producer may send, and how much of it a chunk may take.

The broker names its limit in CONNECTED (`max_message_size`). It counts for the payload; a frame may
have `FRAME_OVERHEAD` bytes more.
"""

from __future__ import annotations

from ....errors import MessageTooBig
from ....wire.frames import FRAME_OVERHEAD


class SizeLimit:
    """The broker's limit for one message.

    The encoder compares each message with `payload` and `frame` itself, because a call for each
    would cost 0.1 us.

    Args:
        max_message_size: Largest payload, in bytes.

    Attributes:
        payload: Largest payload, in bytes.
        frame: Largest frame, in bytes.
        batch: Largest batch that is always accepted, in bytes before compression.
    """

    __slots__ = ("batch", "frame", "payload")

    def __init__(self, max_message_size: int) -> None:
        self.payload: int = max_message_size
        self.frame: int = max_message_size + FRAME_OVERHEAD
        self.batch: int = max_message_size - FRAME_OVERHEAD

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
                f"MessageTooBig: the metadata of a chunk takes the whole of {self.payload} bytes, "
                "the broker's limit: use fewer or shorter properties and keys"
            )
        return most

    def payload_error(self, size: int) -> MessageTooBig:
        return MessageTooBig(
            f"MessageTooBig: {size} bytes, the broker takes {self.payload}: split the "
            "message, compress it, or use chunking_enabled=True with batching_enabled=False"
        )

    def frame_error(self, payload: int, metadata: int) -> MessageTooBig:
        return MessageTooBig(
            f"MessageTooBig: {payload} bytes with {metadata} of metadata, the "
            f"broker takes {self.frame} together: use fewer or shorter properties and keys"
        )
