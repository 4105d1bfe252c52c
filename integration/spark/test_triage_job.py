"""The triage job: stored, sent and checkpointed letters, by batch and after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pulsar_encore.errors import ConfigurationError
from pulsar_encore.spark.triage import (
    GroupSelection,
    TriagePlan,
    dead_topics,
    read_letters,
    replay_letters,
    triage,
    triage_letters,
)
from pulsar_encore.spark.triage.output_files import write_file

from .triage_kit import DEAD, HOME, NOON_MS, frame, letter, stream

#: The two cores may be shared with other programs, and the first test starts the session.
pytestmark = pytest.mark.timeout(240)

KEYS = GroupSelection(fingerprints=["aaaaaaaaaaaa"])


class Sink:
    """Records the rows that it is given. Fails if `failing` is set."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, set[bytes]]] = []
        self.columns: list[str] = []
        self.failing = False

    def __call__(self, rows: DataFrame, replay_id: str) -> None:
        values = {bytes(row["value"]) for row in rows.collect()}
        self.columns = rows.columns
        self.sent.append((replay_id, values))
        if self.failing:
            raise OSError("the broker is away")


def batch_one() -> list[dict[str, Any]]:
    return [
        letter(1),
        letter(2, originMessageId="1:1:-1", value=b"1"),  # of the same message
        letter(3, fingerprint="bbbbbbbbbbbb"),
        letter(4, realTopic="persistent://public/default/payroll"),
    ]


def stored(spark: SparkSession, out: Path) -> dict[str, set[bytes]]:
    """Return the stored payloads by route."""
    rows = spark.read.parquet(f"{out}/letters").collect()
    found: dict[str, set[bytes]] = {}
    for row in rows:
        found.setdefault(row["route"], set()).add(bytes(row["value"]))
    assert sum(map(len, found.values())) == len(rows), "each is there once"
    return found


def test_a_triage_without_output_only_counts(spark: SparkSession, tmp_path: Path) -> None:
    sink = Sink()
    report = triage_letters(frame(spark, batch_one()), TriagePlan(topics=(DEAD,)), sink)
    assert (report.letters, report.duplicates, report.kept, report.batches) == (3, 1, 3, 1)
    assert [(each.fingerprint[0], each.real_topic, each.count) for each in report.groups] == [
        ("a", HOME, 1),
        ("a", "persistent://public/default/payroll", 1),
        ("b", HOME, 1),
    ]
    assert {each.hour_ms for each in report.groups} == {NOON_MS}
    assert (sink.sent, report.out, report.replay_id) == ([], None, None)


def test_a_triage_with_output_stores_each_run(spark: SparkSession, tmp_path: Path) -> None:
    plan = TriagePlan(topics=(DEAD,), out=str(tmp_path))
    first = triage_letters(frame(spark, batch_one()), plan, Sink())
    second = triage_letters(frame(spark, batch_one()), plan, Sink())
    assert first.run != second.run
    rows = spark.read.parquet(f"{tmp_path}/letters")
    assert {str(row["run"]) for row in rows.select("run").distinct().collect()} == {
        first.run,
        second.run,
    }
    assert rows.where(rows.run == first.run).count() == 4
    groups = spark.read.parquet(f"{tmp_path}/groups/run={first.run}").collect()
    assert sorted((row["fingerprint"][0], row["count"]) for row in groups) == [
        *(("a", 1), ("a", 1), ("b", 1))
    ]


def test_a_dry_run_counts_the_letters_to_be_sent(spark: SparkSession, tmp_path: Path) -> None:
    sink = Sink()
    plan = TriagePlan(
        replay=KEYS, dry_run=True, out=str(tmp_path / "out"), checkpoint=str(tmp_path / "done")
    )
    report = triage_letters(frame(spark, batch_one()), plan, sink)
    assert (report.selected, report.refused, report.kept, report.replayed) == (1, 1, 1, 0)
    assert (sink.sent, list(tmp_path.iterdir())) == ([], [])
    [(reason, count)] = report.reasons.items()
    assert "not named after" in reason
    assert count == 1


