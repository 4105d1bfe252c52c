"""`pulsar-encore spark triage`: what it is given decides what it does; what is wrong is a line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pulsar_encore import cli
from pulsar_encore.cli.login import Login, access
from pulsar_encore.cli.spark import said_by, source_options
from pulsar_encore.errors import ConfigurationError
from pulsar_encore.spark.source_options import read_options
from pulsar_encore.spark.triage import job
from pulsar_encore.spark.triage.output_files import check_file, check_folder

from .triage_kit import DEAD, frame, letter, stream

#: Two cores may be shared, and the first test here starts the session.
pytestmark = pytest.mark.timeout(240)

URL = "pulsar://broker.example:6650"
Run = Callable[..., tuple[int, str, str]]


class Cluster:
    """What stands for the source and the sink."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.rows: list[dict[str, Any]] = [letter(1), letter(2, fingerprint="bbbbbbbbbbbb")]
        self.asked: list[dict[str, Any]] = []
        self.sent: list[set[bytes]] = []
        self.plans: list[job.TriagePlan] = []
        self.missing: tuple[str, ...] | None = ()

    def read(
        self, spark: SparkSession, topics: Any, options: Mapping[str, str], **given: Any
    ) -> DataFrame:
        self.asked.append({"topics": topics, "options": dict(options), **given})
        if given["streaming"]:
            return stream(spark, str(self.folder), self.rows)
        return frame(spark, self.rows)

    def send_home(self, options: Mapping[str, str], plan: job.TriagePlan) -> job.Send:
        self.plans.append(plan)

        def send(rows: DataFrame, replay_id: str) -> None:
            self.sent.append({bytes(row["value"]) for row in rows.collect()})

        return send


