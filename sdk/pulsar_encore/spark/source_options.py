"""The options of a read as values, and the rules for their combinations.

A wrong option is an error before anything connects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..errors import ConfigurationError
from ..options import ConsumerCryptoFailureAction
from ..options.checks import topic_name
from ..values.topic_names import full_name
from .connection_options import ConnectionOptions, connection_of
from .encryption_keys import KeyReaderOptions, keys_of
from .offsets import EARLIEST, LATEST, Position, before, user_position
from .option_parsers import json_object, nearest, shortened
from .option_table import SOURCE, Scope, Values
from .source_columns import Column, chosen_columns

EARLIEST_WORD, LATEST_WORD, SUBSCRIPTION_WORD = "earliest", "latest", "subscription"
_DIGITS: Final = re.compile(r"[0-9]{1,19}")
_SECONDS: Final = range(10**9, 10**10)  # of the years 2001 to 2286
_TABLE_PREFIX: Final = (
    "option."  # of a table's options; Spark passes them with the prefix, or also without
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Topics:
    """The topics of a read.

    Attributes:
        names: Full names.
        pattern: A regular expression of full names, also of topics that are created later.
        partitions: Partition numbers by full name, for topics that are not read completely.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """Where a read begins or ends.

    Attributes:
        word: "earliest", "latest" or "subscription", for topics without a position or a time.
        positions: By full name of a topic or partition: the last message before the start, or the
            last message of the read.
        times_ms: By full name, publish times in ms since the epoch; "" for all other topics.
    """

    word: str
    positions: tuple[tuple[str, Position], ...] = ()
    times_ms: tuple[tuple[str, int], ...] = ()


# Each field below has the value of the option in `option_table` that names it (`Option.target`).


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The limits of a micro-batch; None for no limit."""

    rows: int | None
    entries: int | None
    size: int | None
    min_rows: int | None
    max_delay_ms: int

    @property
    def any(self) -> bool:
        return not (self.rows is self.entries is self.size is None)

    @property
    def need_counts(self) -> bool:
        return self.any or self.min_rows is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    include: str | tuple[str, ...]
    prefix: str
    view: str
    value_format: str
    value_schema: str | None
    mode: str
    mixed_schemas: bool

    @property
    def columns(self) -> tuple[Column, ...]:
        return chosen_columns(self.include, self.prefix, letters=self.view != "plain")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    queue: int
    compacted: bool
    poll_timeout_ms: int
    chunk_lookback: int
    batch_rows: int
    role_prefix: str
    keys: KeyReaderOptions | None
    crypto_failure: ConsumerCryptoFailureAction


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    subscription: str | None
    commit: str
    create: bool
    delete: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    connection: ConnectionOptions
    topics: Topics
    start: Edge
    end: Edge
    limits: Limits
    shape: Shape
    reading: Reading
    cursor: Cursor
    start_missing: str
    fail_on_data_loss: bool
    wait_for_topics: bool
    discovery_ms: int
    poll_ms: int
    min_partitions: int | None
    max_records: int | None
    split: str
    retries: int
    retry_ms: int


def read_options(given: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """Parse the options of a read, or raise ConfigurationError.

    By default a stream starts at the end and a batch at the beginning. With None for `streaming`,
    the options of both are accepted.
    """
    values = SOURCE.parse(_without_table_prefix(given).values())
    if streaming is not None:
        _check_kind(values, streaming=streaming)
    connection = connection_of(values)
    topics = _topics(values)
    start = _edge(values, "starting", LATEST_WORD if streaming else EARLIEST_WORD)
    end = _edge(values, "ending", LATEST_WORD)
    _check_edges(values, start, end, streaming=streaming)
    limits = Limits(**values.fields("limits"))
    _check_limits(limits, connection)
    return ReadOptions(
        **values.fields(),
        connection=connection,
        topics=topics,
        start=start,
        end=end,
        limits=limits,
        shape=_shape(values),
        reading=_reading(values),
        cursor=Cursor(**values.fields("cursor")),
    )


def _without_table_prefix(given: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return names and texts as given, by lower-cased name without the prefix of a table."""
    found = {name.lower(): (name, text) for name, text in given.items()}
    for lowered, (name, text) in list(found.items()):
        if lowered.startswith(_TABLE_PREFIX):
            del found[lowered]
            found.setdefault(lowered[len(_TABLE_PREFIX) :], (name[len(_TABLE_PREFIX) :], text))
    return found


def _check_kind(values: Values, *, streaming: bool) -> None:
    kind, other = (Scope.STREAM, "read") if streaming else (Scope.BATCH, "readStream")
    for name in values:
        if not SOURCE[name].scope & kind:
            raise ConfigurationError(f"{name} is an option of spark.{other} only: leave it out")


def _check_edges(values: Values, start: Edge, end: Edge, *, streaming: bool | None) -> None:
    if end.word == EARLIEST_WORD:
        raise ConfigurationError("endingOffsets cannot be earliest: there is nothing before it")
    if start.word != SUBSCRIPTION_WORD:
        return
    if streaming is False:
        raise ConfigurationError(
            "startingOffsets=subscription is for spark.readStream only: a batch begins at earliest "
            "or latest, at a JSON object of topics, or at startingTime"
        )
    if "subscription" not in values:
        raise ConfigurationError(
            "startingOffsets=subscription needs the name of a subscription: set subscription"
        )


def _check_limits(limits: Limits, connection: ConnectionOptions) -> None:
    if limits.size and connection.admin_url is None:
        raise ConfigurationError(
            "maxBytesPerTrigger needs admin.url: only the web service tells how many bytes are "
            "stored. Set it, or limit rows (maxOffsetsPerTrigger) or entries "
            "(maxEntriesPerTrigger), which need no web service"
        )
    if limits.rows and limits.min_rows and limits.min_rows > limits.rows:
        raise ConfigurationError(
            f"minOffsetsPerTrigger ({limits.min_rows}) is more than maxOffsetsPerTrigger "
            f"({limits.rows})"
        )