def test_runs_continue_after_the_last_run(spark: SparkSession, tmp_path: Path) -> None:
    """Each letter is sent once, over several batches too, and the others are stored."""
    sink, source, out = Sink(), str(tmp_path / "source"), tmp_path / "out"
    plan = TriagePlan(
        topics=(DEAD,),
        out=str(out),
        checkpoint=str(tmp_path / "done"),
        replay=KEYS,
        replay_id="fixed",
    )
    stream(spark, source, batch_one())
    letters = stream(spark, source, [letter(11), letter(12, fingerprint="cccccccccccc")])
    first = triage_letters(letters, plan, sink)
    assert (first.batches, first.letters, first.duplicates, first.replayed) == (2, 5, 1, 2)
    assert (first.selected, first.kept, first.refused) == (2, 2, 1)
    assert sink.sent == [("fixed", {b"1"}), ("fixed", {b"11"})]
    assert sink.columns == letters.columns

    again = triage_letters(letters, plan, sink)
    assert (again.batches, again.letters, again.run) == (0, 0, first.run)

    last = triage_letters(stream(spark, source, [letter(21)]), plan, sink)
    assert (last.batches, last.letters, last.run) == (1, 1, first.run)
    assert sink.sent[2:] == [("fixed", {b"21"})]
    assert stored(spark, out) == {
        "replay": {b"1", b"11", b"21"},
        "kept": {b"3", b"12"},
        "refused": {b"4"},
        "duplicate": {b"1"},
    }


def test_a_batch_that_failed_is_repeated_and_stored_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink, out = Sink(), tmp_path / "out"
    plan = TriagePlan(out=str(out), checkpoint=str(tmp_path / "done"), replay=KEYS)
    letters = stream(spark, str(tmp_path / "source"), batch_one())
    sink.failing = True
    with pytest.raises(StreamingQueryException, match="the broker is away"):
        triage_letters(letters, plan, sink)
    assert stored(spark, out)["replay"] == {b"1"}, "what was to be sent is stored before"
    sink.failing = False
    report = triage_letters(letters, plan, sink)
    assert (report.replayed, report.letters) == (1, 3)
    assert [values for _, values in sink.sent] == [{b"1"}, {b"1"}]
    assert sum(map(len, stored(spark, out).values())) == 4


def test_a_new_checkpoint_overwrites_no_output(spark: SparkSession, tmp_path: Path) -> None:
    letters = stream(spark, str(tmp_path / "source"), batch_one())
    for name in ("one", "two"):
        plan = TriagePlan(out=str(tmp_path / "out"), checkpoint=str(tmp_path / name))
        triage_letters(letters, plan, Sink())
    assert spark.read.parquet(f"{tmp_path}/out/letters").count() == 8


def test_groups_beyond_the_limit_are_counted_together(spark: SparkSession) -> None:
    rows = [letter(each, fingerprint=f"{each:012}") for each in range(5)]
    rows += [letter(10 + each) for each in range(3)]
    report = triage_letters(frame(spark, rows), TriagePlan(most_groups=2), Sink())
    assert [(each.fingerprint, each.hour_ms, each.count) for each in report.groups] == [
        ("(others)", None, 4),
        ("aaaaaaaaaaaa", NOON_MS, 3),
        ("000000000000", NOON_MS, 1),
    ]
    assert report.letters == 8


