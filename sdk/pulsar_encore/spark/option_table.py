"""Every option of the Spark source, the Spark sink and their clients, declared once in `OPTIONS`.

Rules for combinations of options are in `source_options`, `sink.sink_options` and
`connection_options`. A test compares the table with docs/spark-options.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from enum import Flag, auto
from functools import partial
from typing import Any, Final

from ..errors import ConfigurationError
from ..options import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    PartitionsRoutingMode,
)
from ..options.dead_letter_policy import DEFAULT_MAX_RECONSUME
from .encryption_keys import key_path
from .option_parsers import (
    Parser,
    at_least,
    choice,
    duration_ms,
    flag,
    function_name,
    json_object,
    names,
    nearest,
    one_of,
    size,
    topic,
    web_address,
    words,
)
from .retry_delays import retry_delays

CLIENT: Final = "pulsar.client."
READER: Final = "pulsar.reader."
PRODUCER: Final = "pulsar.producer."
PRODUCE, RECONSUME, DEAD_LETTER, REPLAY = "produce", "reconsume_later", "dead_letter", "replay"
MODES: Final = (PRODUCE, RECONSUME, DEAD_LETTER, REPLAY)
LETTERS: Final = (RECONSUME, DEAD_LETTER)
SEQUENCED: Final = "task-sequence"
BATCH: Final = "batch"  # of `transactional`


class Scope(Flag):
    """Where an option may be given. Names in `CLIENT` are written after ``pulsar.client.``."""

    BATCH = auto()
    STREAM = auto()
    SINK = auto()
    CLIENT = auto()
    SOURCE = BATCH | STREAM
    CONNECTION = SOURCE | SINK


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        names: The usual name, then aliases, most of them from other connectors, separated by ", ".
            Case does not matter.
        default: The text that stands for it if it is not given; None for no value.
        target: The field that the value goes to, as ``group.field``, or ``field`` of `ReadOptions`
            and `SinkOptions` themselves. Fields of the groups "client" and "producer" are keywords
            of `Client` and `ProducerOptions`. Empty if only a rule reads the value.
        modes: Every `sinkMode` in which the option has an effect.
        excludes: The option that must not be given with it.
        set_by_triage: Whether the triage sets it, so that its users must not.
    """

    names: str
    parse: Parser[Any]
    doc: str
    _: KW_ONLY
    scope: Scope
    default: str | None = None
    target: str = ""
    modes: tuple[str, ...] = MODES
    excludes: str | None = None
    set_by_triage: bool = False

    @property
    def spellings(self) -> tuple[str, ...]:
        return tuple(self.names.split(", "))

    @property
    def name(self) -> str:
        return self.spellings[0]

    @property
    def group(self) -> str:
        return self.target.rpartition(".")[0]

    @property
    def field(self) -> str:
        return self.target.rpartition(".")[2]


def _columns(value: str, name: str) -> str | tuple[str, ...]:
    text = words(value, name)
    if text.lower() in ("standard", "full", "none"):
        return text.lower()
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _topics(value: str, name: str) -> frozenset[str]:
    return frozenset(topic(each, name) for each in names(value, name))


def _send_timeout_ms(value: str, name: str) -> int:
    found = duration_ms()(value, name)
    if not 1 <= found < 2**31:
        raise ConfigurationError(f"{name} must be at least 1 ms and below 25 days")
    return found


