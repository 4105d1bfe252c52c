"""The triage of dead letters as a job: read, group, store, send home.

Owns `triage`, `triage_letters` and what one micro-batch does, in this order: every letter is stored
before any is sent, and all that is done before the checkpoint and the cursor move on, so that a
crash repeats a batch and loses nothing. Nothing here is local: letters stay on the executors, the
driver gets counts and groups.
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

from ...deadletters.letter_groups import MOST_GROUPS
from ...deadletters.replay import checked_replay_id
from ...errors import ConfigurationError, EncoreError
from ...options.checks import boolean, text, topic_name
from ...values.topic_names import base_name, dead_topic_of_one, full_name
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
"""The name of the source here: of its own, as "pulsar" may be a JVM connector's."""
CURSOR: Final = "encore-triage"
_RUN_S: Final = 60.0
_SHUFFLE: Final = "spark.sql.shuffle.partitions"

_OWN: Final = SOURCE.spellings(*(each for each in SOURCE.names if SOURCE[each].set_by_triage))
_STARTS: Final = SOURCE.spellings("startingOffsets", "startingTime")
_OF_THE_CLUSTER: Final = SINK.spellings("service.url", "clientFactory")
_READ_WITH_KEYS: Final = SOURCE.spellings(
    "pulsar.reader.cryptoPrivateKeyPath", "pulsar.reader.cryptoKeyReader"
)
_WRITTEN_WITH_KEYS: Final = SINK.spellings("pulsar.producer.encryptionKeys")
_WAITS: Final = "waitingForNonExistedTopic"
_CRYPTO_FAILURE: Final = "pulsar.reader.cryptofailureaction"


class LetterSource(PulsarDataSource):
    """The source and the sink by the name of `FORMAT`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT


Send = Callable[[DataFrame, str], None]
"""Sends rows home; with the id of the replay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TriagePlan:
    """What a triage does with the letters.

    Args:
        topics: The dead-letter topics, by full name, for the report.
        out: A folder for the Parquet, a path or URL of Spark's; None to store nothing.
        checkpoint: A folder that remembers what was read; None for a look that remembers nothing.
        replay: Groups to send home; None for none.
        dry_run: Count what would be sent; send and store nothing, and remember nothing.
        replay_id: Written on every message sent; made up when None.
        text_keys: Whether keys are text or bytes of which the letters do not say it, as of those
            that were read with the stock transport. None is an error once such letters are to be
            sent.
        hour_of: Whether a letter counts in the hour of its last failure or of its first.
        most_groups: Groups that the report keeps apart.

    Raises:
        ConfigurationError: Two do not go together, or letters could be lost or sent twice.
    """

    topics: tuple[str, ...] = ()
    out: str | None = None
    checkpoint: str | None = None
    replay: GroupSelection | None = None
    dry_run: bool = False
    replay_id: str | None = None
    text_keys: bool | None = None
    hour_of: HourOf = "last"
    most_groups: int = MOST_GROUPS

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
                "a checkpoint without a folder to store in (out): what a run reads is behind it "
                "then, and letters that are not sent home would be nowhere"
            )
        if self.replay is not None and self.checkpoint is None:
            raise ConfigurationError(
                "a replay needs a checkpoint, or the next run would send the same letters again; "
                "dry_run counts without one"
            )

    @property
    def streaming(self) -> bool:
        """Whether letters are read as a stream, and remembered."""
        return self.checkpoint is not None and not self.dry_run