@pytest.mark.parametrize(
    ("plan_options", "expected"),
    [
        ({"checkpoint": "c"}, "needs a folder"),
        ({"replay": KEYS, "out": "o"}, "needs a checkpoint"),
        ({"dry_run": True}, "dry_run"),
        ({"replay_id": "r"}, "replay_id"),
        ({"out": " "}, "out"),
        ({"hour_of": "middle"}, "hour_of"),
    ],
)
def test_contradicting_plan_options_are_refused(
    plan_options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        TriagePlan(**plan_options)


def test_a_stream_needs_a_checkpoint_and_a_batch_refuses_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = batch_one()
    letters = stream(spark, str(tmp_path / "source"), rows)
    for invalid, plan in (
        (letters, TriagePlan()),
        (frame(spark, rows), TriagePlan(out="o", checkpoint=str(tmp_path / "done"))),
    ):
        with pytest.raises(ConfigurationError, match="stream"):
            triage_letters(invalid, plan, Sink())


def test_dead_letter_topics_are_named_after_a_subscription() -> None:
    assert dead_topics(["orders", "orders"], "billing") == (DEAD,)
    assert dead_topics([f"{HOME}-partition-1"], "billing") == (f"{HOME}-partition-1-billing-DLQ",)
    assert dead_topics([DEAD]) == (DEAD,)
    for invalid in ([], "orders", [""]):
        with pytest.raises(ConfigurationError):
            dead_topics(invalid)
    with pytest.raises(ConfigurationError, match="subscription"):
        dead_topics(["orders"], " ")


class Reader:
    """A replacement for `spark.read`, `spark.readStream` and a writer, which records its
    options.
    """

    def __init__(self) -> None:
        self.plan_options: dict[str, str] = {}
        self.kind = ""

    def format(self, name: str) -> Reader:
        self.plan_options["format"] = name
        return self

    def mode(self, name: str) -> Reader:
        self.plan_options["mode"] = name
        return self

    def options(self, **plan_options: str) -> Reader:
        self.plan_options |= plan_options
        return self

    def option(self, name: str, value: str) -> Reader:
        self.plan_options[name] = value
        return self

    def load(self) -> Any:
        return self

    def save(self) -> None:
        self.kind = "saved"


class Session:
    def __init__(self) -> None:
        self.read, self.readStream = Reader(), Reader()
        self.dataSource = self
        self.registered: list[str] = []

    def register(self, source: Any) -> None:
        self.registered.append(source.name())


CLUSTER = {"service.url": "pulsar://b:6650", "pulsar.client.authParams": "token:s3cret"}


def test_letters_are_read_from_the_beginning() -> None:
    session: Any = Session()
    read_letters(session, [DEAD, HOME], CLUSTER, cursor="c")
    assert session.registered == ["pulsar-encore"]
    assert session.read.plan_options == {
        **CLUSTER,
        "format": "pulsar-encore",
        "topics": f"{DEAD},{HOME}",
        "view": "dlq",
        "includeMetadata": "full",
        "metadataPrefix": "__",
        "startingOffsets": "earliest",
        "waitingForNonExistedTopic": "true",
    }
    started = {**CLUSTER, "startingTime": "5"}
    read_letters(session, [DEAD], started, cursor="c", streaming=True)
    assert session.readStream.plan_options["subscription"] == "c"
    assert "startingOffsets" not in session.readStream.plan_options
    with pytest.raises(ConfigurationError, match="View"):
        read_letters(session, [DEAD], {**CLUSTER, "View": "plain"})


def test_letters_are_read_without_producer_options() -> None:
    session: Any = Session()
    read_letters(session, [DEAD], {**CLUSTER, "pulsar.producer.encryptionKeys": "k"})
    assert "pulsar.producer.encryptionKeys" not in session.read.plan_options


class Rows:
    def __init__(self) -> None:
        self.write = Reader()
        self.dropped: list[str] = []

    def drop(self, name: str) -> Rows:
        self.dropped.append(name)
        return self


def test_letters_are_replayed_through_the_sink() -> None:
    rows: Any = Rows()
    with_options = {**CLUSTER, "admin.url": "http://b:8080", "maxBytesPerTrigger": "1g"}
    replay_letters(with_options, TriagePlan())(rows, "r1")
    assert rows.write.plan_options == {
        **CLUSTER,
        "format": "pulsar-encore",
        "mode": "append",
        "sinkMode": "replay",
        "metadataPrefix": "__",
        "replayId": "r1",
    }
    assert (rows.write.kind, rows.dropped) == ("saved", [])


def test_encrypted_letters_are_not_replayed_unencrypted() -> None:
    with_key = {**CLUSTER, "pulsar.reader.cryptoPrivateKeyPath": "/keys/private.pem"}
    chosen = TriagePlan(replay=GroupSelection(real_topics=["b"]), dry_run=True, text_keys=True)
    with pytest.raises(ConfigurationError, match="would be sent home in clear"):
        replay_letters(with_key, chosen)
    replay_letters(with_key, TriagePlan())  # a plan without a replay
    rows: Any = Rows()
    producing = {
        "pulsar.producer.encryptionKeys": "k",
        "pulsar.producer.cryptoPublicKeyPath": "/keys/public.pem",
    }
    replay_letters({**with_key, **producing}, chosen)(rows, "r1")
    assert rows.write.plan_options.items() >= producing.items()
    assert not any("reader" in each for each in rows.write.plan_options)
    with pytest.raises(ConfigurationError, match="CONSUME cannot be sent home"):
        replay_letters({**CLUSTER, "pulsar.reader.cryptoFailureAction": "consume"}, chosen)


def test_the_sink_gets_the_options_of_the_plan() -> None:
    rows: Any = Rows()
    chosen = GroupSelection(real_topics=["b", "a-partition-1"])
    replay_letters(CLUSTER, TriagePlan(replay=chosen, dry_run=True, text_keys=False))(rows, "r1")
    home = "persistent://public/default"
    assert rows.write.plan_options["textKeys"] == "false"
    assert rows.write.plan_options["realTopics"] == f"{home}/a,{home}/b"
    assert rows.dropped == []


def test_letters_record_whether_their_keys_are_text_or_bytes(spark: SparkSession) -> None:
    rows = [letter(1, key=b"text", keyIsBytes=False), letter(2, key=b"\xff", keyIsBytes=True)]
    plan_options: dict[str, Any] = {"replay": KEYS, "dry_run": True}
    report = triage_letters(frame(spark, rows), TriagePlan(**plan_options), Sink())
    assert (report.selected, report.refused) == (2, 0)
    invalid = [letter(1, key=b"\xff", keyIsBytes=False)]
    assert triage_letters(frame(spark, invalid), TriagePlan(**plan_options), Sink()).refused == 1
    stored = frame(spark, rows).drop("__keyIsBytes")  # stored by an older release
    with pytest.raises(ConfigurationError, match=r"2 letters to be sent home have keys.*--text"):
        triage_letters(stored, TriagePlan(**plan_options), Sink())


def test_a_replay_with_keys_of_unknown_kind_needs_text_keys(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [letter(1, key=b"text"), letter(2, key=b"\xff"), letter(3, fingerprint="b", key=b"k")]
    plan_options: dict[str, Any] = {"replay": KEYS, "dry_run": True}
    with pytest.raises(ConfigurationError, match=r"2 letters to be sent home have keys.*--text"):
        triage_letters(frame(spark, rows), TriagePlan(**plan_options), Sink())
    as_bytes = triage_letters(
        frame(spark, rows), TriagePlan(text_keys=False, **plan_options), Sink()
    )
    assert (as_bytes.selected, as_bytes.refused) == (2, 0)
    as_text = triage_letters(frame(spark, rows), TriagePlan(text_keys=True, **plan_options), Sink())
    assert (as_text.selected, as_text.refused) == (1, 1)
    assert triage_letters(frame(spark, rows), TriagePlan(), Sink()).letters == 3
    assert (
        triage_letters(frame(spark, [letter(1)]), TriagePlan(**plan_options), Sink()).selected == 1
    )


def test_an_invalid_plan_is_refused_before_connecting() -> None:
    session: Any = Session()
    with pytest.raises(ConfigurationError, match="needs a checkpoint"):
        triage(session, ["orders"], CLUSTER, subscription="billing", replay=KEYS)
    assert session.read.plan_options == {}


def test_a_file_is_written_on_the_driver_or_through_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    for path in (f"{tmp_path}/a.png", f"file://{tmp_path}/b.png"):
        write_file(spark, path, b"before, and longer")
        write_file(spark, path, bytes(range(256)))
        assert (tmp_path / path[-5:]).read_bytes() == bytes(range(256))
    (tmp_path / "file").write_bytes(b"")
    for path in (f"{tmp_path}/none/a.png", f"file://{tmp_path}/file/a.png", "nowhere://x/a.png"):
        with pytest.raises(ConfigurationError, match="cannot write"):
            write_file(spark, path, b"x")
