"""Rows that are held until all have arrived, in memory or in a file, and their digest."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pytest

from pulsar_encore.consumer.forwarding.copy_options import Destination
from pulsar_encore.errors import StoreError
from pulsar_encore.spark.sink.row_batches import RowChunk
from pulsar_encore.spark.sink.row_spool import RowSpool
from pulsar_encore.values.outgoing_message import OutgoingMessage


def batch(values: Sequence[bytes | None], key: str | None = None) -> pa.RecordBatch:
    keys = pa.array([key] * len(values), pa.string())
    return pa.record_batch([pa.array(values, pa.binary()), keys], names=["value", "key"])


def read(rows: pa.RecordBatch, first: int) -> RowChunk:
    payloads, keys = (each.to_pylist() for each in rows.columns)
    messages = [
        OutgoingMessage(payload=payload, partition_key=key, properties={"row": f"{number}"})
        for number, (payload, key) in enumerate(zip(payloads, keys, strict=True), first)
    ]
    return RowChunk(messages, Destination("t"), sum(len(each) for each in payloads if each))


def held(batches: Iterable[pa.RecordBatch], in_memory: int = 1 << 20) -> RowSpool:
    made = RowSpool(read, copies=False, in_memory=in_memory)
    for each in batches:
        made.add(each)
    return made


def digest_of(batches: Iterable[pa.RecordBatch], in_memory: int = 1 << 20) -> int:
    made = held(batches, in_memory)
    made.close()
    return made.digest


def rows_of(made: RowSpool) -> list[tuple[bytes | None, str]]:
    return [
        (message.payload, (message.properties or {})["row"])
        for chunk in made.take()
        for message in chunk.messages
    ]


VALUES = [b"%d" % each for each in range(1000)]
CUT = [batch(VALUES[at : at + 100]) for at in range(0, 1000, 100)]


@pytest.mark.parametrize("in_memory", [0, 60_000, 200_000, 1 << 30])
def test_all_rows_come_out_in_order_however_many_fit_in_memory(in_memory: int) -> None:
    made = held(CUT, in_memory)
    assert rows_of(made) == [(value, f"{at}") for at, value in enumerate(VALUES)]
    assert rows_of(made) == []


def test_the_digest_depends_on_the_rows_and_not_on_their_batches() -> None:
    whole = digest_of([batch(VALUES)])
    assert digest_of(CUT) == digest_of(CUT, 0) == whole
    others = [
        VALUES[:-1],
        [*VALUES, b""],
        [*VALUES[:500], b"500!", *VALUES[501:]],
        [VALUES[1], VALUES[0], *VALUES[2:]],
        [b"01", b"", *VALUES[2:]],
        [None, *VALUES[1:]],
    ]
    found = {digest_of([batch(each)]) for each in others}
    found.add(digest_of([batch(VALUES, "k")]))
    assert len(found | {whole}) == len(others) + 2


def test_the_error_names_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(StoreError, match=r"TMPDIR.*No space left"):
        held(CUT, 0)
