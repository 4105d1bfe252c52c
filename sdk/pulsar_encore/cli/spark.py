"""`pulsar-encore spark`: jobs on PySpark.

PySpark and matplotlib come with the extra `triage` and are imported when a job runs. Secrets become
options of Spark only in memory, never in a command line or a configuration.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from json import dumps as to_json
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import App, Parameter

from ..deadletters import NoLettersError, printable
from ..errors import ConfigurationError
from .exit_codes import INTERRUPTED, TERMINATED, WRONG
from .interruption import InterruptedWork, until_interrupted
from .login import DEFAULT_URL, NOBODY, AdminUrl, ClusterAccess, Login, Url, access
from .moments import moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..spark.triage import Halt, TriagePlan, TriageReport

app: App = App(name="spark", help="Jobs on PySpark: the triage of dead letters.")

CONSOLE: Final = "console"
_CURSOR: Final = "encore-triage"
_LIBRARIES: Final = ("pyspark", "pyarrow", "matplotlib", "fastavro", "httpx2")
_SPARK_MODULES: Final = ("pyspark.", "py4j.")  # modules of exceptions
_CLUSTER_VARIABLES: Final = (
    *("SPARK_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"),
    "PYSPARK_GATEWAY_PORT",  # set by spark-submit
)
# An error of this package, at any place in a line of Spark's text.
_OUR_ERROR: Final = re.compile(r"\bpulsar_encore\.[\w.]+: (.+)")
_MAX_ERROR: Final = 2000

Several = Annotated[list[str] | None, Parameter(negative="")]
Flag = Annotated[bool, Parameter(negative="")]


@app.command
def triage(
    *,
    topic: Several = None,
    subscription: str | None = None,
    url: Url = DEFAULT_URL,
    login: Login = NOBODY,
    admin_url: AdminUrl = None,
    out: str = CONSOLE,
    chart: str | None = None,
    checkpoint: str | None = None,
    cursor: str = _CURSOR,
    hour_of: Literal["last", "first"] = "last",
    replay: Flag = False,
    select_fingerprint: Annotated[
        list[str] | None, Parameter(negative="", allow_leading_hyphen=True)
    ] = None,
    select_class: Several = None,
    real_topic: Several = None,
    since: str | None = None,
    until: str | None = None,
    all: Flag = False,
    dry_run: Flag = False,
    replay_id: str | None = None,
    text_keys: bool | None = None,
    option: Several = None,
    json: Flag = False,
    master: str | None = None,
) -> int:
    """Count, store, chart and replay the letters of dead letter topics.

    Without --checkpoint a run reads all letters. With it a run reads the letters since the last
    run, into a folder of Parquet; --replay then sends selected groups back to the topics where they
    failed. A letter goes only to a topic that the dead letter topic is named after, or that
    --real-topic names. Exit code 3: there are no letters; 1: some cannot be sent.

    Args:
        topic: The dead letter topic; with --subscription, the original topic. May be repeated.
        subscription: The subscription with dead letters on TOPIC-SUBSCRIPTION-DLQ.
        url: The service URL of the cluster.
        admin_url: URL of the cluster's web service, such as http://host:8080.
        out: Folder for the Parquet, a path or a URL of Spark's; "console" stores nothing.
        chart: Draw letters by hour and failure into this PNG; a path, or a URL of Spark's.
        checkpoint: Folder that remembers which letters were read. It must outlive the driver.
        cursor: Subscription that keeps letters until the checkpoint has them; "" for none.
        hour_of: Count a letter in the hour of its last failure or of its first.
        replay: Replay the groups selected below; needs --checkpoint and a folder.
        select_fingerprint: These failures; "-" for letters without evidence. May be repeated.
        select_class: Failures with these exception classes. May be repeated.
        real_topic: Letters that failed on these topics. May be repeated.
        since: Hours from this time on, its own hour included: 2h (30s, 10m, 7d) ago or
            2026-01-31T12:00.
        until: Hours that began before this time.
        all: Every group, if no other selection is given.
        dry_run: Count the letters that --replay would send; send, store and remember nothing.
        replay_id: Written on every message that is sent. [default: generated]
        text_keys: The letters' keys are text (most clients) or bytes (Java's keyBytes); required if
            letters with keys are sent.
        option: An option of the source, as name=value; not for secrets. May be repeated.
        json: Print the report as a JSON object instead of a table.
        master: Spark's master, such as local[2]. [default: that of spark-submit or the
            configuration, else this machine]
    """
    cluster = access(url, login)
    selection: dict[str, Any] = {
        "fingerprints": select_fingerprint or None,
        "error_classes": select_class or None,
        "real_topics": real_topic or None,
        "since": moment(since, "since"),
        "until": moment(until, "until"),
    }
    chosen = any(each is not None for each in selection.values())
    if replay or dry_run:
        if chosen == all:
            raise ConfigurationError(
                "choose groups by --select-fingerprint, --select-class, --real-topic, --since or "
                "--until, or take --all of them; not both"
            )
    elif chosen or all or replay_id:
        raise ConfigurationError(
            "these options select letters to replay: add --replay, or --dry-run to count"
        )
    if selection["since"] is not None and selection["since"] > time.time():
        raise ConfigurationError("since lies in the future: no letter is that new")
    options = {**_parse_options(option or ()), **source_options(cluster, login, admin_url)}
    if chart is not None:
        _check_chart(chart)
    for each in (*(topic or ()), *(real_topic or ())):
        # Pulsar and Python accept blanks in names, but here a blank is more likely two names in
        # one.
        if any(blank.isspace() for blank in each.strip()):
            raise ConfigurationError(
                f"a topic's name has no blanks here, got '{printable(each, 100)}': give each topic "
                "an option of its own"
            )
    try:
        return _triage(
            topic or (),
            options,
            _Outcome(json=json, chart=chart, fail_if_empty=checkpoint is None),
            selection if replay or dry_run else None,
            master,
            subscription=subscription,
            out=None if out == CONSOLE else out,
            checkpoint=checkpoint,
            cursor=cursor or None,
            dry_run=dry_run,
            replay_id=replay_id,
            text_keys=text_keys,
            hour_of=hour_of,
        )
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in _LIBRARIES:
            raise
        sys.stderr.write(
            f"pulsar-encore: this command needs {library}: "
            'pip install "pulsar-encore[cli,triage]"\n'
        )
        return WRONG


class _Outcome:
    def __init__(self, *, json: bool, chart: str | None, fail_if_empty: bool) -> None:
        self.json = json
        self.printed = False
        self.chart = chart
        self._fail_if_empty = fail_if_empty

    def show(self, spark: SparkSession, report: TriageReport) -> int:
        """Draw, print, and return the exit code. Raises NoLettersError if there are none."""
        from ..spark.triage import empty_text

        self.print(report)
        if self.chart is not None:
            from ..spark.triage.chart import chart_png
            from ..spark.triage.output_files import write_file

            names = ", ".join(each.rpartition("/")[2] for each in report.topics)
            write_file(spark, self.chart, chart_png(report.groups, title=names))
            if not self.json:
                sys.stdout.write(f"drawn in {printable(self.chart)}\n")
        if self._fail_if_empty and not report.letters:
            raise NoLettersError(empty_text(report))
        return 1 if report.refused else 0

    def print(self, report: TriageReport) -> None:
        from ..spark.triage import report_json, report_text

        self.printed = True
        sys.stdout.write(report_json(report) if self.json else report_text(report))
        sys.stdout.flush()


def _triage(
    topics: Any,
    options: Mapping[str, str],
    outcome: _Outcome,
    selection: Mapping[str, Any] | None,
    master: str | None,
    **given: Any,
) -> int:
    if outcome.chart is not None:
        importlib.import_module("matplotlib")  # a missing library is reported before anything runs
    from pyspark.sql import SparkSession

    from ..spark.triage import GroupSelection, Halt, check_options, halted_text, plan_of
    from ..spark.triage.output_files import check_file, check_folder

    replay = None if selection is None else GroupSelection(**selection)
    # invalid arguments are reported before Spark starts
    plan = plan_of(topics, replay=replay, **given)
    check_options(plan, options, given["cursor"])
    if outcome.chart is not None and not _folder_will_exist(plan, outcome.chart):
        check_file(outcome.chart, "--chart")
    for name in ("out", "checkpoint"):
        if given[name] is not None and not plan.dry_run and _is_local(given[name], master):
            check_folder(given[name], f"--{name}")
    existing = SparkSession.getActiveSession()
    halt = Halt()
    arguments = {**given, "topics": topics, "options": options, "replay": replay, "halt": halt}
    try:
        return until_interrupted(lambda: _work(existing, master, outcome, arguments), halt.ask)
    except InterruptedWork as interrupted:
        summary = halted_text(halt.report, checkpoint=plan.streaming)
        sys.stderr.write(f"pulsar-encore: interrupted: {summary}\n")
        if outcome.json and halt.report is not None and not outcome.printed:
            outcome.print(halt.report)
        return TERMINATED if interrupted.number == signal.SIGTERM else INTERRUPTED


def _work(
    existing: SparkSession | None, master: str | None, outcome: _Outcome, arguments: Any
) -> int:
    from ..spark.triage import triage
    from ..spark.triage.output_files import check_remote_file

    halt: Halt = arguments["halt"]
    spark = None
    try:
        spark = existing or _session(master)
        if outcome.chart is not None:
            check_remote_file(spark, outcome.chart, "--chart")
        return outcome.show(spark, triage(spark, **arguments))
    except Exception as error:
        if not type(error).__module__.startswith(_SPARK_MODULES) or halt.asked:
            raise
        text = spark_error_text(error)
        if spark is None:
            text = (
                f"Spark did not start: {text} It needs Java 17 or later: install it or set "
                "JAVA_HOME. If Java is there, its own message is above"
            )
        sys.stderr.write(f"pulsar-encore: {text}\n")
        return WRONG
    finally:
        if spark is not None and existing is None:  # it was started here
            spark.stop()


def _check_chart(path: str) -> None:
    name = path.rstrip().rpartition("/")[2]
    if not name or name in (".", ".."):
        raise ConfigurationError("--chart must name a file, a path or a URL of Spark's")
    suffix = os.path.splitext(name)[1].lower()
    if suffix not in ("", ".png"):
        raise ConfigurationError(
            f"--chart is drawn as a PNG, and {printable(path, 200)!r} ends with {suffix!r}: name a "
            "file that ends with .png"
        )


def _folder_will_exist(plan: TriagePlan, chart: str) -> bool:
    if plan.out is None or plan.dry_run or "://" in chart:
        return False
    parquet_folder = os.path.realpath(plan.out.removeprefix("file://"))
    folder = os.path.dirname(os.path.realpath(chart))
    return folder == parquet_folder and not os.path.exists(folder)


def _is_local(path: str, master: str | None) -> bool:
    """Return True if Spark certainly takes the path for a folder of this machine.

    With a configuration, a path without a scheme may be one of HDFS.
    """
    if path.startswith("file:"):
        return True
    cluster = master is not None and not master.startswith("local")
    return not (cluster or any(name in os.environ for name in _CLUSTER_VARIABLES))


def source_options(
    cluster: ClusterAccess, login: Login, admin_url: str | None = None
) -> dict[str, str]:
    """Return the options with which the Spark source logs in like the command.

    A token is read once, now. The executors must have TLS files under the same names.
    """
    options = {"service.url": cluster.url}
    if admin_url is not None:
        options["admin.url"] = admin_url
    client = "pulsar.client."
    certificate = login.tls_certificate_file
    key = login.tls_private_key_file or certificate
    if cluster.method == "token":
        options[f"{client}authPluginClassName"] = "AuthenticationToken"
        options[f"{client}authParams"] = f"token:{cluster.secret()}"
    elif cluster.method == "basic":
        options[f"{client}authPluginClassName"] = "AuthenticationBasic"
        options[f"{client}authParams"] = cluster.secret()
    elif cluster.method == "tls":
        pair = {"tlsCertFile": certificate, "tlsKeyFile": key}
        options[f"{client}authPluginClassName"] = "AuthenticationTls"
        options[f"{client}authParams"] = to_json(pair)
    if cluster.tls is not None:
        validate = str(login.tls_validate_hostname).lower()
        options[f"{client}tlsHostnameVerificationEnable"] = validate
        if login.tls_trust_certs_file:
            options[f"{client}tlsTrustCertsFilePath"] = login.tls_trust_certs_file
        if certificate and cluster.method != "tls":
            options[f"{client}tlsCertificateFilePath"] = certificate
            options[f"{client}tlsKeyFilePath"] = key
    return options


def _parse_options(pairs: Any) -> dict[str, str]:
    given: dict[str, str] = {}
    for each in pairs:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise ConfigurationError(f"--option must be name=value, got {printable(each, 50)!r}")
        if name.lower().endswith(("authparams", "authpluginclassname")):
            raise ConfigurationError(
                f"--option {printable(name, 50)}: no option takes a secret; name a file with "
                "--token-file or --basic-file, or set PULSAR_TOKEN"
            )
        if name.lower() in map(str.lower, given):
            raise ConfigurationError(f"--option {printable(name, 50)} was given twice")
        given[name] = value
    return given


def _session(master: str | None) -> SparkSession:
    from pyspark.sql import SparkSession

    # by spark-submit, which configures the workers itself
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted and (master is None or master.startswith("local")):
        # By default workers on this machine run the python3 of PATH, which may be another one.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    builder = builder.appName("pulsar-encore triage")
    if master is not None:
        builder = builder.master(master)
    if not submitted:
        builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark: SparkSession = builder.getOrCreate()
    if not submitted:  # in a cluster, its own log settings apply
        spark.sparkContext.setLogLevel("OFF")  # errors are reported in one line
    return spark


def spark_error_text(error: Exception) -> str:
    """Return the error's text on one line.

    For an error of this package it is its own text without Spark's around it; for an error of Java
    its class and text, without the call that raised it.
    """
    lines = [each.strip() for each in str(error).splitlines() if each.strip()]
    ours = [found for each in lines if (found := _OUR_ERROR.search(each))]
    java_lines = [each for each in lines if each.startswith(": ")]  # as Py4J writes it
    if ours:
        text = ours[-1][1]
    elif java_lines:
        text = java_lines[-1].removeprefix(": ")
    else:
        text = next(iter(lines), type(error).__name__)
    return printable(text, _MAX_ERROR)