def _seconds(value: str, name: str) -> int:
    return max(1, -(-at_least(1)(value, name) // 1000))


def _micros_as_ms(value: str, name: str) -> int:
    return -(-at_least(1)(value, name) // 1000)


def _blocks(value: str, name: str) -> bool:
    if not flag(value, name):
        raise ConfigurationError(f"{name} cannot be false: the sink waits, and never drops a row")
    return True


def _fails(value: str, name: str) -> str:
    if one_of("FAIL", "SEND")(value, name) == "SEND":
        raise ConfigurationError(
            f"{name} cannot be SEND: a message that should be encrypted is never sent in clear"
        )
    return "FAIL"


_both = partial(Option, scope=Scope.CONNECTION)
_client = partial(Option, scope=Scope.CLIENT)
_source = partial(Option, scope=Scope.SOURCE)
_batch = partial(Option, scope=Scope.BATCH)
_stream = partial(Option, scope=Scope.STREAM)
_sink = partial(Option, scope=Scope.SINK)
_produce = partial(Option, scope=Scope.SINK, modes=(PRODUCE,))
_letters = partial(Option, scope=Scope.SINK, modes=LETTERS)
_retries = partial(Option, scope=Scope.SINK, modes=(RECONSUME,))
_replay = partial(Option, scope=Scope.SINK, modes=(REPLAY,))

# fmt: off
OPTIONS: Final[tuple[Option, ...]] = (
    # Source and sink
    _both("service.url, serviceUrl", words,
          "The brokers, pulsar://host:6650 or pulsar+ssl://host:6651.",
          target="connection.service_url"),
    _both("clientFactory", words, "module:function that makes the Client.",
          target="connection.factory"),
    _both("metadataPrefix", words, "Begins the names of all columns but those of the value.",
          default="__", set_by_triage=True),
    # Their clients
    _client("operationTimeoutMs", _seconds, "Longest wait for one answer, in ms.",
            target="client.operation_timeout_seconds"),
    _client("connectionTimeoutMs", at_least(1), "Longest wait for a connection, in ms.",
            target="client.connection_timeout_ms"),
    _client("tlsTrustCertsFilePath", words, "PEM file of trusted authorities.",
            target="client.tls_trust_certs_file_path"),
    _client("tlsAllowInsecureConnection", flag, "Accept any server certificate.",
            target="client.tls_allow_insecure_connection"),
    _client("tlsHostnameVerificationEnable", flag, "Check the host name in the certificate.",
            target="client.tls_validate_hostname"),
    _client("tlsCertificateFilePath", words, "PEM file of the client certificate.",
            target="client.tls_certificate_file_path"),
    _client("tlsKeyFilePath", words, "PEM file of the client's key.",
            target="client.tls_private_key_file_path"),
    _client("listenerName", words, "The advertised listener of the brokers.",
            target="client.listener_name"),
    _client("transport", words, "native or stock.", target="client.transport"),
    _client("authPluginClassName", words,
            "Java's authentication class, with or without its package."),
    _client("authParams", words, "The parameters of that class, as Java takes them."),
    # Source: the topics
    _source("admin.url, adminUrl", web_address, "The web service of the cluster.",
            target="connection.admin_url"),
    _source("topic", words, "One topic, all its partitions.", set_by_triage=True),
    _source("topics, subscribe", names, "Topics, separated by commas.", set_by_triage=True),
    _source("topicsPattern, topicPattern, subscribePattern", words,
            "A regular expression of full topic names.", set_by_triage=True),
    _source("assign", json_object, 'Partitions by topic, such as {"orders": [0, 2]}.',
            set_by_triage=True),
    _source("waitingForNonExistedTopic", flag, "Treat a missing topic as empty until it exists.",
            default="false", target="wait_for_topics"),
    _stream("partitionDiscoveryIntervalMs", duration_ms(),
            "Time between two searches for topics and partitions.", default="60000",
            target="discovery_ms"),
    # Source: the start and the end
    _source("startingOffsets", words,
            "earliest, latest, subscription (streams only) or JSON of positions by topic.",
            excludes="startingTime"),
    _batch("endingOffsets", words, "latest or JSON of positions by topic; the end itself is read.",
           excludes="endingTime"),
    _source("startingTime, startingTimestamp, startingOffsetsByTimestamp", words,
            "Publish time in ms since the epoch, or JSON of times by topic."),
    _batch("endingTime, endingTimestamp, endingOffsetsByTimestamp", words,
           "Publish time in ms since the epoch, or JSON of times by topic."),
    _source("startingOffsetsByTimestampStrategy", one_of("error", "latest"),
            "What to do with a topic that has no message as late as startingTime.", default="error",
            target="start_missing"),
    # Source: the size of a micro-batch
    _stream("maxOffsetsPerTrigger, maxRowsPerTrigger", at_least(1),
            "Messages at most, by the ledger's average of an entry.", target="limits.rows"),
    _stream("maxEntriesPerTrigger", at_least(1), "Entries at most, exactly.",
            target="limits.entries"),
    _stream("maxBytesPerTrigger", size,
            "Stored bytes at most, by the ledger's average; needs admin.url.",
            target="limits.size"),
    _stream("minOffsetsPerTrigger, minRowsPerTrigger", at_least(1),
            "A batch waits for this many messages.", target="limits.min_rows"),
    _stream("maxTriggerDelay", duration_ms(), "Longest wait for minOffsetsPerTrigger.",
            default="15m", target="limits.max_delay_ms"),
    _stream("latestOffsetPollMs", duration_ms(),
            "Shortest time between two requests for the end of the topics.", default="250",
            target="poll_ms"),
    # Source: tasks
    _source("minPartitions", at_least(1),
            "Tasks of a batch at least, if there are as many entries.", target="min_partitions"),
    _source("maxRecordsPerPartition", at_least(1),
            "Messages of one task at most, by the ledger's average of an entry.",
            target="max_records"),
    _source("splitGranularity", one_of("entry", "ledger"), "Where a partition may be split.",
            default="entry", target="split"),
    _source("failOnDataLoss", flag, "Raise DataLossError if messages are gone that were not read.",
            default="true", target="fail_on_data_loss"),
    _source("pollTimeoutMs", duration_ms(low=1), "Longest silence while messages are expected.",
            default="120000", target="reading.poll_timeout_ms"),
    _source("chunkLookbackEntries", at_least(0, 100_000),
            "Entries before a range that may hold first chunks of a message in it.", default="50",
            target="reading.chunk_lookback"),
    _source("maxRecordsPerBatch", at_least(1, 1_000_000), "Rows of one Arrow record batch at most.",
            default="8192", target="reading.batch_rows"),
    _source("fetchOffset.numRetries", at_least(0),
            "How often the driver repeats a request to the brokers.", default="3",
            target="retries"),
    _source("fetchOffset.retryIntervalMs", duration_ms(), "Time between two such requests.",
            default="1000", target="retry_ms"),
    # Source: the subscription of a stream
    _source("subscription, predefinedSubscription", words,
            "Durable subscription that follows the checkpoint of the query.",
            target="cursor.subscription", set_by_triage=True),
    _source("subscriptionPrefix", words,
            "Begins the names of the subscriptions that tasks read with."),
    _stream("cursorCommit", one_of("eager", "batch", "none"),
            "When to ack: once the checkpoint is known, when Spark commits, or never.",
            default="eager", target="cursor.commit"),
    _stream("subscriptionCreate", flag, "Create the subscription where it is missing.",
            default="true", target="cursor.create"),
    _stream("subscriptionDeleteOnStop", flag, "Delete the subscription when the query stops.",
            default="false", target="cursor.delete"),
    # Source: the rows
    _source("includeMetadata", _columns, "standard, full, none, or columns by name.",
            default="standard", target="shape.include", set_by_triage=True),
    _source("includeHeaders", flag, "Accepted as from Kafka's source, without effect.",
            set_by_triage=True),
    _source("view", one_of("plain", "dlq", "retry"), "Columns for the fields of letters.",
            default="plain", target="shape.view", set_by_triage=True),
    _source("valueFormat", one_of("raw", "string", "json", "avro", "schema"),
            "How values are decoded.", default="raw", target="shape.value_format",
            set_by_triage=True),
    _source("valueSchema", words, "Spark's DDL for json, an Avro schema for avro.",
            target="shape.value_schema", set_by_triage=True),
    _source("mode", one_of("PERMISSIVE", "FAILFAST", "DROPMALFORMED"),
            "What to do with a malformed value.", default="PERMISSIVE", target="shape.mode"),
    _source("allowDifferentTopicSchemas", flag, "Read topics with different schemas as raw.",
            default="false", target="shape.mixed_schemas"),
    # Source: the readers
    _source("pulsar.reader.receiverQueueSize", at_least(1, 1_000_000),
            "Messages that a task may hold.", default="10000", target="reading.queue"),
    _source("pulsar.reader.readCompacted", flag, "Only the last message of each key.",
            default="false", target="reading.compacted"),
    _source("pulsar.reader.subscriptionRolePrefix", words,
            "The same as subscriptionPrefix, which takes precedence.", default="spark-encore"),
    _source("pulsar.reader.cryptoPrivateKeyPath", key_path, "PEM file with the private key.",
            excludes="pulsar.reader.cryptoKeyReader"),
    _source("pulsar.reader.cryptoKeyReader", function_name,
            "module:function that makes a CryptoKeyReader."),
    _source("pulsar.reader.cryptoFailureAction", choice(ConsumerCryptoFailureAction.__members__),
            "What to do with a message that cannot be decrypted.", default="FAIL",
            target="reading.crypto_failure"),
    # Sink: the rows
    _sink("admin.url, adminUrl", words, "Accepted as from the source, without effect.",
          target="connection.admin_url"),
    _produce("topic", topic, "Where rows without a value in __topic go.", target="topic"),
    _sink("sinkMode", one_of(*MODES),
          "What a row becomes: a message, a letter, or a copy of a dead letter.", default=PRODUCE,
          target="mode"),
    _produce("valueFormat", one_of("raw", "json", "avro"), "How values are encoded.", default="raw",
             target="value_format"),
    _produce("valueSchema", words, "The Avro schema of valueFormat=avro.", target="value_schema"),
    _sink("textKeys", flag, "Whether keys are text, for rows that do not say it (__keyIsBytes).",
          target="text_keys"),
    # Sink: letters
    _letters("subscription", words, "The subscription that failed to process the rows.",
             target="letters.subscription"),
    _retries("maxRedeliverCount", at_least(1, 2**31 - 1),
             "Retries before a row becomes a dead letter.", default=str(DEFAULT_MAX_RECONSUME),
             target="letters.max_redeliver_count"),
    _retries("backoff", retry_delays,
             "Delays by attempt, a list or exp(min,max,multiplier,jitter).", default="1s,10s,1m",
             target="letters.delays"),
    _letters("retryLetterTopic", topic, "Instead of Java's <topic>-<subscription>-RETRY.",
             target="letters.retry_topic"),
    _letters("deadLetterTopic", topic, "Instead of Java's <topic>-<subscription>-DLQ.",
             target="letters.dead_topic"),
    _letters("initialSubscriptionName", words,
             "Created on a dead letter topic before its first letter.",
             target="letters.initial_subscription"),
    # Sink: replays
    _replay("replayTarget", topic,
            "One topic for all copies, instead of the topic where each message died.",
            target="replay.target"),
    _replay("replayId", words, "Written on every copy; generated if not given."),
    _replay("keepCounters", flag, "Keep attempt counts and evidence.", default="false",
            target="replay.keep_counters"),
    _replay("realTopics", _topics,
            "Topics that copies may go to although no dead letter topic is named after them."),
    # Sink: the producers
    _sink("deduplication", one_of("none", SEQUENCED),
          "task-sequence numbers rows, so that brokers drop rows that they have.", default="none"),
    _sink("transactional", one_of("false", "true", BATCH),
          "true: each task writes in a transaction, and the driver commits them; batch: all tasks "
          "of a batch share one.", default="false"),
    _sink("transactionTimeout", duration_ms(low=1000),
          "Longest time from the first row of a batch to its commit, with a restart between.",
          default="15m"),
    _sink("journalTopic", topic, "Where the driver finds the transactions of a batch again."),
    _sink("markerTopic", topic, "Where a row of each transaction shows that it is committed."),
    _sink("producerName, pulsar.producer.producerName", words, "Begins the names of the producers.",
          target="publishing.name"),
    _sink("maxPendingMessages, pulsar.producer.maxPendingMessages", at_least(1, 10_000_000),
          "Messages of a task that are sent and not yet stored, over all topics.", default="10000",
          target="publishing.max_pending"),
    _sink("sendTimeoutMs, pulsar.producer.sendTimeoutMs", _send_timeout_ms,
          "Longest wait until a message is stored, and for the name of a producer.",
          default="30000", target="publishing.send_timeout_ms"),
    _sink("pulsar.producer.blockIfQueueFull", _blocks, "Only true."),
    _sink("pulsar.producer.compressionType", choice(CompressionType.__members__),
          "The codec of payloads.", target="producer.compression_type"),
    # As in consumers of the SDK, a letter is an entry of its own, and chunked if it is large.
    _produce("pulsar.producer.batchingEnabled", flag, "Whether messages are sent in batches.",
             target="producer.batching_enabled"),
    _produce("pulsar.producer.batchingMaxMessages", at_least(2), "Messages of a batch at most.",
             target="producer.batching_max_messages"),
    _produce("pulsar.producer.batchingMaxBytes", size, "Bytes of a batch at most.",
             target="producer.batching_max_allowed_size_in_bytes"),
    _produce("pulsar.producer.batchingMaxPublishDelayMs", at_least(1),
             "Age of a batch at most, in ms.", target="producer.batching_max_publish_delay_ms"),
    _produce("pulsar.producer.batchingMaxPublishDelayMicros", _micros_as_ms,
             "The same in microseconds, rounded up to ms.",
             target="producer.batching_max_publish_delay_ms"),
    _produce("pulsar.producer.batchingType, pulsar.producer.batcherBuilder",
             choice({"DEFAULT": BatchingType.Default, "KEY_BASED": BatchingType.KeyBased}),
             "Whether a batch holds one key only.", target="producer.batching_type"),
    _produce("pulsar.producer.chunkingEnabled", flag, "Whether large messages are chunked.",
             target="producer.chunking_enabled"),
    _sink("pulsar.producer.messageRoutingMode",
          choice({"RoundRobinPartition": PartitionsRoutingMode.RoundRobinDistribution,
                  "SinglePartition": PartitionsRoutingMode.UseSinglePartition}),
          "The partition of a message without a key.", target="producer.message_routing_mode"),
    _sink("pulsar.producer.encryptionKeys, pulsar.producer.encryptionKey", names,
          "Names of the keys that readers may decrypt with."),
    _sink("pulsar.producer.cryptoPublicKeyPath", key_path, "PEM file with the public key.",
          excludes="pulsar.producer.cryptoKeyReader"),
    _sink("pulsar.producer.cryptoKeyReader", function_name,
          "module:function that makes a CryptoKeyReader."),
    _sink("pulsar.producer.cryptoFailureAction", _fails, "Only FAIL."),
)
# fmt: on


class Values(dict[str, Any]):
    """Values of the options that were given, by usual name.

    A subscript with the name of another option is its default. `client` has the texts of the
    ``pulsar.client.`` options by lower-cased name without the prefix.
    """

    def __init__(self, known: OptionSet) -> None:
        super().__init__()
        self._known = known
        self.client: dict[str, str] = {}

    def __missing__(self, name: str) -> Any:
        option = self._known[name]
        return None if option.default is None else option.parse(option.default, name)

    def fields(self, group: str = "", *, given: bool = False) -> dict[str, Any]:
        """Return the values of a group by field; with `given`, only of options that were given."""
        options = [self._known[name] for name in (self if given else self._known.names)]
        return {
            each.field: self[each.name] for each in options if each.field and each.group == group
        }


class OptionSet:
    """The options that the source or the sink accepts.

    Args:
        title: "source" or "sink".
        scope: Options are accepted if their scope overlaps this scope.
        ignored: Lower-cased names that Spark adds.
        hints: Advice for names of other connectors.
    """

    def __init__(
        self, title: str, scope: Scope, *, ignored: str, hints: dict[str, str] | None = None
    ) -> None:
        options = [option for option in OPTIONS if option.scope & scope]
        self.names: Final = tuple(option.name for option in options)
        self._spellings: Final = tuple(each for option in options for each in option.spellings)
        self._by_spelling: Final = {
            each.lower(): option for option in options for each in option.spellings
        }
        self._title = title
        self._ignored = frozenset(ignored.split())
        self._hints = hints or {}

    def __getitem__(self, name: str) -> Option:
        return self._by_spelling[name.lower()]

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._by_spelling

    def spellings(self, *names: str) -> frozenset[str]:
        return frozenset(each.lower() for name in names for each in self[name].spellings)

    def parse(self, given: Iterable[tuple[str, str]]) -> Values:
        """Parse names, in any case, and texts, or raise ConfigurationError."""
        values = Values(self)
        for name, text in given:
            lowered = name.lower()
            if lowered.startswith(CLIENT):
                values.client[lowered.removeprefix(CLIENT)] = text
            elif lowered not in self._ignored:
                if lowered not in self._by_spelling:
                    raise self._unknown(name)
                option = self[name]
                if option.name in values:
                    raise ConfigurationError(f"{option.name} was given twice, once as {name}")
                values[option.name] = option.parse(text, option.name)
        for name in self.names:
            other = self[name].excludes
            if name in values and other in values:
                raise ConfigurationError(f"give {name} or {other}, not both")
        return values

    def _unknown(self, name: str) -> ConfigurationError:
        if self is SINK and (name in SOURCE or name.lower().startswith(READER)):
            return ConfigurationError(f"{name} is an option of reading, and this is a write")
        hint = self._hints.get(name.lower())
        like, hint = ("", f": {hint}") if hint else (nearest(name, self._spellings), "")
        return ConfigurationError(
            f"there is no option {name!r}{like} of the pulsar {self._title}{hint}"
        )


SOURCE: Final = OptionSet(
    "source",
    Scope.SOURCE,
    # CREATE TABLE and save() add these.
    ignored="path provider location owner external is_managed_location comment collation "
    "table_type serialization.format",
    hints={
        "kafka.bootstrap.servers": "service.url is Pulsar's",
        "kafka.group.id": "subscription is Pulsar's",
        "groupidprefix": "subscriptionPrefix is Pulsar's",
    },
)
SINK: Final = OptionSet(
    "sink",
    Scope.SINK,
    # save(), toTable() and start() add these.
    ignored="path checkpointlocation queryname outputmode",
    hints={
        "flushintervalrows": "maxPendingMessages says how many rows may be sent and not yet "
        "stored, and a task waits for all of them at its end"
    },
)