def dead_topics(topics: Iterable[str], subscription: str | None = None) -> tuple[str, ...]:
    """Full names of dead-letter topics.

    Args:
        topics: The dead-letter topics; or with a subscription, the topics it is of. Where
            consumers take no retries (`retry_enable`), each partition has a dead-letter topic of
            its own: then name the partitions.
        subscription: Whose dead letters; they are on `<topic>-<subscription>-DLQ`.

    Raises:
        ConfigurationError: There is none, one is no name of a topic or none that the source can be
            told, or it is not persistent.
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
            raise ConfigurationError(f"{each} is not stored: there are no letters on it to read")
    return tuple(dict.fromkeys(names))


def read_letters(
    spark: SparkSession,
    topics: Iterable[str],
    options: Mapping[str, str],
    *,
    cursor: str | None = None,
    streaming: bool = False,
) -> DataFrame:
    """The letters of dead-letter topics, from the beginning unless the options say otherwise.

    Args:
        spark: The session.
        topics: Full names (`dead_topics`).
        options: Of the source: at least `service.url`. Not those that say what is read; those of
            producers are for `send_home`.
        cursor: With `streaming`, the durable subscription that follows the checkpoint; None for
            none.
        streaming: A stream, for `triage_letters` with a checkpoint.

    Raises:
        ConfigurationError: An option is one that a triage sets itself.
    """
    given = _read_settings(topics, options, cursor=cursor, streaming=streaming)
    # By itself Spark finds sources with the interpreter of the environment, which spark-submit's
    # configuration does not name.
    use_this_python(spark)
    spark.dataSource.register(LetterSource)
    reader: Any = spark.readStream if streaming else spark.read
    letters: DataFrame = reader.format(FORMAT).options(**given).load()
    return letters


def missing_topics(topics: Iterable[str], options: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return those of some topics that do not exist, asked in the driver.

    A read waits for topics that are not there (`waitingForNonExistedTopic`), because a dead letter
    topic comes with its first letter; so it does not tell a misspelt name from an empty topic.

    Args:
        topics: Full names.
        options: As `read_letters` takes them.

    Returns:
        None where the brokers could not be asked.
    """
    wanted = tuple(topics)
    if not wanted:
        return ()
    given = _read_settings(wanted, options, cursor=None, streaming=False)
    ignored = (_WAITS.lower(), *_STARTS)  # where a read begins does not matter here
    given = {name: each for name, each in given.items() if name.lower() not in ignored}
    # `options` may be those of a stream, such as `maxEntriesPerTrigger`.
    checked = read_options({**given, _WAITS: "true"}, streaming=None)
    here = runtime()

    async def ask() -> dict[str, Position]:
        cluster = Cluster(here.client(checked.connection), checked)
        try:
            return await cluster.last(await cluster.topics())
        finally:
            await cluster.close()

    try:
        there = here.call(ask(), "look for topics", checked.connection.operation_timeout_s)
    except EncoreError as error:
        log.warning("whether the topics exist could not be asked: %s", error)
        return None
    bases = {base_name(each) for each in there} | set(there)
    return tuple(each for each in wanted if each not in bases)


def _read_settings(
    topics: Iterable[str], options: Mapping[str, str], *, cursor: str | None, streaming: bool
) -> dict[str, str]:
    for name in options:
        if name.lower() in _OWN:
            raise ConfigurationError(f"the option {name} is set by the triage: leave it out")
    own = {
        "topics": ",".join(topics),
        "view": "dlq",
        "includeMetadata": "full",
        "metadataPrefix": PREFIX,
    }
    if not any(name.lower() in _STARTS for name in options):
        own["startingOffsets"] = "earliest"
    if _WAITS.lower() not in map(str.lower, options):
        own[_WAITS] = "true"  # nobody has died yet: that is no error, and an empty report says it
    if streaming and cursor is not None:
        own["subscription"] = cursor
    mine = {name: value for name, value in options.items() if not name.lower().startswith(PRODUCER)}
    return {**mine, **own}


def send_home(options: Mapping[str, str], plan: TriagePlan) -> Send:
    """Sends letters through the sink, to the topics they died on.

    Args:
        options: Of the source; the sink takes those of the cluster and of clients.
        plan: With a replay, where anything is to be sent.

    Raises:
        ConfigurationError: What is read with keys would be sent home in clear, or what is sealed as
            if it were not.
    """
    mine = _send_settings(options, plan)

    def send(letters: DataFrame, replay_id: str) -> None:
        writer = letters.write.format(FORMAT).mode("append").options(**mine)
        writer.option("replayId", replay_id).save()

    return send