def _topics(values: Values) -> Topics:
    given = [each for each in ("topic", "topics", "topicsPattern", "assign") if each in values]
    if len(given) != 1:
        raise ConfigurationError(
            "one of topic, topics, topicsPattern and assign says what is read; "
            + (f"{' and '.join(given)} were given" if given else "none was given")
        )
    [option_name] = given
    if option_name == "topicsPattern":
        return Topics(pattern=values[option_name])
    if option_name == "assign":
        chosen: dict[str, tuple[int, ...]] = {}
        for topic, each in values[option_name].items():
            full = _full(topic, option_name)
            if full in chosen:
                raise ConfigurationError(f"assign names {full} twice")
            chosen[full] = _numbers(each)
        if not chosen:
            raise ConfigurationError('assign must be like {"topic": [0, 2]}, got {}')
        return Topics(names=tuple(chosen), partitions=tuple(chosen.items()))
    listed: Iterable[str] = [values[option_name]] if option_name == "topic" else values[option_name]
    return Topics(names=tuple(dict.fromkeys(_full(each, option_name) for each in listed)))


def _full(topic: str, option: str) -> str:
    return full_name(topic_name(topic, option))


def _numbers(value: Any) -> tuple[int, ...]:
    if isinstance(value, list) and value and all(type(each) is int and each >= 0 for each in value):
        return tuple(sorted(set(value)))
    raise ConfigurationError(
        f'assign must name partitions by number, like {{"topic": [0, 2]}}, got {value!r}'
    )


def _edge(values: Values, edge: str, default: str) -> Edge:
    """Return the edge of the options ``<edge>Offsets`` and ``<edge>Time``."""
    offsets, time = f"{edge}Offsets", f"{edge}Time"
    if time in values:
        return Edge(word=default, times_ms=_times(values[time], time))
    text = values.get(offsets, default)
    words_known = {EARLIEST_WORD, LATEST_WORD}
    if edge == "starting":
        words_known.add(SUBSCRIPTION_WORD)
    if text.lower() in words_known:
        return Edge(word=text.lower())
    if not text.startswith("{"):
        raise ConfigurationError(
            f"{offsets} must be {', '.join(sorted(words_known))} or a JSON object of topics, "
            f"got {text!r}{nearest(text, words_known)}"
        )
    positions = {
        _full(topic, offsets): user_position(each, f"{offsets} of {topic}")
        for topic, each in json_object(text, offsets).items()
    }
    if edge == "starting":
        positions = {topic: before(each) for topic, each in positions.items()}
    elif EARLIEST in positions.values():
        raise ConfigurationError("endingOffsets cannot be earliest: there is nothing before it")
    return Edge(word=default, positions=tuple(sorted(positions.items())))


def _times(text: str, name: str) -> tuple[tuple[str, int], ...]:
    if not text.lstrip().startswith("{"):
        return (("", _time(text, name)),)
    given = json_object(text, name)
    return tuple(sorted((_full(topic, name), _time(each, name)) for topic, each in given.items()))


def _time(value: Any, name: str) -> int:
    text = str(value).strip()
    number = int(text) if _DIGITS.fullmatch(text) else -1
    if not 0 <= number < 1 << 63:
        raise ConfigurationError(f"{name} must be in ms since the epoch, got {shortened(value)}")
    if number in _SECONDS:
        raise ConfigurationError(
            f"{name} must be in ms since the epoch, and {value} is in 1970 by that; of seconds it "
            f"would be {number * 1000}"
        )
    return number


def _reading(values: Values) -> Reading:
    failure, value_format = values["pulsar.reader.cryptoFailureAction"], values["valueFormat"]
    if failure is ConsumerCryptoFailureAction.CONSUME and value_format != "raw":
        raise ConfigurationError(
            "pulsar.reader.cryptoFailureAction=CONSUME passes on bytes that are still encrypted, "
            f"which goes with valueFormat=raw and not with {value_format}"
        )
    prefix = values["subscriptionPrefix"] or values["pulsar.reader.subscriptionRolePrefix"]
    keys = keys_of(
        values["pulsar.reader.cryptoPrivateKeyPath"],
        values["pulsar.reader.cryptoKeyReader"],
        private=True,
    )
    return Reading(**values.fields("reading"), role_prefix=prefix, keys=keys)


def _shape(values: Values) -> Shape:
    value_format, value_schema = values["valueFormat"], values["valueSchema"]
    if value_schema is None and value_format in ("json", "avro"):
        raise ConfigurationError(
            f"valueFormat={value_format} needs valueSchema: "
            + ("fields in Spark's DDL, such as 'id INT'" if value_format == "json" else "Avro JSON")
            + "; or valueFormat=schema, for the schema in the topic's registry"
        )
    if value_schema is not None and value_format not in ("json", "avro"):
        raise ConfigurationError(
            f"valueSchema goes with valueFormat json and avro, not with {value_format}"
        )
    return Shape(**values.fields("shape"), prefix=values["metadataPrefix"])


def edge_position(edge: Edge, topic: str, base: str) -> Position | int | str:
    """Return where a topic or partition begins or ends: a position, a time in ms, or a word."""
    positions, times = dict(edge.positions), dict(edge.times_ms)
    for name in (topic, base):
        if name in positions:
            position = positions[name]
            if position == EARLIEST:
                return EARLIEST_WORD
            return LATEST_WORD if position == LATEST else position
        if name in times:
            return times[name]
    return times.get("", edge.word)
