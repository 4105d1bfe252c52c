"""The triage of dead letters as a Spark job: read, group, store and replay them.

A micro-batch first stores every letter and then sends the chosen ones. The checkpoint and the
cursor move after that, so that a crash repeats a batch and loses nothing. Letters stay on the
executors.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ...deadletters.letter_groups import MAX_GROUPS
from ...deadletters.replay import checked_replay_id
from ...errors import ConfigurationError, EncoreError
from ...options.checks import boolean, text, topic_name
from ...values.letter_topic_names import dead_topic_of_one
from ...values.topic_names import base_name, full_name
from ..data_source import PulsarDataSource
from ..driver.cluster import Cluster
from ..interpreters import use_this_python
from ..offsets import Position
from ..option_table import CLIENT, PRODUCER, SINK, SOURCE
from ..runtime import runtime
from ..sink.sink_options import sink_options
from ..source_options import read_options
from .failure_groups import KIND, PREFIX, HourOf, check_columns, column, grouped, largest
from .halt import Halt
from .letter_routes import (
    DUPLICATE,
    KEPT,
    REFUSED,
    REPLAY,
    ROUTE,
    WHY,
    GroupSelection,
    check_topic,
    routed,
)
from .output_files import store
from .tally import HourlyTally
from .triage_report import TriageReport

log: Final = logging.getLogger("pulsar_encore.spark")

FORMAT: Final = "pulsar-encore"
"""The name under which triage registers the source: "pulsar" may be a JVM connector."""
CURSOR: Final = "encore-triage"
_RUN_ID_TIMEOUT_S: Final = 60.0
_SHUFFLE: Final = "spark.sql.shuffle.partitions"

_SET_BY_TRIAGE: Final = SOURCE.spellings(
    *(each for each in SOURCE.names if SOURCE[each].set_by_triage)
)
_START_OPTIONS: Final = SOURCE.spellings("startingOffsets", "startingTime")
_CLUSTER_OPTIONS: Final = SINK.spellings("service.url", "clientFactory")
_PRIVATE_KEY_OPTIONS: Final = SOURCE.spellings(
    "pulsar.reader.cryptoPrivateKeyPath", "pulsar.reader.cryptoKeyReader"
)
_PUBLIC_KEY_OPTIONS: Final = SINK.spellings("pulsar.producer.encryptionKeys")
_WAIT_OPTION: Final = "waitingForNonExistedTopic"
_CRYPTO_FAILURE_OPTION: Final = "pulsar.reader.cryptofailureaction"


class LetterSource(PulsarDataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT


Send = Callable[[DataFrame, str], None]
"""Replays letters; the text is the replay id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TriagePlan:
    """The plan of a triage.

    Args:
        topics: Full names of the dead letter topics, for the report.
        out, checkpoint, replay, dry_run, replay_id, hour_of: As for `triage`.
        text_keys: As for `triage`; None is an error if letters that do not tell are to be sent.
        most_groups: Maximum number of groups in the report.

    Raises:
        ConfigurationError: if two arguments do not go together, or letters could be lost or sent
            twice.
    """

    topics: tuple[str, ...] = ()
    out: str | None = None
    checkpoint: str | None = None
    replay: GroupSelection | None = None
    dry_run: bool = False
    replay_id: str | None = None
    text_keys: bool | None = None
    hour_of: HourOf = "last"
    most_groups: int = MAX_GROUPS

    def __post_init__(self) -> None:
        for name in ("out", "checkpoint"):
            if getattr(self, name) is not None:
                text(getattr(self, name), name)
        boolean(self.dry_run, "dry_run")
        if self.hour_of not in ("last", "first"):
            raise ConfigurationError(f"hour_of must be last or first, got {self.hour_of!r}")
        if self.replay is None:
            for name in ("dry_run", "replay_id"):
                if getattr(self, name):
                    raise ConfigurationError(f"{name} is of a replay: say which groups (replay)")
        if self.dry_run:
            return
        if self.checkpoint is not None and self.out is None:
            raise ConfigurationError(
                "a checkpoint needs a folder to store in (out): the next run does not read these "
                "letters again, so letters that are not sent home would be lost"
            )
        if self.replay is not None and self.checkpoint is None:
            raise ConfigurationError(
                "a replay needs a checkpoint, or the next run would send the same letters again; "
                "dry_run counts without one"
            )

    @property
    def streaming(self) -> bool:
        """True if letters are read as a stream and the position is remembered."""
        return self.checkpoint is not None and not self.dry_run


