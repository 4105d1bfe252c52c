"""Conversion of record batches into messages, in the order of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from ...consumer.forwarding.copy_options import Destination
from ...errors import ConfigurationError, EncoreError
from ...options.checks import topic_name
from ...values.message_id import MessageId
from ...values.outgoing_message import OutgoingMessage
from ...values.topic_names import full_name
from ..retry_delays import MAX_MS
from .arrays import bytes_of, listed, maps_of, millis_of, texts_of
from .letter_copies import AttemptTimes, CopyRule, FailureReason
from .row_original import RowOriginal
from .sink_columns import (
    AFTER_MS,
    AT,
    CLUSTERS,
    EVENT_TIME,
    EVIDENCE,
    KEY,
    KEY_IS_BYTES,
    MESSAGE_ID,
    ORDERING_KEY,
    PROPERTIES,
    SCHEMA_VERSION,
    TOPIC,
    ColumnLayout,
)
from .sink_options import SinkOptions
from .value_encoder import Encode, encoder_of

_Key: TypeAlias = str | bytes


@dataclass(slots=True)
class RowChunk:
    """Messages to publish, one destination for all or one for each, and the bytes of payloads."""

    messages: list[OutgoingMessage]
    destinations: Destination | list[Destination]
    size: int


class RowMessages(Protocol):
    def read(self, batch: pa.RecordBatch, first: int, times: AttemptTimes) -> RowChunk:
        """Return the messages of a batch; `first` is the index of its first row in the task."""


class ProducedRows:
    """Rows as new messages."""

    def __init__(self, layout: ColumnLayout, options: SinkOptions) -> None:
        self._layout = layout
        # A key of bytes is sent as bytes unless `textKeys` says that it is text.
        self._text_keys = bool(options.text_keys)
        self._fields = [each.name for each in layout.values]
        self._encode: Encode | None = None
        if options.value_format != "raw":
            self._encode = encoder_of(options.value_format, layout.values, options.value_schema)
        self._topic = None if options.topic is None else Destination(options.topic)
        self._destinations: dict[str, Destination] = {}

    def read(self, batch: pa.RecordBatch, first: int, times: AttemptTimes) -> RowChunk:
        columns = _Columns(batch, self._layout)
        payloads = self._payloads(batch)
        messages = [
            OutgoingMessage(
                payload=payload,
                properties=properties,
                partition_key=key,
                ordering_key=ordering_key,
                replication_clusters=clusters,
                event_timestamp=event_ms,
                deliver_at=deliver_at,
            )
            for payload, properties, key, ordering_key, clusters, event_ms, deliver_at in zip(
                payloads,
                columns.properties(),
                columns.partition_keys(self._text_keys, first),
                columns.keys(ORDERING_KEY, self._text_keys),
                columns.clusters(first),
                columns.times(EVENT_TIME, first),
                columns.due(first, times),
                # `repeat` stands for missing columns and is endless.
                strict=False,
            )
        ]
        return RowChunk(messages, self._destinations_of(columns, first), _size_of(payloads))

    def _payloads(self, batch: pa.RecordBatch) -> Sequence[bytes | None]:
        if self._encode is not None:
            return self._encode([batch.column(each) for each in self._fields])
        return bytes_of(batch.column(self._fields[0]))

    def _destinations_of(self, columns: _Columns, first: int) -> Destination | list[Destination]:
        topics = columns.topics()
        if topics is None:
            assert self._topic is not None  # checked with the layout
            return self._topic
        known = self._destinations
        try:
            return [known[each] for each in topics]  # type: ignore[index]
        except KeyError:
            pass
        for number, topic in enumerate(topics, first):
            if topic is None:
                if self._topic is None:
                    raise ConfigurationError(
                        f"{columns.name(TOPIC)} is null in row {number} of the task, and there is "
                        "no option topic: the row has no destination"
                    )
                known[topic] = self._topic  # type: ignore[index]
            elif topic not in known:
                known[topic] = Destination(_full(topic, columns.name(TOPIC)))
        return [known[each] for each in topics]  # type: ignore[index]


class CopiedRows:
    """Rows that were read from Pulsar, as letters or replays."""

    def __init__(self, layout: ColumnLayout, options: SinkOptions, rule: CopyRule) -> None:
        self._layout = layout
        self._text_keys = options.text_keys
        self._value = layout.values[0].name
        self._rule = rule
        self._topics: dict[str, str] = {}

    def read(self, batch: pa.RecordBatch, first: int, times: AttemptTimes) -> RowChunk:
        columns = _Columns(batch, self._layout)
        payloads = bytes_of(batch.column(self._value))
        topics = columns.topics()
        assert topics is not None  # checked with the layout
        messages: list[OutgoingMessage] = []
        destinations: list[Destination] = []
        for number, (payload, topic, *rest) in enumerate(
            zip(
                payloads,
                topics,
                columns.bytes(MESSAGE_ID),
                columns.properties(),
                columns.partition_keys(self._text_keys, first),
                columns.keys(ORDERING_KEY, bool(self._text_keys)),
                columns.times(EVENT_TIME, first),
                columns.bytes(SCHEMA_VERSION),
                columns.failures(),
                strict=False,
            ),
            first,
        ):
            try:
                destination, message = self._copy(columns, times, payload, topic, *rest)
            except EncoreError as error:
                raise ConfigurationError(f"row {number} of the task, {topic}: {error}") from error
            destinations.append(destination)
            messages.append(message)
        return RowChunk(messages, destinations, _size_of(payloads))

    def _copy(
        self,
        columns: _Columns,
        times: AttemptTimes,
        payload: bytes | None,
        topic: str | None,
        message_id: bytes | None,
        properties: dict[str, str] | None,
        key: Any,
        ordering_key: Any,
        event_ms: int | None,
        schema_version: bytes | None,
        failure: FailureReason,
    ) -> tuple[Destination, OutgoingMessage]:
        if topic is None or message_id is None:
            missing = columns.name(TOPIC if topic is None else MESSAGE_ID)
            raise ConfigurationError(f"{missing} is null: the original of the row is not known")
        full = self._topics.get(topic)
        if full is None:
            full = self._topics[topic] = _full(topic, columns.name(TOPIC))
        original = RowOriginal(
            full,
            MessageId.wrap_bytes(message_id),
            payload,
            properties or {},
            key,
            ordering_key,
            event_ms or 0,
            schema_version,
        )
        return self._rule(original, failure, times)


class _Columns:
    """The columns of a batch by key; a missing column yields None for ever."""

    def __init__(self, batch: pa.RecordBatch, layout: ColumnLayout) -> None:
        self._batch = batch
        self._layout = layout

    def name(self, key: str) -> str:
        return self._layout.metadata[key]

    def _column(self, key: str) -> pa.Array | None:
        name = self._layout.name(key)
        return None if name is None else self._batch.column(name)

    def _read(self, key: str, convert: Callable[[pa.Array, str], list[Any]]) -> Any:
        column = self._column(key)
        return repeat(None) if column is None else convert(column, self.name(key))

    def topics(self) -> list[str | None] | None:
        column = self._column(TOPIC)
        return None if column is None else listed(column, self.name(TOPIC))

    def bytes(self, key: str) -> Any:
        return self._read(key, listed)

    def keys(self, key: str, text: bool) -> Any:
        """Return keys as bytes or text; with `text`, bytes are decoded as UTF-8."""
        return self._read(key, texts_of if text else listed)

    def partition_keys(self, text: bool | None, first: int) -> Any:
        """Return keys as text or bytes; `text` decides about keys without `__keyIsBytes`."""
        column, kinds = self._column(KEY), self._column(KEY_IS_BYTES)
        if column is None or kinds is None:
            return self.keys(KEY, bool(text))
        found = zip(listed(column, self.name(KEY)), kinds.to_pylist(), strict=True)
        return [
            None if key is None else self._as_sent(key, is_bytes, text, number)
            for number, (key, is_bytes) in enumerate(found, first)
        ]

    def _as_sent(self, key: _Key, is_bytes: bool | None, text: bool | None, number: int) -> _Key:
        if isinstance(key, str):
            return key.encode() if is_bytes else key
        if is_bytes is None and text is None:
            raise ConfigurationError(
                f"{self.name(KEY_IS_BYTES)} is null in row {number} of the task, which has a key: "
                "set textKeys=true (as of most clients) or textKeys=false (Java's keyBytes)"
            )
        if is_bytes or (is_bytes is None and not text):
            return key
        try:
            return key.decode()
        except UnicodeDecodeError as error:
            raise ConfigurationError(
                f"{self.name(KEY)} has bytes that are no text in UTF-8 in row {number} of the "
                f"task, and {self.name(KEY_IS_BYTES)} or textKeys says it is text"
            ) from error

    def properties(self) -> Any:
        return self._read(PROPERTIES, maps_of)

    def clusters(self, first: int) -> Any:
        column = self._column(CLUSTERS)
        if column is None:
            return repeat(None)
        found = listed(column, self.name(CLUSTERS))
        for number, each in enumerate(found, first):
            if each is not None and None in each:
                raise ConfigurationError(
                    f"{self.name(CLUSTERS)} has null as the name of a cluster in row {number} of "
                    "the task: leave it out, or name the cluster"
                )
        return found

    def times(self, key: str, first: int) -> Any:
        """Return times in ms since the epoch. Negative times are errors."""
        column = self._column(key)
        if column is None:
            return repeat(None)
        found = millis_of(column)
        self._check_positive(found, key, first)
        return found

    def due(self, first: int, times: AttemptTimes) -> Any:
        """Return delivery times in ms since the epoch."""
        if self._column(AT) is not None:
            return self.times(AT, first)
        column = self._column(AFTER_MS)
        if column is None:
            return repeat(None)
        found = column.to_pylist()
        self._check_positive(found, AFTER_MS, first)
        for number, each in enumerate(found, first):
            if each is not None and each > MAX_MS:
                raise ConfigurationError(
                    f"{self.name(AFTER_MS)} is over 100 years in row {number} of the task"
                )
        return [times.wall_from + each if each else None for each in found]

    def _check_positive(self, found: Sequence[int | None], key: str, first: int) -> None:
        for number, each in enumerate(found, first):
            if each is not None and each < 0:
                problem = "is negative" if key == AFTER_MS else "is before 1970"
                raise ConfigurationError(f"{self.name(key)} {problem} in row {number} of the task")

    def failures(self) -> Any:
        present = self._layout.evidence
        if not present:
            return repeat(FailureReason())
        lists = [
            texts_of(self._batch.column(each), each) if each in present else repeat(None)
            for each in EVIDENCE
        ]
        return map(FailureReason, *lists)


def _full(topic: str, column: str) -> str:
    return full_name(topic_name(topic, column))


def _size_of(payloads: Sequence[bytes | None]) -> int:
    return sum(len(each) for each in payloads if each is not None)
