"""The options of a write as values, and the rules for their combinations.

A wrong option is an error before anything connects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...deadletters.replay import checked_replay_id
from ...errors import ConfigurationError
from ...options import BatchingType, ProducerOptions
from ..connection_options import ConnectionOptions, connection_of
from ..encryption_keys import KeyReaderOptions, keys_of
from ..option_table import BATCH, LETTERS, REPLAY, SEQUENCED, SINK, Values
from ..retry_delays import RetryDelays

_TRANSACTION_OPTIONS: Final = ("transactionTimeout", "journalTopic", "markerTopic")

# Each field has the value of the option in `option_table` that names it (`Option.target`).


@dataclass(frozen=True, kw_only=True, slots=True)
class LetterOptions:
    """How letters are written. Topics are full names; None stands for Java's names."""

    subscription: str
    max_redeliver_count: int
    delays: RetryDelays
    retry_topic: str | None
    dead_topic: str | None
    initial_subscription: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplaySettings:
    replay_id: str
    target: str | None
    keep_counters: bool
    real_topics: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Publishing:
    """How rows are sent.

    Attributes:
        sequenced: Whether rows have sequence ids, by which brokers drop duplicates.
        keys: The public keys for encryption; None for clear text.
        producer: Further keywords of `ProducerOptions`, sorted.
    """

    max_pending: int
    send_timeout_ms: int
    name: str | None
    sequenced: bool = False
    keys: KeyReaderOptions | None = None
    producer: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TransactionOptions:
    """Transactions of tasks. The topics are full names.

    `shared` is True if the tasks of a batch share one transaction.
    """

    timeout_ms: int
    journal_topic: str
    marker_topic: str
    shared: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkOptions:
    """The options of a write.

    `topic` is None if each row names its topic. `text_keys` is None if the user did not say whether
    keys are text. `transactions` is None without transactions.
    """

    connection: ConnectionOptions
    topic: str | None
    mode: str
    prefix: str
    value_format: str
    value_schema: str | None
    text_keys: bool | None
    letters: LetterOptions | None
    replay: ReplaySettings | None
    publishing: Publishing
    transactions: TransactionOptions | None = None


def sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse the options of a write, or raise ConfigurationError."""
    values = SINK.parse(given.items())
    mode = values["sinkMode"]
    for name in values:
        if mode not in SINK[name].modes:
            raise ConfigurationError(
                f"{name} is without effect with sinkMode={mode}, it goes with "
                f"{' and '.join(SINK[name].modes)}: leave it out"
            )
    value_format, value_schema = values["valueFormat"], values["valueSchema"]
    if (value_format == "avro") != (value_schema is not None):
        raise ConfigurationError(
            "valueFormat=avro needs valueSchema, an Avro schema as JSON"
            if value_schema is None
            else f"valueSchema goes with valueFormat=avro, not with {value_format}"
        )
    return SinkOptions(
        **values.fields(),
        connection=connection_of(values),
        prefix=values["metadataPrefix"],
        letters=_letters(values) if mode in LETTERS else None,
        replay=_replay(values) if mode == REPLAY else None,
        publishing=_publishing(values, streaming=streaming),
        transactions=_transactions(values, _checkpoint_of(given), streaming=streaming),
    )


def _checkpoint_of(given: Mapping[str, str]) -> str | None:
    """Return the checkpoint folder of the query; Spark adds it to the options of a stream."""
    return next(
        (text for name, text in given.items() if name.lower() == "checkpointlocation"), None
    )


def _transactions(
    values: Values, checkpoint: str | None, *, streaming: bool
) -> TransactionOptions | None:
    chosen = f"transactional={values['transactional']}"
    if values["transactional"] == "false":
        for name in _TRANSACTION_OPTIONS:
            if name in values:
                raise ConfigurationError(
                    f"{name} goes with transactional=true or batch: set it, too"
                )
        return None
    if values["deduplication"] == SEQUENCED:
        raise ConfigurationError(
            f"deduplication=task-sequence does not go with {chosen}: a broker keeps the "
            "numbers of an aborted attempt, and would drop the rows of the next one"
        )
    if values.client.get("transport", "native").lower() == "stock":
        raise ConfigurationError(
            f"{chosen} needs the native transport: leave out pulsar.client.transport"
        )
    journal = values["journalTopic"] or _journal_of(values["topic"], checkpoint, streaming)
    marker = values["markerTopic"] or f"{journal}-markers"
    for name, topic in (("journalTopic", journal), ("markerTopic", marker)):
        if topic.startswith("non-persistent://") or topic == values["topic"]:
            raise ConfigurationError(f"{name} must be a persistent topic of its own, got {topic}")
    if journal == marker:
        raise ConfigurationError("journalTopic and markerTopic must differ")
    return TransactionOptions(
        timeout_ms=values["transactionTimeout"],
        journal_topic=journal,
        marker_topic=marker,
        shared=values["transactional"] == BATCH,
    )


def _journal_of(topic: str | None, checkpoint: str | None, streaming: bool) -> str:
    """Return a topic for each query: named after its checkpoint folder, which is its identity.

    The driver does not know the id of a query when it starts a batch or aborts one. Batch writes of
    a topic share a journal.
    """
    if not streaming:
        return f"{topic or 'persistent://public/default/batches'}-spark-journal"
    if checkpoint is None:
        raise ConfigurationError(
            "a transactional stream needs a name for the journal of the query: set journalTopic, "
            "or the option checkpointLocation of the query, from which it is made"
        )
    namespace = (topic or "persistent://public/default/").rpartition("/")[0]
    digest = hashlib.blake2b(checkpoint.rstrip("/").encode(), digest_size=8).hexdigest()
    return f"{namespace}/spark-{digest}-journal"


def _letters(values: Values) -> LetterOptions:
    if "subscription" not in values:
        raise ConfigurationError(
            f"sinkMode={values['sinkMode']} needs the name of the subscription that the rows "
            "failed in: set subscription"
        )
    letters = LetterOptions(**values.fields("letters"))
    if letters.retry_topic is not None and letters.retry_topic == letters.dead_topic:
        raise ConfigurationError("deadLetterTopic and retryLetterTopic must differ")
    return letters


def _replay(values: Values) -> ReplaySettings:
    # Generated on the driver, so that all tasks and all their attempts have the same id.
    replay_id = checked_replay_id(values["replayId"])
    real_topics = values.get("realTopics", frozenset())
    return ReplaySettings(**values.fields("replay"), replay_id=replay_id, real_topics=real_topics)


def _publishing(values: Values, *, streaming: bool) -> Publishing:
    keywords = values.fields("producer", given=True)
    if keywords.get("chunking_enabled"):
        keywords.setdefault("batching_enabled", False)
    sequenced = values["deduplication"] == SEQUENCED
    if sequenced:
        if not streaming:
            raise ConfigurationError(
                "deduplication=task-sequence is for streams only: the rows of a batch have no "
                "numbers that would be the same in another run"
            )
        if "producerName" not in values:
            raise ConfigurationError(
                "deduplication=task-sequence needs producerName: brokers use it to recognize the "
                "rows that they have"
            )
        if keywords.get("batching_type") is BatchingType.KeyBased:
            raise ConfigurationError(
                "deduplication=task-sequence does not go with batchingType=KEY_BASED: rows would "
                "be stored out of order, and a broker drops every row that is stored too late"
            )
    ProducerOptions(topic="checked", **keywords)  # raises if two options do not go together
    return Publishing(
        **values.fields("publishing"),
        sequenced=sequenced,
        keys=_keys(values),
        producer=tuple(sorted(keywords.items())),
    )


def _keys(values: Values) -> KeyReaderOptions | None:
    recipients = values["pulsar.producer.encryptionKeys"] or ()
    keys = keys_of(
        values["pulsar.producer.cryptoPublicKeyPath"],
        values["pulsar.producer.cryptoKeyReader"],
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