def dead_topics(topics: Iterable[str], subscription: str | None = None) -> tuple[str, ...]:
    """Return full names of dead letter topics.

    Args:
        topics: The dead letter topics, or the consumed topics if `subscription` is given. Consumers
            without retries (`retry_enable`) have a dead letter topic per partition: then name the
            partitions.
        subscription: The subscription of `<topic>-<subscription>-DLQ`.

    Raises:
        ConfigurationError: if `topics` is empty, or a name is invalid, cannot be an option of the
            source, or is not persistent.
    """
    if isinstance(topics, str):
        raise ConfigurationError("topics must be a list of names, got a str")
    names = [full_name(topic_name(each, "topics")) for each in topics]
    if not names:
        raise ConfigurationError("name a dead-letter topic, or a topic and its subscription")
    if subscription is not None:
        name = text(subscription, "subscription")
        names = [dead_topic_of_one(each, name) for each in names]
    for each in names:
        check_topic(each, "topics")
        if each.startswith("non-persistent://"):
            raise ConfigurationError(
                f"{each} is not stored: a non-persistent topic has no letters to read"
            )
    return tuple(dict.fromkeys(names))


def read_letters(
    spark: SparkSession,
    topics: Iterable[str],
    options: Mapping[str, str],
    *,
    cursor: str | None = None,
    streaming: bool = False,
) -> DataFrame:
    """Return the letters of dead letter topics, by default from the beginning.

    Args:
        spark: The session.
        topics: Full names (see `dead_topics`).
        options: Options of the source, at least `service.url`. Options of producers are for
            `replay_letters`.
        cursor: For a stream, the durable subscription that follows the checkpoint, or None.
        streaming: Read as a stream, for `triage_letters` with a checkpoint.

    Raises:
        ConfigurationError: if a triage sets one of the options itself.
    """
    given = _read_settings(topics, options, cursor=cursor, streaming=streaming)
    # Spark looks for sources with the interpreter of the environment, which the configuration of
    # spark-submit does not change.
    use_this_python(spark)
    spark.dataSource.register(LetterSource)
    reader: Any = spark.readStream if streaming else spark.read
    letters: DataFrame = reader.format(FORMAT).options(**given).load()
    return letters