def _send_settings(options: Mapping[str, str], plan: TriagePlan) -> dict[str, str]:
    if plan.replay is not None:
        _check_secrets({name.lower(): value for name, value in options.items()})
    mine = {
        name: value
        for name, value in options.items()
        if name.lower() in _OF_THE_CLUSTER or name.lower().startswith((CLIENT, PRODUCER))
    }
    mine |= {"sinkMode": "replay", "metadataPrefix": PREFIX}
    if plan.text_keys is not None:
        mine["textKeys"] = str(plan.text_keys).lower()
    if plan.replay is not None and plan.replay.real_topics:
        mine["realTopics"] = ",".join(sorted(plan.replay.real_topics))
    return mine


def check_options(plan: TriagePlan, options: Mapping[str, str], cursor: str | None = None) -> None:
    """The checks of the source and the sink, which are theirs again once Spark runs them.

    Args:
        plan: What to do with the letters.
        options: As `triage` takes them.
        cursor: The durable subscription, where the plan has a checkpoint.

    Raises:
        ConfigurationError: One is unknown or wrong, or two do not go together.
    """
    reading = _read_settings(plan.topics, options, cursor=cursor, streaming=plan.streaming)
    read_options(reading, streaming=plan.streaming)
    if plan.replay is not None:
        replay_id = checked_replay_id(plan.replay_id)
        sending = {**_send_settings(options, plan), "replayId": replay_id}
        sink_options(sending, streaming=False)


