"""The options of a read, checked: names that pulsar-spark and Spark's Kafka source have, and ours.

Owns `ReadOptions` and the table of names. Spark hands over keys in lower case and values as text;
an option that nobody knows, or that does not go with another, is an error before anything
connects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..errors import ConfigurationError
from ..options import ConsumerCryptoFailureAction
from ..options.checks import topic_name
from ..values.topic_names import full_name
from .connection_options import ConnectionOptions, web_address
from .encryption_keys import KeyReaderOptions, key_path, keys_of
from .offsets import EARLIEST, LATEST, Position, before, user_position
from .option_parsers import (
    Parser,
    at_least,
    duration_ms,
    flag,
    function_name,
    json_object,
    names,
    nearest,
    one_of,
    shown,
    size,
    words,
)

CLIENT: Final = "pulsar.client."
READER: Final = "pulsar.reader."
PRODUCER: Final = "pulsar.producer."
EARLIEST_WORD, LATEST_WORD, SUBSCRIPTION_WORD = "earliest", "latest", "subscription"


@dataclass(frozen=True, kw_only=True, slots=True)
class Topics:
    """What is read.

    Attributes:
        names: Full names; all partitions of each.
        pattern: A regular expression of full names, looked for again and again.
        chosen: Partition numbers by full name, where not all are read.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    chosen: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """Where a read begins or ends.

    Attributes:
        word: "earliest", "latest" or "subscription", for topics that neither of the others names.
        positions: By full name of a topic or partition, the last message before the start, or the
            last one of the end.
        times_ms: By full name, publish times in ms since the epoch; "" for all others.
    """

    word: str
    positions: tuple[tuple[str, Position], ...] = ()
    times_ms: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much a micro-batch takes; None for no such limit.

    Attributes:
        rows: Messages, estimated by the average of the ledger where an entry is a batch.
        entries: Entries, exactly.
        size: Bytes as stored.
        min_rows: A batch waits for so many,
        max_delay_ms: but no longer.
    """

    rows: int | None = None
    entries: int | None = None
    size: int | None = None
    min_rows: int | None = None
    max_delay_ms: int = 900_000

    @property
    def any(self) -> bool:
        """Whether less than everything may be taken."""
        return not (self.rows is self.entries is self.size is None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What the rows look like.

    Attributes:
        include: "standard", "full", "none", or columns one by one.
        prefix: Of the names of all columns but the value's.
        view: "plain", "dlq" or "retry".
        value_format: "raw", "string", "json", "avro" or "schema".
        value_schema: Spark's DDL (json) or an Avro schema (avro).
        mode: "PERMISSIVE", "FAILFAST" or "DROPMALFORMED".
        mixed_schemas: Topics may have different schemas; then values are raw.
    """

    include: str | tuple[str, ...] = "standard"
    prefix: str = "__"
    view: str = "plain"
    value_format: str = "raw"
    value_schema: str | None = None
    mode: str = "PERMISSIVE"
    mixed_schemas: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How messages are fetched, in a task.

    Attributes:
        queue: Messages that may be under way or not yet used.
        compacted: The last message of each key alone, where the topic is compacted.
        poll_timeout_ms: Longest silence while something is expected.
        chunk_lookback: Entries before a range that may hold the first pieces of a message in it.
        batch_rows: Rows of one record batch at most.
        role_prefix: Of the names of the subscriptions that tasks read with.
        keys: Of encrypted messages; None where none are to be read.
        crypto_failure: What becomes of a message that cannot be decrypted.
    """

    queue: int = 10_000
    compacted: bool = False
    poll_timeout_ms: int = 120_000
    chunk_lookback: int = 50
    batch_rows: int = 8192
    role_prefix: str = "spark-encore"
    keys: KeyReaderOptions | None = None
    crypto_failure: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """The durable subscription that follows a streaming query.

    Attributes:
        subscription: Its name, or None for none.
        commit: "eager" acks what the checkpoint holds as soon as that is known, "batch" when Spark
            says so, "none" never.
        create: Whether it is made where it is missing.
        delete: Whether it is deleted when the query stops.
    """

    subscription: str | None = None
    commit: str = "eager"
    create: bool = True
    delete: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """All that a read was told.

    Attributes:
        connection, topics, limits, shape, reading, cursor: In groups.
        start, end: Where it begins and, of a batch, ends.
        start_missing: "error" or "latest": what becomes of a topic with nothing as late as the
            time it is to begin at.
        fail_on_data_loss: An error when messages are gone that were not read; else it goes on.
        wait_for_topics: Topics that are missing at the start may come later.
        discovery_ms: Time between two looks for new topics and partitions.
        poll_ms: How old the broker's word on its last message may be.
        min_partitions: Tasks of a batch at least, as far as there are entries.
        max_records: Messages of one task at most, estimated.
        split: "entry" or "ledger": where a partition may be cut.
        retries, retry_ms: Times that the broker is asked again by the driver, and the time between.
    """

    connection: ConnectionOptions
    topics: Topics
    start: Edge
    end: Edge
    start_missing: str = "error"
    limits: Limits = Limits()
    shape: Shape = Shape()
    reading: Reading = Reading()
    cursor: Cursor = Cursor()
    fail_on_data_loss: bool = True
    wait_for_topics: bool = False
    discovery_ms: int = 60_000
    poll_ms: int = 250
    min_partitions: int | None = None
    max_records: int | None = None
    split: str = "entry"
    retries: int = 3
    retry_ms: int = 1000


# Names as they are written, what is before the comma the usual one, and how each is parsed.
_TABLE: Final[Mapping[str, Parser[Any]]] = {
    "service.url, serviceUrl": words,
    "admin.url, adminUrl": web_address,
    "clientFactory": words,
    "topic": words,
    "topics, subscribe": names,
    "topicsPattern, topicPattern, subscribePattern": words,
    "assign": json_object,
    "waitingForNonExistedTopic": flag,
    "partitionDiscoveryIntervalMs": duration_ms(),
    "startingOffsets": words,
    "endingOffsets": words,
    "startingTime, startingTimestamp, startingOffsetsByTimestamp": words,
    "endingTime, endingTimestamp, endingOffsetsByTimestamp": words,
    "startingOffsetsByTimestampStrategy": one_of("error", "latest"),
    "maxOffsetsPerTrigger, maxRowsPerTrigger": at_least(1),
    "maxEntriesPerTrigger": at_least(1),
    "maxBytesPerTrigger": size,
    "minOffsetsPerTrigger, minRowsPerTrigger": at_least(1),
    "maxTriggerDelay": duration_ms(),
    "latestOffsetPollMs": duration_ms(),
    "minPartitions": at_least(1),
    "maxRecordsPerPartition": at_least(1),
    "splitGranularity": one_of("entry", "ledger"),
    "subscription, predefinedSubscription": words,
    "subscriptionPrefix": words,
    "cursorCommit": one_of("eager", "batch", "none"),
    "subscriptionCreate": flag,
    "subscriptionDeleteOnStop": flag,
    "failOnDataLoss": flag,
    "pollTimeoutMs": duration_ms(low=1),
    "chunkLookbackEntries": at_least(0, 100_000),
    "fetchOffset.numRetries": at_least(0),
    "fetchOffset.retryIntervalMs": duration_ms(),
    "includeMetadata": words,
    "includeHeaders": flag,
    "metadataPrefix": words,
    "view": one_of("plain", "dlq", "retry"),
    "valueFormat": one_of("raw", "string", "json", "avro", "schema"),
    "valueSchema": words,
    "mode": one_of("PERMISSIVE", "FAILFAST", "DROPMALFORMED"),
    "allowDifferentTopicSchemas": flag,
    "pulsar.reader.receiverQueueSize": at_least(1, 1_000_000),
    "pulsar.reader.readCompacted": flag,
    "pulsar.reader.subscriptionRolePrefix": words,
    "pulsar.reader.cryptoPrivateKeyPath": key_path,
    "pulsar.reader.cryptoKeyReader": function_name,
    "pulsar.reader.cryptoFailureAction": one_of("FAIL", "DISCARD", "CONSUME"),
    "maxRecordsPerBatch": at_least(1, 1_000_000),
}
_FIRST: Final = {  # lower-cased: (usual name, parser)
    each.strip().lower(): (written.split(",")[0], parse)
    for written, parse in _TABLE.items()
    for each in written.split(",")
}
_SPELLED: Final = tuple(each.strip() for written in _TABLE for each in written.split(","))
_DIGITS: Final = re.compile(r"[0-9]{1,19}")
_SECONDS: Final = range(10**9, 10**10)  # of the years 2001 to 2286
_BATCH_ONLY: Final = ("endingOffsets", "endingTime")
_STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "maxEntriesPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "latestOffsetPollMs",
    "partitionDiscoveryIntervalMs",
    "cursorCommit",
    "subscriptionCreate",
    "subscriptionDeleteOnStop",
)
# What SQL's CREATE TABLE and save() add.
_SPARKS_OWN: Final = frozenset(
    "path provider location owner external is_managed_location comment collation table_type "
    "serialization.format".split()
)
_KAFKAS: Final = {
    "kafka.bootstrap.servers": "service.url",
    "kafka.group.id": "subscription",
    "groupidprefix": "subscriptionPrefix",
}
_OF_TABLE: Final = "option."  # before those of a table, beside the same without or instead


def read_options(given: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """The options of a read.

    Args:
        given: Names, in any case, and what was said.
        streaming: Of a stream, which begins at the end unless told otherwise; a batch begins at
            the beginning. None where that is not known, and of no account.

    Raises:
        ConfigurationError: One is unknown or wrong, or two do not go together.
    """
    said, client = _parsed(given)
    if streaming is not None:
        _check_kind(said, streaming=streaming)
    get = said.get
    connection = connection_of(said, client)
    topics = _topics(said)
    start, end = (
        _edge(said, "starting", LATEST_WORD if streaming else EARLIEST_WORD),
        _edge(said, "ending", LATEST_WORD),
    )
    if end.word == EARLIEST_WORD:
        raise ConfigurationError("endingOffsets cannot be earliest: there is nothing before it")
    subscription = get("subscription")
    if start.word == SUBSCRIPTION_WORD and streaming is False:
        raise ConfigurationError(
            "startingOffsets=subscription is for spark.readStream only: a batch begins at earliest "
            "or latest, at a JSON object of topics, or at startingTime"
        )
    if start.word == SUBSCRIPTION_WORD and subscription is None:
        raise ConfigurationError(
            "startingOffsets=subscription needs the name of a subscription: set subscription"
        )
    limits = Limits(
        rows=get("maxOffsetsPerTrigger"),
        entries=get("maxEntriesPerTrigger"),
        size=get("maxBytesPerTrigger"),
        min_rows=get("minOffsetsPerTrigger"),
        max_delay_ms=get("maxTriggerDelay", Limits().max_delay_ms),
    )
    if limits.size and connection.admin_url is None:
        raise ConfigurationError(
            "maxBytesPerTrigger needs admin.url: only the web service tells how many bytes are "
            "stored. Set it, or limit rows (maxOffsetsPerTrigger) or entries "
            "(maxEntriesPerTrigger), which need nobody"
        )
    if limits.rows and limits.min_rows and limits.min_rows > limits.rows:
        raise ConfigurationError(
            f"minOffsetsPerTrigger ({limits.min_rows}) is more than maxOffsetsPerTrigger "
            f"({limits.rows})"
        )
    return ReadOptions(
        connection=connection,
        topics=topics,
        start=start,
        end=end,
        start_missing=get("startingOffsetsByTimestampStrategy", "error"),
        limits=limits,
        shape=_shape(said),
        reading=_reading(said),
        cursor=Cursor(
            subscription=subscription,
            commit=get("cursorCommit", "eager"),
            create=get("subscriptionCreate", True),
            delete=get("subscriptionDeleteOnStop", False),
        ),
        fail_on_data_loss=get("failOnDataLoss", True),
        wait_for_topics=get("waitingForNonExistedTopic", False),
        discovery_ms=get("partitionDiscoveryIntervalMs", 60_000),
        poll_ms=get("latestOffsetPollMs", 250),
        min_partitions=get("minPartitions"),
        max_records=get("maxRecordsPerPartition"),
        split=get("splitGranularity", "entry"),
        retries=get("fetchOffset.numRetries", 3),
        retry_ms=get("fetchOffset.retryIntervalMs", 1000),
    )


def _check_kind(said: Mapping[str, Any], *, streaming: bool) -> None:
    """That no option is of the other kind of read: it would be without effect."""
    wrong, where = (_BATCH_ONLY, "read") if streaming else (_STREAM_ONLY, "readStream")
    for name in wrong:
        if name in said:
            raise ConfigurationError(f"{name} is an option of spark.{where} only: leave it out")


def connection_of(said: Mapping[str, Any], client: Mapping[str, str]) -> ConnectionOptions:
    """Where the cluster is.

    Raises:
        ConfigurationError: Nobody said.
    """
    if "service.url" not in said:
        # Seen with 4.3.0: what CREATE TABLE was told reaches the schema, and not the reader.
        table = (
            ""
            if said
            else ". Spark hands a table's OPTIONS to no reader: use CREATE TEMPORARY VIEW name "
            "USING pulsar OPTIONS (...), or SELECT ... FROM table WITH (...)"
        )
        raise ConfigurationError(f"the option service.url is missing: pulsar://host:6650{table}")
    return ConnectionOptions(
        service_url=said["service.url"],
        admin_url=said.get("admin.url"),
        settings=tuple(sorted(client.items())),
        factory=said.get("clientFactory"),
    )


def _parsed(given: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """By usual name, and those of the client, which are its own to read."""
    said: dict[str, Any] = {}
    client: dict[str, str] = {}
    for lowered, (name, value) in _of_tables(given).items():
        if lowered.startswith(CLIENT):
            client[lowered.removeprefix(CLIENT)] = value
            continue
        if lowered in _SPARKS_OWN:
            continue
        if lowered not in _FIRST:
            like = _KAFKAS.get(lowered)
            hint = nearest(name, _SPELLED) if like is None else f" ({like} is Pulsar's)"
            raise ConfigurationError(f"there is no option {name!r}{hint} of the pulsar source")
        usual, parse = _FIRST[lowered]
        if usual in said:
            raise ConfigurationError(f"{usual} was given twice, once as {name}")
        said[usual] = parse(value, usual)
    return said, client


def _of_tables(given: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """By lower-cased name: the name as written, and the value."""
    found = {name.lower(): (name, value) for name, value in given.items()}
    for lowered, (name, value) in list(found.items()):
        if lowered.startswith(_OF_TABLE):
            del found[lowered]
            found.setdefault(lowered[len(_OF_TABLE) :], (name[len(_OF_TABLE) :], value))
    return found


def _topics(said: Mapping[str, Any]) -> Topics:
    given = [each for each in ("topic", "topics", "topicsPattern", "assign") if each in said]
    if len(given) != 1:
        raise ConfigurationError(
            "one of topic, topics, topicsPattern and assign says what is read; "
            + (f"{' and '.join(given)} were given" if given else "none was given")
        )
    [one] = given
    if one == "topicsPattern":
        return Topics(pattern=said[one])
    if one == "assign":
        chosen: dict[str, tuple[int, ...]] = {}
        for topic, each in said[one].items():
            full = _full(topic, one)
            if full in chosen:
                raise ConfigurationError(f"assign names {full} twice")
            chosen[full] = _numbers(each)
        if not chosen:
            raise ConfigurationError('assign must be like {"topic": [0, 2]}, got {}')
        return Topics(names=tuple(chosen), chosen=tuple(chosen.items()))
    listed: Iterable[str] = [said[one]] if one == "topic" else said[one]
    return Topics(names=tuple(dict.fromkeys(_full(each, one) for each in listed)))


def _full(topic: str, option: str) -> str:
    return full_name(topic_name(topic, option))


def _numbers(value: Any) -> tuple[int, ...]:
    if isinstance(value, list) and value and all(type(each) is int and each >= 0 for each in value):
        return tuple(sorted(set(value)))
    raise ConfigurationError(
        f'assign must name partitions by number, like {{"topic": [0, 2]}}, got {value!r}'
    )


def _edge(said: Mapping[str, Any], edge: str, default: str) -> Edge:
    """Of startingOffsets and startingTime, or of endingOffsets and endingTime."""
    offsets, time = f"{edge}Offsets", f"{edge}Time"
    if offsets in said and time in said:
        raise ConfigurationError(f"give {offsets} or {time}, not both")
    if time in said:
        return Edge(word=default, times_ms=_times(said[time], time))
    text = said.get(offsets, default)
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
    """Ms since the epoch, of all topics or of each."""
    if not text.lstrip().startswith("{"):
        return (("", _time(text, name)),)
    given = json_object(text, name)
    return tuple(sorted((_full(topic, name), _time(each, name)) for topic, each in given.items()))


def _time(value: Any, name: str) -> int:
    text = str(value).strip()
    number = int(text) if _DIGITS.fullmatch(text) else -1
    if not 0 <= number < 1 << 63:
        raise ConfigurationError(f"{name} must be in ms since the epoch, got {shown(value)}")
    if number in _SECONDS:
        raise ConfigurationError(
            f"{name} must be in ms since the epoch, and {value} is in 1970 by that; of seconds it "
            f"would be {number * 1000}"
        )
    return number


def _reading(said: Mapping[str, Any]) -> Reading:
    get, usual = said.get, Reading()
    failure = ConsumerCryptoFailureAction[get("pulsar.reader.cryptoFailureAction", "FAIL")]
    value_format = get("valueFormat", "raw")
    if failure is ConsumerCryptoFailureAction.CONSUME and value_format != "raw":
        raise ConfigurationError(
            "pulsar.reader.cryptoFailureAction=CONSUME hands on bytes that are still encrypted, "
            f"which goes with valueFormat=raw and not with {value_format}"
        )
    return Reading(
        queue=get("pulsar.reader.receiverQueueSize", usual.queue),
        compacted=get("pulsar.reader.readCompacted", False),
        poll_timeout_ms=get("pollTimeoutMs", usual.poll_timeout_ms),
        chunk_lookback=get("chunkLookbackEntries", usual.chunk_lookback),
        batch_rows=get("maxRecordsPerBatch", usual.batch_rows),
        role_prefix=get(
            "subscriptionPrefix", get("pulsar.reader.subscriptionRolePrefix", usual.role_prefix)
        ),
        keys=keys_of(
            get("pulsar.reader.cryptoPrivateKeyPath"),
            get("pulsar.reader.cryptoKeyReader"),
            private=True,
        ),
        crypto_failure=failure,
    )


def _shape(said: Mapping[str, Any]) -> Shape:
    value_format, value_schema = said.get("valueFormat", "raw"), said.get("valueSchema")
    if value_schema is None and value_format in ("json", "avro"):
        raise ConfigurationError(
            f"valueFormat={value_format} needs valueSchema: "
            + ("fields in Spark's DDL, such as 'id INT'" if value_format == "json" else "Avro JSON")
            + "; or valueFormat=schema, for what the topic's registry says"
        )
    if value_schema is not None and value_format not in ("json", "avro"):
        raise ConfigurationError(
            f"valueSchema goes with valueFormat json and avro, not with {value_format}"
        )
    include: str | tuple[str, ...] = said.get("includeMetadata", "standard")
    assert isinstance(include, str)
    if include.lower() in ("standard", "full", "none"):
        include = include.lower()
    else:
        include = tuple(each.strip() for each in include.split(",") if each.strip())
    return Shape(
        include=include,
        prefix=said.get("metadataPrefix", "__"),
        view=said.get("view", "plain"),
        value_format=value_format,
        value_schema=value_schema,
        mode=said.get("mode", "PERMISSIVE"),
        mixed_schemas=said.get("allowDifferentTopicSchemas", False),
    )


def digest(options: ReadOptions) -> str:
    """What decides how a range is cut into tasks, as text."""
    return json.dumps([options.split, options.min_partitions, options.max_records])


def edge_position(edge: Edge, topic: str, base: str) -> Position | int | str:
    """Where a topic or partition begins or ends: a position, a time in ms, or a word.

    Args:
        edge: As given.
        topic: Full name, of the partition if any.
        base: The same without the partition.
    """
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


def unknown_topics(edge: Edge, topics: Sequence[str]) -> list[str]:
    """Names of an edge that none of the topics and their partitions has."""
    named = [name for name, _ in (*edge.positions, *edge.times_ms) if name]
    return [name for name in named if name not in topics]
