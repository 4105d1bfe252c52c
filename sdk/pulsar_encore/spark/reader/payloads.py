"""Collected payloads. Payloads of a batch stay in its buffer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from .plain_messages import PlainMessages


class Payloads:
    """Payloads of rows; None stands for a null value, and `size` is their total in bytes."""

    def __init__(self) -> None:
        self._parts: list[PlainMessages | list[bytes | None]] = []
        self._count = 0
        self.size: int = 0

    def __len__(self) -> int:
        return self._count

    def add(self, payloads: Sequence[bytes | None]) -> None:
        if not (self._parts and isinstance(self._parts[-1], list)):
            self._parts.append([])
        last = self._parts[-1]
        assert isinstance(last, list)
        last += payloads
        self._count += len(payloads)
        self.size += sum(len(each) for each in payloads if each is not None)

    def add_plain(self, plain: PlainMessages) -> None:
        self._parts.append(plain)
        self._count += len(plain.begins)
        self.size += int((plain.ends - plain.begins).sum())

    def arrow(self) -> pa.BinaryArray:
        arrays = [
            pa.array(each, pa.binary()) if isinstance(each, list) else _sliced(each)
            for each in self._parts
        ]
        if len(arrays) == 1:
            return arrays[0]
        return pa.concat_arrays(arrays) if arrays else pa.array([], pa.binary())

    def to_list(self) -> list[bytes | None]:
        payloads: list[bytes | None] = []
        for each in self._parts:
            if isinstance(each, list):
                payloads += each
            else:
                edges = zip(each.begins.tolist(), each.ends.tolist(), strict=True)
                payloads += [each.buffer[begin:end] for begin, end in edges]
        return payloads


def _sliced(plain: PlainMessages) -> pa.BinaryArray:
    """Return slices of a buffer as an array, without a copy per payload.

    The whole buffer becomes an array of alternating payloads and gaps; every second one is taken.
    """
    count = len(plain.begins)
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = plain.begins
    edges[1::2] = plain.ends
    whole = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), pa.py_buffer(plain.buffer)]
    )
    return whole.take(pa.array(np.arange(0, 2 * count - 1, 2)))