def _check_secrets(options: Mapping[str, str]) -> None:
    """A row does not say that its letter was encrypted: whoever reads with keys says what for."""
    if _READ_WITH_KEYS & options.keys() and not _WRITTEN_WITH_KEYS & options.keys():
        raise ConfigurationError(
            "letters that are read with a private key would be sent home in clear: set "
            "pulsar.producer.encryptionKeys and pulsar.producer.cryptoPublicKeyPath"
        )
    if options.get(_CRYPTO_FAILURE, "").strip().upper() == "CONSUME":
        raise ConfigurationError(
            "letters read with pulsar.reader.cryptoFailureAction=CONSUME cannot be sent home: what "
            "would decrypt their bytes is not with them"
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
    """Group the letters of dead-letter topics, store them, and send chosen groups home.

    Without a checkpoint it is a look: everything that lies there is read, nothing is moved, and the
    next look reads it again. With one it reads what came since the last run, in one or several
    micro-batches, and ends; nothing that it read is lost: what is not sent home is in the Parquet.
    After a crash a batch is repeated: stored once, and letters of it may be sent home twice; both
    carry the same `letters.REPLAYED_FROM`.

    A letter is sent only to a topic that the dead-letter topic is named after, or that the
    selection names: see `GroupSelection` and `deadletters.DeadLetters.replay`.

    Args:
        spark: The session; a plain one, not one of Spark Connect.
        topics: The dead-letter topics; or with `subscription`, the topics it is of.
        options: Of the source: `service.url`, and what logs in (`pulsar.client.*`). Secrets stay
            in memory, in the driver and the executors.
        subscription: Whose dead letters (`<topic>-<subscription>-DLQ`).
        out: A folder for the Parquet, a path or URL of Spark's; None to store nothing.
        checkpoint: A folder that remembers what was read, on storage that outlives the driver.
        cursor: The durable subscription that keeps letters on the topics until a checkpoint has
            them; None for none. One for each checkpoint.
        replay: Groups to send home; needs a checkpoint. None for none.
        dry_run: Look, and count what the replay would send; send, store and remember nothing.
        replay_id: Written on every message sent; made up when None.
        text_keys: Keys are text (as of most clients) or bytes (Java's `keyBytes`) of which the
            letters do not say it, as of those that are read with the stock transport.
        hour_of: Whether a letter counts in the hour of its last failure ("last") or of its first
            ("first").
        halt: Ends it early, when another thread asks.

    Raises:
        ConfigurationError: An argument is wrong; nothing was connected.
        HaltedError: It was asked to end; also an error of Spark's is, whose jobs were cancelled.
        pyspark.errors.PySparkException: Reading, storing or sending failed; with a checkpoint the
            next run goes on where this one was.
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
    report = triage_letters(letters, plan, send_home(options, plan), halt)
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
    """What `triage` with the same arguments would do; checks them without a session.

    Raises:
        ConfigurationError: An argument is wrong.
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
    """`triage` of letters that are read already.

    Args:
        letters: As the source reads them (`read_letters`): a stream, where the plan has a
            checkpoint and is no dry run.
        plan: What to do.
        send: Sends rows home, and returns when they are persisted (`send_home`).
        halt: Ends it early, when another thread asks.

    Raises:
        ConfigurationError: A column is missing, or they are a stream and should not be.
        HaltedError: It was asked to end.
    """
    check_columns(letters)
    if KIND not in letters.columns:
        letters = letters.withColumn(KIND, f.lit(None).cast("boolean"))
    if letters.isStreaming != plan.streaming:
        raise ConfigurationError(
            "letters are a stream where there is a checkpoint and no dry run, and only there"
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
    """All batches there are now."""
    run: Future[str] = Future()

    def take(batch: DataFrame, number: int) -> None:
        # Spark calls before `start` has said the id, which the checkpoint keeps: a new checkpoint
        # counts its batches from 0 again, and must not write over those of an older one.
        job.report.run = run.result(_RUN_S)
        # This session is the query's own. Adaptive execution, which would make few tasks of few
        # letters, is off in streams; of Spark's 200 each would be a task, and nearly each a file.
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
        if query.isActive:  # interrupted: the batch is repeated by the next run
            query.stop()
    job.report.run = str(query.id)


def _tasks(letters: DataFrame) -> int:
    """How many tasks read them, which are as many as are needed behind them."""
    return max(1, letters.rdd.getNumPartitions())


class _Job:
    """What is done with each batch, and the sums."""

    def __init__(self, plan: TriagePlan, send: Send, report: TriageReport, halt: Halt) -> None:
        self.plan = plan
        self.report = report
        self._halt = halt
        self.tally = HourlyTally(plan.most_groups)
        self._send = send

    def take(self, letters: DataFrame, batch: int) -> None:
        """Store and send one batch, then count it."""
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
                    "say whether they were sent as text or as bytes: say text_keys=True "
                    "(--text-keys, as of most clients) or False (--no-text-keys, Java's keyBytes)"
                )
            self._halt.check()
            groups = grouped(rows.where(f.col(ROUTE) != DUPLICATE), plan.hour_of)
            if report.out is not None:
                store(rows, report.out, "letters", report.run, batch, [ROUTE])
                store(groups, report.out, "groups", report.run, batch, [])
            listed = largest(groups, self.tally.most)
            self._halt.check()  # the last time: what is sent is counted, and remembered
            if chosen and not plan.dry_run:
                assert report.replay_id is not None
                self._send(rows.where(f.col(ROUTE) == REPLAY).drop(ROUTE, WHY), report.replay_id)
                report.replayed += chosen
        finally:
            rows.unpersist()
        self._count(counts)
        total = sum(counts.values()) - sum(
            count for (route, _), count in counts.items() if route == DUPLICATE
        )
        self.tally.add(listed, total - sum(each.count for each in listed))

    def _count(self, counts: Mapping[tuple[str, str | None], int]) -> None:
        report = self.report
        report.batches += 1
        for (route, why), count in counts.items():
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
                report.reasons[str(why)] = report.reasons.get(str(why), 0) + count