def missing_topics(topics: Iterable[str], options: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the topics that do not exist; None if the brokers cannot be reached.

    The read itself waits for missing topics, because a dead letter topic is created with its first
    letter.
    """
    wanted = tuple(topics)
    if not wanted:
        return ()
    given = _read_settings(wanted, options, cursor=None, streaming=False)
    ignored = (_WAIT_OPTION.lower(), *_START_OPTIONS)  # the start of the read does not matter here
    given = {name: each for name, each in given.items() if name.lower() not in ignored}
    # `options` may hold options of a stream, such as `maxEntriesPerTrigger`.
    checked = read_options({**given, _WAIT_OPTION: "true"}, streaming=None)
    process_runtime = runtime()

    async def request_ends() -> dict[str, Position]:
        cluster = Cluster(process_runtime.client(checked.connection), checked)
        try:
            return await cluster.last(await cluster.topics())
        finally:
            await cluster.close()

    try:
        existing = process_runtime.call(
            request_ends(), "look for topics", checked.connection.operation_timeout_s
        )
    except EncoreError as error:
        log.warning("could not check whether the topics exist: %s", error)
        return None
    bases = {base_name(each) for each in existing} | set(existing)
    return tuple(each for each in wanted if each not in bases)


def _read_settings(
    topics: Iterable[str], options: Mapping[str, str], *, cursor: str | None, streaming: bool
) -> dict[str, str]:
    for name in options:
        if name.lower() in _SET_BY_TRIAGE:
            raise ConfigurationError(f"the option {name} is set by the triage: leave it out")
    triage_settings = {
        "topics": ",".join(topics),
        "view": "dlq",
        "includeMetadata": "full",
        "metadataPrefix": PREFIX,
    }
    if not any(name.lower() in _START_OPTIONS for name in options):
        triage_settings["startingOffsets"] = "earliest"
    if _WAIT_OPTION.lower() not in map(str.lower, options):
        # A topic without letters is no error.
        triage_settings[_WAIT_OPTION] = "true"
    if streaming and cursor is not None:
        triage_settings["subscription"] = cursor
    settings = {
        name: value for name, value in options.items() if not name.lower().startswith(PRODUCER)
    }
    return {**settings, **triage_settings}


def replay_letters(options: Mapping[str, str], plan: TriagePlan) -> Send:
    """Return a function that sends letters through the sink to the topics that they failed on.

    Args:
        options: Options of the source. The sink takes those of the cluster, clients and producers.
        plan: Has a replay if anything is to be sent.

    Raises:
        ConfigurationError: if letters that are read with a private key would be sent in clear text,
            or undecrypted letters as if they were clear text.
    """
    settings = _send_settings(options, plan)

    def send(letters: DataFrame, replay_id: str) -> None:
        writer = letters.write.format(FORMAT).mode("append").options(**settings)
        writer.option("replayId", replay_id).save()

    return send


def _send_settings(options: Mapping[str, str], plan: TriagePlan) -> dict[str, str]:
    if plan.replay is not None:
        _check_secrets({name.lower(): value for name, value in options.items()})
    settings = {
        name: value
        for name, value in options.items()
        if name.lower() in _CLUSTER_OPTIONS or name.lower().startswith((CLIENT, PRODUCER))
    }
    settings |= {"sinkMode": "replay", "metadataPrefix": PREFIX}
    if plan.text_keys is not None:
        settings["textKeys"] = str(plan.text_keys).lower()
    if plan.replay is not None and plan.replay.real_topics:
        settings["realTopics"] = ",".join(sorted(plan.replay.real_topics))
    return settings


def check_options(plan: TriagePlan, options: Mapping[str, str], cursor: str | None = None) -> None:
    """Check the options with the rules of the source and the sink before Spark runs them.

    Args:
        plan: The plan of the triage.
        options: As for `triage`.
        cursor: The durable subscription, if the plan has a checkpoint.

    Raises:
        ConfigurationError: if an option is unknown or wrong, or two do not go together.
    """
    reading = _read_settings(plan.topics, options, cursor=cursor, streaming=plan.streaming)
    read_options(reading, streaming=plan.streaming)
    if plan.replay is not None:
        replay_id = checked_replay_id(plan.replay_id)
        sending = {**_send_settings(options, plan), "replayId": replay_id}
        sink_options(sending, streaming=False)


def _check_secrets(options: Mapping[str, str]) -> None:
    """Require keys: rows do not tell that their letters were encrypted."""
    if _PRIVATE_KEY_OPTIONS & options.keys() and not _PUBLIC_KEY_OPTIONS & options.keys():
        raise ConfigurationError(
            "letters that are read with a private key would be sent home in clear: set "
            "pulsar.producer.encryptionKeys and pulsar.producer.cryptoPublicKeyPath"
        )
    if options.get(_CRYPTO_FAILURE_OPTION, "").strip().upper() == "CONSUME":
        raise ConfigurationError(
            "letters read with pulsar.reader.cryptoFailureAction=CONSUME cannot be sent home: "
            "their encryption metadata is missing"
        )


def triage(
    spark: SparkSession,
    topics: Iterable[str],
    options: Mapping[str, str],
    *,
    subscription: str | None = None,
    out: str | None = None,
    checkpoint: str | None = None,
    cursor: str | None = CURSOR,
    replay: GroupSelection | None = None,
    dry_run: bool = False,
    replay_id: str | None = None,
    text_keys: bool | None = None,
    hour_of: HourOf = "last",
    halt: Halt | None = None,
) -> TriageReport:
    """Group the letters of dead letter topics, store them, and replay chosen groups.

    Without a checkpoint, all letters are read and nothing is remembered, so that the next run reads
    them again. With a checkpoint, the letters since the last run are read in one or more
    micro-batches. No letter is lost: letters that are not replayed are in the Parquet files. After
    a crash a batch is repeated. It is stored once, but its letters may be replayed twice; both
    copies carry the same `letters.REPLAYED_FROM`.

    A letter is sent only to the topic in the name of its dead letter topic, or to a topic that the
    selection names: see `GroupSelection` and `deadletters.DeadLetters.replay`.

    Args:
        spark: The session, not one of Spark Connect.
        topics: The dead letter topics, or the consumed topics if `subscription` is given.
        options: Options of the source: `service.url` and the login (`pulsar.client.*`). Secrets
            stay in the memory of the driver and the executors.
        subscription: The subscription of `<topic>-<subscription>-DLQ`.
        out: Folder for Parquet files, a path or URL that Spark can write; None to store nothing.
        checkpoint: Folder for the read position, on storage that survives the driver.
        cursor: Durable subscription that keeps letters on the topics until they are in the
            checkpoint; None for none. Each checkpoint needs its own.
        replay: Groups to replay, which needs a checkpoint; None for none.
        dry_run: Only count the letters that would be replayed; send, store and remember nothing.
        replay_id: Id written on every message sent; generated if None.
        text_keys: Whether keys are text (as of most clients) or bytes (Java's `keyBytes`), for
            letters that do not tell, such as letters read with the stock transport.
        hour_of: Whether a letter counts in the hour of its last failure ("last") or of its first
            ("first").
        halt: Ends the triage early from another thread.

    Raises:
        ConfigurationError: if an argument is wrong; nothing was connected.
        HaltedError: if the triage was asked to end. Spark's own error may be raised instead,
            because its jobs are cancelled.
        pyspark.errors.PySparkException: if reading, storing or sending failed. With a checkpoint,
            the next run continues from it.

    Example:
        Store new letters and replay those of one failure::

            report = triage(
                spark,
                ["orders"],
                {"service.url": "pulsar://localhost:6650"},
                subscription="billing",
                out="s3a://triage/letters",
                checkpoint="s3a://triage/checkpoint",
                replay=GroupSelection(error_classes=["KeyError"]),
            )
    """
    plan = plan_of(
        topics,
        subscription=subscription,
        out=out,
        checkpoint=checkpoint,
        cursor=cursor,
        replay=replay,
        dry_run=dry_run,
        replay_id=replay_id,
        text_keys=text_keys,
        hour_of=hour_of,
    )
    letters = read_letters(spark, plan.topics, options, cursor=cursor, streaming=plan.streaming)
    report = triage_letters(letters, plan, replay_letters(options, plan), halt)
    report.missing = missing_topics(plan.topics, options)
    return report


def plan_of(
    topics: Iterable[str],
    *,
    subscription: str | None = None,
    out: str | None = None,
    checkpoint: str | None = None,
    cursor: str | None = CURSOR,
    replay: GroupSelection | None = None,
    dry_run: bool = False,
    replay_id: str | None = None,
    text_keys: bool | None = None,
    hour_of: HourOf = "last",
) -> TriagePlan:
    """Return the plan of `triage` with the same arguments; check them without a session.

    Raises:
        ConfigurationError: if an argument is wrong.
    """
    if cursor is not None:
        text(cursor, "cursor")
    return TriagePlan(
        topics=dead_topics(topics, subscription),
        out=out,
        checkpoint=checkpoint,
        replay=replay,
        dry_run=dry_run,
        replay_id=None if replay_id is None else checked_replay_id(replay_id),
        text_keys=text_keys,
        hour_of=hour_of,
    )


def triage_letters(
    letters: DataFrame, plan: TriagePlan, send: Send, halt: Halt | None = None
) -> TriageReport:
    """Run `triage` on letters that are already a DataFrame.

    Args:
        letters: Letters from `read_letters`: a stream if the plan has a checkpoint and is no dry
            run.
        plan: The plan of the triage.
        send: Replays rows and returns when they are stored (see `replay_letters`).
        halt: Ends the triage early from another thread.

    Raises:
        ConfigurationError: if a column is missing, or `letters` is a stream and should not be.
        HaltedError: if the triage was asked to end.
    """
    check_columns(letters)
    if KIND not in letters.columns:
        letters = letters.withColumn(KIND, f.lit(None).cast("boolean"))
    if letters.isStreaming != plan.streaming:
        raise ConfigurationError(
            "letters must be a stream if there is a checkpoint and no dry run, and else a batch"
        )
    report = TriageReport(
        topics=plan.topics,
        out=None if plan.dry_run else plan.out,
        dry_run=plan.dry_run,
        replay_id=None if plan.replay is None else checked_replay_id(plan.replay_id),
    )
    halt = halt or Halt()
    halt.begin(letters.sparkSession, report)
    job = _Job(plan, send, report, halt)
    try:
        if plan.streaming:
            _run(letters, job, str(plan.checkpoint))
        else:
            report.run = str(uuid.uuid4())
            job.take(letters, 0)
    finally:
        report.groups = job.tally.result()
    return report


def _run(letters: DataFrame, job: _Job, checkpoint: str) -> None:
    run: Future[str] = Future()

    def take(batch: DataFrame, number: int) -> None:
        # Spark may call this before `start` returns the query id. Each checkpoint has an id and
        # numbers its batches from 0: they must not overwrite those of an older checkpoint.
        job.report.run = run.result(_RUN_ID_TIMEOUT_S)
        # This session is the query's own. Adaptive execution, which would merge small tasks, is off
        # in streams: each of Spark's 200 shuffle partitions would be a task, and most would write a
        # file.
        tasks = min(_tasks(batch), int(str(batch.sparkSession.conf.get(_SHUFFLE))))
        batch.sparkSession.conf.set(_SHUFFLE, str(tasks))
        job.take(batch, number)

    query = (
        letters.writeStream.foreachBatch(take)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    run.set_result(str(query.id))
    try:
        query.awaitTermination()
    finally:
        if query.isActive:  # interrupted: the next run repeats the batch
            query.stop()
    job.report.run = str(query.id)


def _tasks(letters: DataFrame) -> int:
    return max(1, letters.rdd.getNumPartitions())


class _Job:
    def __init__(self, plan: TriagePlan, send: Send, report: TriageReport, halt: Halt) -> None:
        self.plan = plan
        self.report = report
        self._halt = halt
        self.tally = HourlyTally(plan.most_groups)
        self._send = send

    def take(self, letters: DataFrame, batch: int) -> None:
        plan, report = self.plan, self.report
        self._halt.check()
        marked = routed(letters, plan.replay, plan.hour_of, text_keys=plan.text_keys)
        rows = marked.coalesce(_tasks(letters)).persist()
        try:
            sums = rows.groupBy(ROUTE, WHY).agg(
                f.count(f.lit(1)).alias("count"),
                f.count(f.when(f.col(KIND).isNull(), column("key"))).alias("keys"),
            )
            counted = {(row[ROUTE], row[WHY]): row for row in sums.collect()}
            counts = {of: int(row["count"]) for of, row in counted.items()}
            chosen = counts.get((REPLAY, None), 0)
            if chosen and plan.text_keys is None and counted[REPLAY, None]["keys"]:
                raise ConfigurationError(
                    f"{counted[REPLAY, None]['keys']} letters to be sent home have keys and do not "
                    "say whether they were sent as text or as bytes: set text_keys=True "
                    "(--text-keys, as of most clients) or False (--no-text-keys, Java's keyBytes)"
                )
            self._halt.check()
            groups = grouped(rows.where(f.col(ROUTE) != DUPLICATE), plan.hour_of)
            if report.out is not None:
                store(rows, report.out, "letters", report.run, batch, [ROUTE])
                store(groups, report.out, "groups", report.run, batch, [])
            listed = largest(groups, self.tally.max_groups)
            # The last check: letters that are sent are always counted and remembered.
            self._halt.check()
            if chosen and not plan.dry_run:
                assert report.replay_id is not None
                self._send(rows.where(f.col(ROUTE) == REPLAY).drop(ROUTE, WHY), report.replay_id)
                report.replayed += chosen
        finally:
            rows.unpersist()
        counted_before = report.letters
        self._count(counts)
        unlisted = report.letters - counted_before - sum(each.count for each in listed)
        self.tally.add(listed, unlisted)

    def _count(self, counts: Mapping[tuple[str, str | None], int]) -> None:
        report = self.report
        report.batches += 1
        for (route, reason), count in counts.items():
            if route == DUPLICATE:
                report.duplicates += count
                continue
            report.letters += count
            if route == REPLAY:
                report.selected += count
            elif route == KEPT:
                report.kept += count
            elif route == REFUSED:
                report.refused += count
                report.reasons[str(reason)] = report.reasons.get(str(reason), 0) + count
