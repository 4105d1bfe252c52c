"""Behaviour that only Spark itself can cause: killed workers, interpreters, and names of
sources.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pulsar_encore.spark import register
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

from .numbered_topics import body, duplicates_in, publish, values, with_options
from .spark_kit import ROOT
from .test_source import wait_until

MESSAGES = 60_000


def workers() -> list[psutil.Process]:
    """Return the Python processes that run tasks, below the daemon that forks them."""
    found = []
    for each in psutil.Process().children(recursive=True):
        try:
            parent = each.parent()
            if parent is not None and "pyspark.daemon" in " ".join(parent.cmdline()):
                found.append(each)
        except psutil.Error:
            continue
    return found


def failed_tasks(spark: SparkSession, group: str) -> int:
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(each) for each in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(each) for job in jobs if job for each in job.stageIds]
    return sum(stage.numFailedTasks for stage in stages if stage)


def test_killed_workers_are_replaced_and_each_message_is_read_once(
    spark: SparkSession, pulsar: Server, admin: Admin, topic: str, folder: Path
) -> None:
    publish(pulsar, topic, range(MESSAGES), batch=100)
    admin.create_subscription(topic, "keep")
    frame = with_options(
        spark.read,
        pulsar,
        topic,
        minPartitions=2,
        maxRecordsPerBatch=50,
        pulsar__reader__receiverQueueSize=50,
    ).load()
    errors: list[BaseException] = []

    def write() -> None:
        try:
            spark.sparkContext.setJobGroup(topic, "a batch")
            frame.write.parquet(str(folder / "rows"))
        except BaseException as error:
            errors.append(error)

    writing = threading.Thread(target=write)
    writing.start()

    def reads() -> bool:
        names = admin.stats(topic)["subscriptions"]
        return any(name != "keep" and "-probe-" not in name for name in names)

    wait_until(reads, "a task that reads")
    assert writing.is_alive()
    killed = workers()
    for each in killed:
        each.kill()
    writing.join(120)
    assert not writing.is_alive()
    assert errors == []
    assert killed, "somebody read"
    assert failed_tasks(spark, topic) > 0, "and its task was done again"
    found = values(spark.read.parquet(str(folder / "rows")))
    assert duplicates_in(found) == {}
    assert sorted(found) == [body(each) for each in range(MESSAGES)]


_JOB = """
from pyspark.sql import SparkSession
from pulsar_encore.spark import register
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
frame = spark.read.format("pulsar").option("service.url", {url!r}).option("topic", {topic!r}).load()
print("rows", frame.count())
"""


def test_workers_use_the_interpreter_of_the_driver(
    pulsar: Server, topic: str, folder: Path
) -> None:
    """As with ``.venv/bin/python job.py``, where the `python3` on PATH has no packages."""
    publish(pulsar, topic, range(5))
    python = folder / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    environment = {name: each for name, each in os.environ.items() if "PYSPARK" not in name}
    environment["PATH"] = os.pathsep.join((str(folder), os.environ["PATH"]))
    paths = (str(ROOT / "sdk"), os.environ.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    done = subprocess.run(
        [sys.executable, "-c", _JOB.format(url=pulsar.service_url, topic=topic)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "rows 5" in done.stdout, done.stderr[-2000:]


def test_the_source_can_be_registered_under_another_name(
    spark: SparkSession, pulsar: Server, topic: str
) -> None:
    """Spark refuses a name that is on the class path. The source accepts any other name."""
    publish(pulsar, topic, range(5))
    with pytest.raises(PySparkException, match="already exists"):
        register(spark, "parquet")  # a name of the JVM, as "pulsar" is with a connector's jar
    register(spark, "pulsar-encore")
    frame = (
        spark.read.format("pulsar-encore")
        .option("service.url", pulsar.service_url)
        .option("topic", topic)
        .load()
    )
    assert values(frame) == [body(each) for each in range(5)]