@pytest.fixture
def cluster(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(spark, tmp_path / "source")
    monkeypatch.setattr(job, "read_letters", made.read)
    monkeypatch.setattr(job, "send_home", made.send_home)
    monkeypatch.setattr(job, "missing_topics", lambda topics, options: made.missing)
    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda cls: spark))
    return made


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("PULSAR_TOKEN", "PULSAR_URL", "PULSAR_TOKEN_FILE", "PULSAR_BASIC_FILE"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        code = cli.main(["spark", "triage", *words])
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return code, said.out, said.err

    return run


def test_a_look_prints_a_table_and_draws(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    chart = tmp_path / "letters.png"
    words = ["--topic", "orders", "--subscription", "billing", "--url", URL, "--chart", str(chart)]
    code, out, _ = run(*words, "--option", "pollTimeoutMs=5000", "--admin-url", "http://b:8080")
    assert code == 0
    assert out.startswith("2 letters on orders-billing-DLQ\n")
    assert out.endswith(f"nothing was sent or stored\ndrawn in {chart}\n")
    assert chart.read_bytes()[:4] == b"\x89PNG"
    [asked] = cluster.asked
    assert (asked["topics"], asked["streaming"]) == ((DEAD,), False)
    assert asked["options"] == {
        "service.url": URL,
        "admin.url": "http://b:8080",
        "pollTimeoutMs": "5000",
    }


def test_json_is_an_object_alone(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    code, out, err = run("--topic", DEAD, "--json", "--chart", str(tmp_path / "a.png"))
    found = json.loads(out)
    assert (code, found["letters"], len(found["groups"]), err) == (0, 2, 2, "")


def test_no_letters_are_exit_code_3(cluster: Cluster, run: Run) -> None:
    cluster.rows = []
    code, out, err = run("--topic", DEAD, "--json")
    assert (code, json.loads(out)["letters"]) == (3, 0)
    assert err == "pulsar-encore: there are no letters: the topics exist and are empty\n"
    cluster.missing = (DEAD,)
    code, out, err = run("--topic", DEAD)
    assert (code, "there is no topic orders-billing-DLQ" in out) == (3, True)
    assert "no letters: there is no topic orders-billing-DLQ; check the name" in err
    cluster.missing = None  # nobody could be asked
    assert "check the names of the topics" in run("--topic", DEAD)[2]


def test_chosen_groups_are_sent_home(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    kept = ["--out", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "done")]
    chosen = ["--select-fingerprint", "bbbbbbbbbbbb"]
    assert run("--topic", DEAD, *kept, *chosen, "--dry-run")[0] == 0
    assert (cluster.sent, (tmp_path / "out").exists()) == ([], False)
    code, out, _ = run(
        "--topic", DEAD, *kept, *chosen, "--replay", "--cursor", "mine", "--no-text-keys"
    )
    assert (code, cluster.sent) == (0, [{b"2"}])
    assert "1 were sent home" in out
    assert [each["cursor"] for each in cluster.asked] == ["encore-triage", "mine"]
    assert [each.text_keys for each in cluster.plans] == [None, False]


def test_letters_that_cannot_be_sent_are_exit_code_1(cluster: Cluster, run: Run) -> None:
    cluster.rows = [letter(1, realTopic="persistent://public/default/payroll")]
    code, out, _ = run("--topic", DEAD, "--dry-run", "--all")
    assert code == 1
    assert "1 cannot be sent:" in out
    assert run("--topic", DEAD, "--dry-run", "--real-topic", "payroll")[0] == 0


@pytest.mark.parametrize(("number", "ends"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_says_what_was_done(
    cluster: Cluster,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    ends: int,
) -> None:
    """At the second batch's letters; the next run sends them."""
    stream(cluster.spark, str(cluster.folder), [letter(5)])  # a batch of its own
    send = cluster.send_home({}, job.TriagePlan())
    interrupted = []

    def begin(rows: DataFrame, replay_id: str) -> None:
        if cluster.sent and not interrupted:
            interrupted.append(os.kill(os.getpid(), number))
            for _ in range(10_000):
                rows.count()  # until Spark's jobs are cancelled
        send(rows, replay_id)

    monkeypatch.setattr(job, "send_home", lambda options, plan: begin)
    words = ["--topic", DEAD, "--out", str(tmp_path / "out"), "--replay", "--all", "--json"]
    words += ["--checkpoint", str(tmp_path / "done"), "--no-text-keys"]
    code, out, err = run(*words)
    assert (code, err.count("\n")) == (ends, 1)
    assert err.startswith("pulsar-encore: interrupted: ")
    assert "in 1 batch" in err
    assert "with the same checkpoint" in err
    assert json.loads(out)["replayed"] == len(cluster.sent[0])
    cluster.rows = []
    assert run(*words)[0] == 0
    assert [each for sent in cluster.sent for each in sorted(sent)].count(b"5") == 1
    assert set().union(*cluster.sent) == {b"1", b"2", b"5"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a dead-letter topic"),
        (["--topic", DEAD, "--chart", ""], "--chart must name a file"),
        (["--topic", DEAD, "--replay"], "choose groups by"),
        (["--topic", DEAD, "--replay", "--all", "--since", "2h"], "choose groups by"),
        (["--topic", DEAD, "--replay", "--all"], "needs a checkpoint"),
        (["--topic", DEAD, "--select-class", "KeyError"], "add --replay"),
        (["--topic", DEAD, "--replay-id", "r"], "add --replay"),
        (["--topic", DEAD, "--checkpoint", "c"], "needs a folder"),
        (["--topic", DEAD, "--option", "view"], "must be name=value"),
        (["--topic", DEAD, "--option", "pulsar.client.authParams=token:s3cret"], "takes a secret"),
        (["--topic", DEAD, "--replay", "--since", "soon"], "since must be"),
        (["--topic", DEAD, "--url", "broker"], "--url"),
        (["--topic", "a b"], "no blanks here"),
        (["--topic", "a\u00a0b"], "no blanks here"),
        (["--topic", ""], "topics must be a string that is not blank"),
        (["--topic", "a,b"], "list each topic separately"),
        (["--topic", "a\x00b"], "got 'persistent://public/default/a\\x00b'"),
        (["--topic", "a", "--subscription", "b/c"], "topics must be a name"),
        (["--topic", "a", "--subscription", " "], "subscription must be"),
        (["--topic", "non-persistent://public/default/a"], "is not stored"),
        (["--topic", DEAD, "--dry-run", "--real-topic", "a b"], "no blanks here"),
        (["--topic", DEAD, "--dry-run", "--real-topic", "a,b"], "list each topic separately"),
        (["--topic", DEAD, "--dry-run", "--real-topic", ""], "real_topics must hold"),
        (["--topic", DEAD, "--dry-run", "--select-fingerprint", ""], "fingerprints must hold"),
        (["--topic", DEAD, "--dry-run", "--since", "60000d"], "since must be a time of the years"),
        (["--topic", DEAD, "--dry-run", "--since", "9" * 30 + "d"], "since must be"),
        (["--topic", DEAD, "--dry-run", "--since", "1h", "--until", "2h"], "until must be after"),
        (["--topic", DEAD, "--dry-run", "--since", "2999-01-01"], "since lies in the future"),
        (["--topic", DEAD, "--replay", "--all", "--replay-id", ""], "replay_id must be"),
        (["--topic", DEAD, "--replay", "--all", "--replay-id", " "], "replay_id must be"),
        (["--topic", DEAD, "--replay", "--all", "--replay-id", "r" * 201], "at most 200"),
        (["--topic", DEAD, "--replay", "--all", "--replay-id", "a\x00b"], "printable"),
        (
            ["--topic", DEAD, "--replay", "--all", "--replay-id", "a\udcff"],
            "contains a lone surrogate",
        ),
        (["--topic", DEAD, "--option", "maxRecordsPerPartition=-1"], "maxRecordsPerPartition"),
        (["--topic", DEAD, "--option", "minPartition=2"], "there is no option 'minPartition'"),
        (["--topic", DEAD, "--option", "topics=a"], "set by the triage"),
        (["--topic", DEAD, "--option", "topicsPattern=a.*"], "set by the triage"),
        (["--topic", DEAD, "--option", "maxEntriesPerTrigger=5"], "leave it out"),
        (["--topic", DEAD, "--option", "minPartitions=1", "--option", "minPartitions=2"], "twice"),
        (["--topic", DEAD, "--admin-url", ""], "admin.url"),
        (["--topic", DEAD, "--chart", "/"], "--chart must name a file"),
        (["--topic", DEAD, "--chart", "a.pdf"], "ends with '.pdf'"),
        (["--topic", DEAD, "--chart", "s3a://bucket/a.jpg"], "ends with '.jpg'"),
        (["--topic", DEAD, "--chart", "/nonexistent/a.png"], "cannot write '/nonexistent/a.png'"),
        (["--topic", DEAD, "--chart", "a\x00.png"], "--chart"),
        (["--topic", DEAD, "--chart", "a" * 300 + ".png"], "--chart"),
        (["--topic", DEAD, "--chart", "/dev"], "is a folder"),
        (["--topic", DEAD, "--chart", "/dev/null/a.png"], "cannot write"),
        (["--topic", DEAD, "--out", "/dev/null/a"], "'/dev/null' is no folder"),
        (["--topic", DEAD, "--out", "file:///dev/null/a"], "'/dev/null' is no folder"),
        (["--topic", DEAD, "--out", ""], "out must be"),
    ],
)
def test_what_is_wrong_is_said_before_spark_starts(
    words: list[str], said: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(master: str | None) -> None:
        raise AssertionError("a session was started")

    monkeypatch.setattr("pulsar_encore.cli.spark._session", started)
    # That of an earlier test is none of this one's.
    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda cls: None))
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert "s3cret" not in err


def test_a_file_that_was_looked_at_is_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "old.png").write_bytes(b"old")
    (tmp_path / "link.png").symlink_to(tmp_path / "target.png")
    for name in ("old.png", "new.png", "link.png"):
        check_file(str(tmp_path / name), "--chart")
    check_folder(str(tmp_path / "a" / "b"), "--out")
    for elsewhere in ("s3a://bucket/a", "hdfs:/a"):
        check_folder(elsewhere, "--out")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.png", "old.png"]
    assert (tmp_path / "old.png").read_bytes() == b"old"


def test_a_path_without_a_scheme_may_be_of_a_cluster(
    cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--topic", DEAD, "--replay", "--all", "--out", "/dev/null/a", "--no-text-keys"]
    words += ["--checkpoint", "/dev/null/b"]
    code, _, err = run(*words)
    assert (code, "is no folder" in err) == (2, True)
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert "is no folder" not in run(*words)[2]


def test_a_chart_may_lie_in_the_folder_that_the_triage_makes(
    cluster: Cluster, run: Run, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["--topic", DEAD, "--out", str(out), "--chart", str(out / "a.png")]
    assert run(*words, "--checkpoint", str(tmp_path / "done"))[0] == 0
    assert (out / "a.png").is_file()


def test_a_chart_elsewhere_that_cannot_be_written_is_said_before_anything_is_read(
    cluster: Cluster, run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "a.png"
    folder.mkdir()
    code, _, err = run("--topic", DEAD, "--chart", folder.as_uri())
    assert (code, cluster.asked) == (2, [])
    assert "is a folder" in err
    there = tmp_path / "there.png"
    there.write_bytes(b"an older one")
    assert run("--topic", DEAD, "--chart", there.as_uri())[0] == 0
    assert there.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("library", ["pyspark", "matplotlib"])
def test_a_missing_extra_is_one_sentence(library: str) -> None:
    code = (
        f"import sys; sys.modules[{library!r}] = None; from pulsar_encore import cli;"
        f"sys.exit(cli.main(['spark', 'triage', '--topic', 'a', '--chart', 'a.png']))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        f'pulsar-encore: this command needs {library}: pip install "pulsar-encore[cli,triage]"\n'
    )


def test_help_needs_no_spark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; import pulsar_encore; from pulsar_encore import"
        " cli; sys.exit(cli.main(['--help']) + cli.main(['spark', 'triage', '--help']))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, "--select-fingerprint" in ran.stdout) == (0, True), ran.stderr


# How the source logs in


def options_of(login: Login, url: str = URL, **environment: str) -> dict[str, str]:
    options = source_options(access(url, login, environment), login)
    checked = read_options({**options, "topic": "t"}, streaming=None)  # the source takes them
    assert "s3cret" not in repr(checked)
    return {name.removeprefix("pulsar.client."): value for name, value in options.items()}


def test_secrets_become_options_in_memory(tmp_path: Path) -> None:
    assert options_of(Login()) == {"service.url": URL}
    assert options_of(Login(), PULSAR_TOKEN="s3cret") == {
        "service.url": URL,
        "authPluginClassName": "AuthenticationToken",
        "authParams": "token:s3cret",
    }
    (tmp_path / "pair").write_text("user:s3cret:colon\n")
    assert options_of(Login(basic_file=str(tmp_path / "pair"))) == {
        "service.url": URL,
        "authPluginClassName": "AuthenticationBasic",
        "authParams": "user:s3cret:colon",
    }


def test_files_of_tls_are_named(tmp_path: Path) -> None:
    both = tmp_path / "a,b:c.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=one".split()
    files = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "certificate")]
    subprocess.run(["openssl", *words, *files], check=True, capture_output=True)
    both.write_text((tmp_path / "certificate").read_text() + (tmp_path / "key").read_text())
    url, pem = "pulsar+ssl://b:6651", str(both)
    login = Login(tls_certificate_file=pem, tls_validate_hostname=False)
    assert options_of(login, url) == {
        "service.url": url,
        "authPluginClassName": "AuthenticationTls",
        "authParams": json.dumps({"tlsCertFile": pem, "tlsKeyFile": pem}),
        "tlsHostnameVerificationEnable": "false",
    }
    login = Login(tls_certificate_file=pem, tls_trust_certs_file=pem)
    assert options_of(login, url, PULSAR_TOKEN="t") == {
        "service.url": url,
        "authPluginClassName": "AuthenticationToken",
        "authParams": "token:t",
        "tlsHostnameVerificationEnable": "true",
        "tlsTrustCertsFilePath": pem,
        "tlsCertificateFilePath": pem,
        "tlsKeyFilePath": pem,
    }


def test_an_error_of_spark_is_what_was_wrong() -> None:
    inner = "pulsar_encore.errors.ConfigurationError: there is no topic t: check"
    spark_says = f"[STREAM_FAILED] Query\nTraceback:\n  File x\n{inner}\n SQLSTATE: 38000"
    assert said_by(ConfigurationError(spark_says)) == "there is no topic t: check"
    spark_says = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to plan: pulsar_encore.errors.ConfigurationError: "
        "there is no topic t: check\n SQLSTATE: 38000"
    )
    assert said_by(ConfigurationError(spark_says)) == "there is no topic t: check"
    of_java = "An error occurred while calling o50.start.\n: java.io.IOException: full\n\tat x.y\n"
    assert said_by(ValueError(of_java)) == "java.io.IOException: full"
    spark_says = f"[STREAM_FAILED] Query\nTraceback:\n  File x\npy4j.Py4JJavaError: {of_java}\n"
    assert said_by(ValueError(spark_says)) == "java.io.IOException: full"
    assert said_by(ValueError("\n[NO_PATH] gone \x1b\nmore")) == "[NO_PATH] gone \\x1b"
    assert said_by(KeyError()) == "KeyError"
