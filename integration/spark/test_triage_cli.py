"""`pulsar-encore spark triage`: its arguments, its output, and errors in one line."""

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
from pulsar_encore.cli.spark import source_options, spark_error_text
from pulsar_encore.errors import ConfigurationError
from pulsar_encore.spark.source_options import read_options
from pulsar_encore.spark.triage import job
from pulsar_encore.spark.triage.output_files import check_file, check_folder

from .triage_kit import DEAD, frame, letter, stream

#: The two cores may be shared with other programs, and the first test starts the session.
pytestmark = pytest.mark.timeout(240)

URL = "pulsar://broker.example:6650"
Run = Callable[..., tuple[int, str, str]]


class Cluster:
    """A replacement for the source and the sink."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.rows: list[dict[str, Any]] = [letter(1), letter(2, fingerprint="bbbbbbbbbbbb")]
        self.reads: list[dict[str, Any]] = []
        self.sent: list[set[bytes]] = []
        self.plans: list[job.TriagePlan] = []
        self.missing: tuple[str, ...] | None = ()

    def read(
        self, spark: SparkSession, topics: Any, options: Mapping[str, str], **given: Any
    ) -> DataFrame:
        self.reads.append({"topics": topics, "options": dict(options), **given})
        if given["streaming"]:
            return stream(spark, str(self.folder), self.rows)
        return frame(spark, self.rows)

    def make_send(self, options: Mapping[str, str], plan: job.TriagePlan) -> job.Send:
        self.plans.append(plan)

        def send(rows: DataFrame, replay_id: str) -> None:
            self.sent.append({bytes(row["value"]) for row in rows.collect()})

        return send


@pytest.fixture
def cluster(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(spark, tmp_path / "source")
    monkeypatch.setattr(job, "read_letters", made.read)
    monkeypatch.setattr(job, "replay_letters", made.make_send)
    monkeypatch.setattr(job, "missing_topics", lambda topics, options: made.missing)
    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda cls: spark))
    return made


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("PULSAR_TOKEN", "PULSAR_URL", "PULSAR_TOKEN_FILE", "PULSAR_BASIC_FILE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(["spark", "triage", *arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return code, captured.out, captured.err

    return run


def test_a_triage_without_output_prints_a_table_and_draws_a_chart(
    cluster: Cluster, run: Run, tmp_path: Path
) -> None:
    chart = tmp_path / "letters.png"
    arguments = [
        "--topic",
        "orders",
        "--subscription",
        "billing",
        "--url",
        URL,
        "--chart",
        str(chart),
    ]
    code, out, _ = run(*arguments, "--option", "pollTimeoutMs=5000", "--admin-url", "http://b:8080")
    assert code == 0
    assert out.startswith("2 letters on orders-billing-DLQ\n")
    assert out.endswith(f"nothing was sent or stored\ndrawn in {chart}\n")
    assert chart.read_bytes()[:4] == b"\x89PNG"
    [reads] = cluster.reads
    assert (reads["topics"], reads["streaming"]) == ((DEAD,), False)
    assert reads["options"] == {
        "service.url": URL,
        "admin.url": "http://b:8080",
        "pollTimeoutMs": "5000",
    }


def test_json_output_is_a_single_object(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    code, out, err = run("--topic", DEAD, "--json", "--chart", str(tmp_path / "a.png"))
    found = json.loads(out)
    assert (code, found["letters"], len(found["groups"]), err) == (0, 2, 2, "")


def test_without_letters_the_exit_code_is_3(cluster: Cluster, run: Run) -> None:
    cluster.rows = []
    code, out, err = run("--topic", DEAD, "--json")
    assert (code, json.loads(out)["letters"]) == (3, 0)
    assert err == "pulsar-encore: there are no letters: the topics exist and are empty\n"
    cluster.missing = (DEAD,)
    code, out, err = run("--topic", DEAD)
    assert (code, "there is no topic orders-billing-DLQ" in out) == (3, True)
    assert "no letters: there is no topic orders-billing-DLQ; check the name" in err
    cluster.missing = None  # the broker cannot be reached
    assert "check the names of the topics" in run("--topic", DEAD)[2]


def test_chosen_groups_are_replayed(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    kept = ["--out", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "done")]
    chosen = ["--select-fingerprint", "bbbbbbbbbbbb"]
    assert run("--topic", DEAD, *kept, *chosen, "--dry-run")[0] == 0
    assert (cluster.sent, (tmp_path / "out").exists()) == ([], False)
    code, out, _ = run(
        "--topic", DEAD, *kept, *chosen, "--replay", "--cursor", "mine", "--no-text-keys"
    )
    assert (code, cluster.sent) == (0, [{b"2"}])
    assert "1 were sent home" in out
    assert [each["cursor"] for each in cluster.reads] == ["encore-triage", "mine"]
    assert [each.text_keys for each in cluster.plans] == [None, False]


def test_with_refused_letters_the_exit_code_is_1(cluster: Cluster, run: Run) -> None:
    cluster.rows = [letter(1, realTopic="persistent://public/default/payroll")]
    code, out, _ = run("--topic", DEAD, "--dry-run", "--all")
    assert code == 1
    assert "1 cannot be sent:" in out
    assert run("--topic", DEAD, "--dry-run", "--real-topic", "payroll")[0] == 0


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_triage_reports_its_progress(
    cluster: Cluster,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    exit_code: int,
) -> None:
    """The interrupt comes while the second batch is being sent. The next run sends its letters."""
    stream(cluster.spark, str(cluster.folder), [letter(5)])  # this adds a batch
    send = cluster.make_send({}, job.TriagePlan())
    interrupted = []

    def begin(rows: DataFrame, replay_id: str) -> None:
        if cluster.sent and not interrupted:
            interrupted.append(os.kill(os.getpid(), number))
            for _ in range(10_000):
                rows.count()  # until Spark cancels its jobs
        send(rows, replay_id)

    monkeypatch.setattr(job, "replay_letters", lambda options, plan: begin)
    arguments = ["--topic", DEAD, "--out", str(tmp_path / "out"), "--replay", "--all", "--json"]
    arguments += ["--checkpoint", str(tmp_path / "done"), "--no-text-keys"]
    code, out, err = run(*arguments)
    assert (code, err.count("\n")) == (exit_code, 1)
    assert err.startswith("pulsar-encore: interrupted: ")
    assert "in 1 batch" in err
    assert "with the same checkpoint" in err
    assert json.loads(out)["replayed"] == len(cluster.sent[0])
    cluster.rows = []
    assert run(*arguments)[0] == 0
    assert [each for sent in cluster.sent for each in sorted(sent)].count(b"5") == 1
    assert set().union(*cluster.sent) == {b"1", b"2", b"5"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
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
def test_invalid_arguments_are_refused_before_spark_starts(
    arguments: list[str], expected: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(master: str | None) -> None:
        raise AssertionError("a session was started")

    monkeypatch.setattr("pulsar_encore.cli.spark._session", started)
    # Hide the active session of an earlier test.
    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda cls: None))
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1
    assert "s3cret" not in err


def test_checking_a_path_changes_no_file(tmp_path: Path) -> None:
    (tmp_path / "old.png").write_bytes(b"old")
    (tmp_path / "link.png").symlink_to(tmp_path / "target.png")
    for name in ("old.png", "new.png", "link.png"):
        check_file(str(tmp_path / name), "--chart")
    check_folder(str(tmp_path / "a" / "b"), "--out")
    for remote in ("s3a://bucket/a", "hdfs:/a"):
        check_folder(remote, "--out")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.png", "old.png"]
    assert (tmp_path / "old.png").read_bytes() == b"old"


def test_a_path_without_a_scheme_may_belong_to_a_hadoop_file_system(
    cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--topic", DEAD, "--replay", "--all", "--out", "/dev/null/a", "--no-text-keys"]
    arguments += ["--checkpoint", "/dev/null/b"]
    code, _, err = run(*arguments)
    assert (code, "is no folder" in err) == (2, True)
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert "is no folder" not in run(*arguments)[2]


def test_a_chart_can_be_written_into_the_output_folder(
    cluster: Cluster, run: Run, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = ["--topic", DEAD, "--out", str(out), "--chart", str(out / "a.png")]
    assert run(*arguments, "--checkpoint", str(tmp_path / "done"))[0] == 0
    assert (out / "a.png").is_file()


def test_an_unwritable_chart_url_is_refused_before_reading(
    cluster: Cluster, run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "a.png"
    folder.mkdir()
    code, _, err = run("--topic", DEAD, "--chart", folder.as_uri())
    assert (code, cluster.reads) == (2, [])
    assert "is a folder" in err
    there = tmp_path / "there.png"
    there.write_bytes(b"an older one")
    assert run("--topic", DEAD, "--chart", there.as_uri())[0] == 0
    assert there.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("library", ["pyspark", "matplotlib"])
def test_a_missing_extra_is_reported_in_one_line(library: str) -> None:
    code = (
        f"import sys; sys.modules[{library!r}] = None; from pulsar_encore import cli;"
        f"sys.exit(cli.main(['spark', 'triage', '--topic', 'a', '--chart', 'a.png']))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        f'pulsar-encore: this command needs {library}: pip install "pulsar-encore[cli,triage]"\n'
    )


def test_help_works_without_pyspark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; import pulsar_encore; from pulsar_encore import"
        " cli; sys.exit(cli.main(['--help']) + cli.main(['spark', 'triage', '--help']))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, "--select-fingerprint" in result.stdout) == (0, True), result.stderr


# Authentication of the source


def options_of(login: Login, url: str = URL, **environment: str) -> dict[str, str]:
    options = source_options(access(url, login, environment), login)
    # the source accepts the options
    checked = read_options({**options, "topic": "t"}, streaming=None)
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


def test_tls_files_become_options(tmp_path: Path) -> None:
    both = tmp_path / "a,b:c.pem"
    arguments = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=one".split()
    files = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "certificate")]
    subprocess.run(["openssl", *arguments, *files], check=True, capture_output=True)
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


def test_the_cause_is_extracted_from_a_spark_error() -> None:
    inner = "pulsar_encore.errors.ConfigurationError: there is no topic t: check"
    spark_says = f"[STREAM_FAILED] Query\nTraceback:\n  File x\n{inner}\n SQLSTATE: 38000"
    assert spark_error_text(ConfigurationError(spark_says)) == "there is no topic t: check"
    spark_says = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to plan: pulsar_encore.errors.ConfigurationError: "
        "there is no topic t: check\n SQLSTATE: 38000"
    )
    assert spark_error_text(ConfigurationError(spark_says)) == "there is no topic t: check"
    java_error = (
        "An error occurred while calling o50.start.\n: java.io.IOException: full\n\tat x.y\n"
    )
    assert spark_error_text(ValueError(java_error)) == "java.io.IOException: full"
    spark_says = f"[STREAM_FAILED] Query\nTraceback:\n  File x\npy4j.Py4JJavaError: {java_error}\n"
    assert spark_error_text(ValueError(spark_says)) == "java.io.IOException: full"
    assert spark_error_text(ValueError("\n[NO_PATH] gone \x1b\nmore")) == "[NO_PATH] gone \\x1b"
    assert spark_error_text(KeyError()) == "KeyError"
