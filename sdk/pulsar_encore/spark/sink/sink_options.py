"""The options of a write, checked: names that pulsar-spark has, and ours.

Owns `SinkOptions` and the table of names. Spark hands over keys in lower case and values as text.
An option that nobody knows, that is of reading, or that is without effect in the chosen `sinkMode`
is an error when the query is planned, before anything connects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...deadletters.replay import checked_replay_id
from ...errors import ConfigurationError
from ...options import BatchingType, CompressionType, PartitionsRoutingMode, ProducerOptions
from ...options.checks import topic_name
from ...options.dead_letter_policy import DEFAULT_MAX_RECONSUME
from ...values.topic_names import full_name
from ..connection_options import ConnectionOptions
from ..encryption_keys import KeyReaderOptions, key_path, keys_of
from ..option_parsers import (
    Parser,
    at_least,
    duration_ms,
    flag,
    function_name,
    names,
    nearest,
    one_of,
    size,
    words,
)
from ..source_options import CLIENT, READER, connection_of
from .delays import RetryDelays, retry_delays

PRODUCE, RECONSUME, DEAD_LETTER, REPLAY = "produce", "reconsume_later", "dead_letter", "replay"
SEQUENCED: Final = "task-sequence"
_MODES: Final = (PRODUCE, RECONSUME, DEAD_LETTER, REPLAY)
_LETTERS: Final = (RECONSUME, DEAD_LETTER)


@dataclass(frozen=True, kw_only=True, slots=True)
class LetterOptions:
    """Of `sinkMode` reconsume_later and dead_letter.

    Attributes:
        subscription: That failed to process the rows.
        max_redeliver_count: So many retries; the attempt after them goes to the dead-letter topic.
        delays: Until a retry.
        retry_topic: Full name; None for Java's, ``<topic>-<subscription>-RETRY``.
        dead_topic: Full name; None for Java's, ``<topic>-<subscription>-DLQ``.
        initial_subscription: Made on a dead-letter topic before its first letter; None for none.
    """

    subscription: str
    max_redeliver_count: int = DEFAULT_MAX_RECONSUME
    delays: RetryDelays = field(default_factory=RetryDelays)
    retry_topic: str | None = None
    dead_topic: str | None = None
    initial_subscription: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplaySettings:
    """Of `sinkMode` replay; the rules are those of `deadletters`.

    Attributes:
        replay_id: Written on every copy.
        target: Full name of the topic all of them go to; None for the one each died on.
        keep_counters: Attempt counts and evidence stay.
        real_topics: Full names that copies may go to though no dead-letter topic is named so.
    """

    replay_id: str
    target: str | None = None
    keep_counters: bool = False
    real_topics: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Publishing:
    """How rows are sent.

    Attributes:
        max_pending: Messages of a task that are sent and not yet stored, over all topics.
        send_timeout_ms: Longest wait for a message to be stored, and for a producer's name.
        name: Of the producers, a prefix; None lets the brokers choose.
        sequenced: Sequence ids tell brokers that deduplicate which rows they have.
        keys: Whom all messages are encrypted for; None for clear text.
        producer: More keywords of `ProducerOptions`, in a fixed order.
    """

    max_pending: int = 10_000
    send_timeout_ms: int = 30_000
    name: str | None = None
    sequenced: bool = False
    keys: KeyReaderOptions | None = None
    producer: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkOptions:
    """All that a write was told; can be pickled.

    Attributes:
        connection, letters, replay, publishing: In groups; None where the mode has no such.
        topic: Full name of where rows go that name no topic; None where each names one.
        mode: `PRODUCE`, `RECONSUME`, `DEAD_LETTER` or `REPLAY`.
        prefix: Of the names of all columns but the value's.
        value_format: "raw", "json" or "avro".
        value_schema: Of Avro, JSON text.
        text_keys: A key column of bytes holds text in UTF-8; None where nobody said.
    """

    connection: ConnectionOptions
    topic: str | None = None
    mode: str = PRODUCE
    prefix: str = "__"
    value_format: str = "raw"
    value_schema: str | None = None
    text_keys: bool | None = None
    letters: LetterOptions | None = None
    replay: ReplaySettings | None = None
    publishing: Publishing = Publishing()


def _micros_as_ms(value: str, name: str) -> int:
    return -(-at_least(1)(value, name) // 1000)


def _compression(value: str, name: str) -> CompressionType:
    return CompressionType[one_of(*CompressionType.__members__)(value, name)]


def _batching_type(value: str, name: str) -> BatchingType:
    found = one_of("DEFAULT", "KEY_BASED")(value, name)
    return BatchingType.KeyBased if found == "KEY_BASED" else BatchingType.Default


def _routing(value: str, name: str) -> PartitionsRoutingMode:
    found = one_of("RoundRobinPartition", "SinglePartition")(value, name)
    if found == "SinglePartition":
        return PartitionsRoutingMode.UseSinglePartition
    return PartitionsRoutingMode.RoundRobinDistribution


def _waits(value: str, name: str) -> bool:
    if not flag(value, name):
        raise ConfigurationError(f"{name} cannot be false: the sink waits, and never drops a row")
    return True


def _fails(value: str, name: str) -> str:
    if one_of("FAIL", "SEND")(value, name) == "SEND":
        raise ConfigurationError(
            f"{name} cannot be SEND: what is to be encrypted is never sent in clear"
        )
    return "FAIL"


def _topic(value: str, name: str) -> str:
    return full_name(topic_name(value.strip(), name))


# Names as they are written, what is before the comma the usual one, and how each is parsed.
_TABLE: Final[Mapping[str, Parser[Any]]] = {
    "service.url, serviceUrl": words,
    "admin.url, adminUrl": words,
    "clientFactory": words,
    "topic": _topic,
    "sinkMode": one_of(*_MODES),
    "metadataPrefix": words,
    "valueFormat": one_of("raw", "json", "avro"),
    "valueSchema": words,
    "textKeys": flag,
    "subscription": words,
    "maxRedeliverCount": at_least(1, 2**31 - 1),
    "backoff": retry_delays,
    "retryLetterTopic": _topic,
    "deadLetterTopic": _topic,
    "initialSubscriptionName": words,
    "replayTarget": _topic,
    "replayId": words,
    "keepCounters": flag,
    "realTopics": names,
    "deduplication": one_of("none", SEQUENCED),
    "producerName, pulsar.producer.producerName": words,
    "maxPendingMessages, pulsar.producer.maxPendingMessages": at_least(1, 10_000_000),
    "sendTimeoutMs, pulsar.producer.sendTimeoutMs": duration_ms(),
    "pulsar.producer.blockIfQueueFull": _waits,
    "pulsar.producer.compressionType": _compression,
    "pulsar.producer.batchingEnabled": flag,
    "pulsar.producer.batchingMaxMessages": at_least(2),
    "pulsar.producer.batchingMaxBytes": size,
    "pulsar.producer.batchingMaxPublishDelayMs": at_least(1),
    "pulsar.producer.batchingMaxPublishDelayMicros": _micros_as_ms,
    "pulsar.producer.batchingType, pulsar.producer.batcherBuilder": _batching_type,
    "pulsar.producer.chunkingEnabled": flag,
    "pulsar.producer.messageRoutingMode": _routing,
    "pulsar.producer.encryptionKeys, pulsar.producer.encryptionKey": names,
    "pulsar.producer.cryptoPublicKeyPath": key_path,
    "pulsar.producer.cryptoKeyReader": function_name,
    "pulsar.producer.cryptoFailureAction": _fails,
}
_FIRST: Final = {  # lower-cased: (usual name, parser)
    each.strip().lower(): (written.split(",")[0], parse)
    for written, parse in _TABLE.items()
    for each in written.split(",")
}
_SPELLED: Final = tuple(each.strip() for written in _TABLE for each in written.split(","))

# Usual names that go with some modes only.
_ONLY: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": (PRODUCE,),
    "valueFormat": (PRODUCE,),
    "valueSchema": (PRODUCE,),
    "subscription": _LETTERS,
    "maxRedeliverCount": (RECONSUME,),
    "backoff": (RECONSUME,),
    "retryLetterTopic": _LETTERS,
    "deadLetterTopic": _LETTERS,
    "initialSubscriptionName": _LETTERS,
    "replayTarget": (REPLAY,),
    "replayId": (REPLAY,),
    "keepCounters": (REPLAY,),
    "realTopics": (REPLAY,),
    # A letter is an entry of its own, and cut where it is large, as the SDK's consumers write them.
    "pulsar.producer.batchingEnabled": (PRODUCE,),
    "pulsar.producer.batchingMaxMessages": (PRODUCE,),
    "pulsar.producer.batchingMaxBytes": (PRODUCE,),
    "pulsar.producer.batchingMaxPublishDelayMs": (PRODUCE,),
    "pulsar.producer.batchingMaxPublishDelayMicros": (PRODUCE,),
    "pulsar.producer.batchingType": (PRODUCE,),
    "pulsar.producer.chunkingEnabled": (PRODUCE,),
}
# Keywords of `ProducerOptions` by usual name.
_KEYWORDS: Final[Mapping[str, str]] = {
    "pulsar.producer.compressionType": "compression_type",
    "pulsar.producer.batchingEnabled": "batching_enabled",
    "pulsar.producer.batchingMaxMessages": "batching_max_messages",
    "pulsar.producer.batchingMaxBytes": "batching_max_allowed_size_in_bytes",
    "pulsar.producer.batchingMaxPublishDelayMs": "batching_max_publish_delay_ms",
    "pulsar.producer.batchingMaxPublishDelayMicros": "batching_max_publish_delay_ms",
    "pulsar.producer.batchingType": "batching_type",
    "pulsar.producer.chunkingEnabled": "chunking_enabled",
    "pulsar.producer.messageRoutingMode": "message_routing_mode",
}
_READING: Final = frozenset(
    each.lower()
    for each in (
        "topics",
        "subscribe",
        "topicsPattern",
        "topicPattern",
        "subscribePattern",
        "assign",
        "waitingForNonExistedTopic",
        "partitionDiscoveryIntervalMs",
        "startingOffsets",
        "endingOffsets",
        "startingTime",
        "startingTimestamp",
        "endingTime",
        "endingTimestamp",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "maxOffsetsPerTrigger",
        "maxRowsPerTrigger",
        "maxEntriesPerTrigger",
        "maxBytesPerTrigger",
        "minOffsetsPerTrigger",
        "minRowsPerTrigger",
        "maxTriggerDelay",
        "latestOffsetPollMs",
        "minPartitions",
        "maxRecordsPerPartition",
        "splitGranularity",
        "predefinedSubscription",
        "subscriptionPrefix",
        "cursorCommit",
        "subscriptionCreate",
        "subscriptionDeleteOnStop",
        "failOnDataLoss",
        "pollTimeoutMs",
        "chunkLookbackEntries",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "includeMetadata",
        "includeHeaders",
        "view",
        "mode",
        "allowDifferentTopicSchemas",
        "maxRecordsPerBatch",
    )
)
# Names that others have for something, and what does it here.
_HINTS: Final[Mapping[str, str]] = {
    "flushintervalrows": (
        "maxPendingMessages says how many rows may be sent and not yet stored, and a task waits "
        "for all of them at its end"
    ),
}
# What save(), toTable() and start() add.
_SPARKS_OWN: Final = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})


def sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """The options of a write.

    Args:
        given: Names, in any case, and what was said.
        streaming: It is a stream's.

    Raises:
        ConfigurationError: One is unknown or wrong, or two do not go together.
    """
    said, client = _parsed(given)
    mode = said.get("sinkMode", PRODUCE)
    for name in said:
        if mode not in _ONLY.get(name, _MODES):
            raise ConfigurationError(
                f"{name} is without effect with sinkMode={mode}, it goes with "
                f"{' and '.join(_ONLY[name])}: leave it out"
            )
    value_format, value_schema = said.get("valueFormat", "raw"), said.get("valueSchema")
    if (value_format == "avro") != (value_schema is not None):
        raise ConfigurationError(
            "valueFormat=avro needs valueSchema, an Avro schema as JSON"
            if value_schema is None
            else f"valueSchema goes with valueFormat=avro, not with {value_format}"
        )
    return SinkOptions(
        connection=connection_of(said, client),
        topic=said.get("topic"),
        mode=mode,
        prefix=said.get("metadataPrefix", "__"),
        value_format=value_format,
        value_schema=value_schema,
        text_keys=said.get("textKeys"),
        letters=_letters(said, mode) if mode in _LETTERS else None,
        replay=_replay(said) if mode == REPLAY else None,
        publishing=_publishing(said, streaming=streaming),
    )


def _parsed(given: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """By usual name, and those of the client, which are its own to read."""
    said: dict[str, Any] = {}
    client: dict[str, str] = {}
    for name, value in given.items():
        lowered = name.lower()
        if lowered.startswith(CLIENT):
            client[lowered.removeprefix(CLIENT)] = value
            continue
        if lowered in _SPARKS_OWN:
            continue
        if lowered in _READING or lowered.startswith(READER):
            raise ConfigurationError(f"{name} is an option of reading, and this is a write")
        if lowered in _HINTS:
            raise ConfigurationError(f"there is no option {name!r}: {_HINTS[lowered]}")
        if lowered not in _FIRST:
            raise ConfigurationError(
                f"there is no option {name!r}{nearest(name, _SPELLED)} of the pulsar sink"
            )
        usual, parse = _FIRST[lowered]
        if usual in said:
            raise ConfigurationError(f"{usual} was given twice, once as {name}")
        said[usual] = parse(value, usual)
    return said, client


def _letters(said: Mapping[str, Any], mode: str) -> LetterOptions:
    if "subscription" not in said:
        raise ConfigurationError(
            f"sinkMode={mode} needs the name of the subscription that the rows failed in: set "
            "subscription"
        )
    retry, dead = said.get("retryLetterTopic"), said.get("deadLetterTopic")
    if retry is not None and retry == dead:
        raise ConfigurationError("deadLetterTopic and retryLetterTopic must differ")
    return LetterOptions(
        subscription=said["subscription"],
        max_redeliver_count=said.get("maxRedeliverCount", DEFAULT_MAX_RECONSUME),
        delays=said.get("backoff", RetryDelays()),
        retry_topic=retry,
        dead_topic=dead,
        initial_subscription=said.get("initialSubscriptionName"),
    )


def _replay(said: Mapping[str, Any]) -> ReplaySettings:
    return ReplaySettings(
        # Made up here, in the driver, and so the same in all tasks and all their attempts.
        replay_id=checked_replay_id(said.get("replayId")),
        target=said.get("replayTarget"),
        keep_counters=said.get("keepCounters", False),
        real_topics=frozenset(_topic(each, "realTopics") for each in said.get("realTopics", ())),
    )


def _publishing(said: Mapping[str, Any], *, streaming: bool) -> Publishing:
    sequenced = said.get("deduplication") == SEQUENCED
    name = said.get("producerName")
    keywords = {_KEYWORDS[each]: value for each, value in said.items() if each in _KEYWORDS}
    if keywords.get("chunking_enabled"):
        keywords.setdefault("batching_enabled", False)
    if sequenced:
        if not streaming:
            raise ConfigurationError(
                "deduplication=task-sequence is for streams only: the rows of a batch have no "
                "numbers that would be the same in another run"
            )
        if name is None:
            raise ConfigurationError(
                "deduplication=task-sequence needs producerName: brokers know by it what they have"
            )
        if keywords.get("batching_type") is BatchingType.KeyBased:
            raise ConfigurationError(
                "deduplication=task-sequence does not go with batchingType=KEY_BASED: rows would "
                "be stored out of their order, and a broker drops what is behind it"
            )
    timeout_ms = said.get("sendTimeoutMs", Publishing().send_timeout_ms)
    if not 1 <= timeout_ms < 2**31:
        raise ConfigurationError("sendTimeoutMs must be at least 1 ms and below 25 days")
    ProducerOptions(topic="checked", **keywords)  # what does not go together is said by name
    return Publishing(
        max_pending=said.get("maxPendingMessages", Publishing().max_pending),
        send_timeout_ms=timeout_ms,
        name=name,
        sequenced=sequenced,
        keys=_keys(said),
        producer=tuple(sorted(keywords.items())),
    )


def _keys(said: Mapping[str, Any]) -> KeyReaderOptions | None:
    recipients = said.get("pulsar.producer.encryptionKeys", ())
    keys = keys_of(
        said.get("pulsar.producer.cryptoPublicKeyPath"),
        said.get("pulsar.producer.cryptoKeyReader"),
        private=False,
        names=recipients,
    )
    if recipients and keys is None:
        raise ConfigurationError(
            "pulsar.producer.encryptionKeys needs their public key: set "
            "pulsar.producer.cryptoPublicKeyPath or pulsar.producer.cryptoKeyReader"
        )
    if keys is not None and not recipients:
        raise ConfigurationError(
            "pulsar.producer.encryptionKeys is missing: the names that readers know the keys by; "
            "without one nothing would be encrypted"
        )
    return keys
