"""A stream into Parquet writes every message exactly once, even if it is killed at any moment."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

from .numbered_topics import KILLS, body, duplicates_in, publish, values
from .spark_kit import worker_environment

MESSAGES = 20_000
ROOT = Path(__file__).resolve().parents[2]


def start_query(folder: Path, options: dict[str, str]) -> subprocess.Popen[str]:
    """Start the program, with its processes in a group of their own.

    If Spark was killed while it wrote the offsets of its first batch, a temporary file is left, and
    Spark asks to delete the checkpoint (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY).
    """
    worker_environment()
    if not (folder / "checkpoint" / "offsets" / "0").exists():
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    with (folder / "log").open("a", encoding="utf-8") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "integration.spark.killed_query", folder, json.dumps(options)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )


def process_tree(process: subprocess.Popen[str]) -> list[psutil.Process]:
    try:
        first = psutil.Process(process.pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return Spark's Python processes below the driver's JVM."""
    found = []
    for each in process_tree(process)[1:]:
        try:
            if "pyspark" in " ".join(each.cmdline()) and "java" not in each.name():
                found.append(each)
        except psutil.Error:
            continue
    return found


def kill_all(process: subprocess.Popen[str]) -> None:
    for each in reversed(process_tree(process)):
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait(30)
    if process.stdout is not None:
        process.stdout.close()


@pytest.mark.timeout(900)
def test_a_stream_survives_kills_of_driver_and_workers(
    spark: SparkSession, pulsar: Server, admin: Admin, topic: str, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    publish(pulsar, topic, range(MESSAGES), batch=50)
    # Without it the broker deletes the topic if the first queries are killed before they subscribe.
    admin.create_subscription(topic, "keep")
    options = {
        "service.url": pulsar.service_url,
        "admin.url": pulsar.admin_url,
        "topic": topic,
        "startingOffsets": "earliest",
        "subscription": "s",
        "maxEntriesPerTrigger": "40",
        "minPartitions": "2",
    }
    killed = {"driver": 0, "worker": 0}
    while sum(killed.values()) < KILLS:
        process = start_query(tmp_path, options)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n", (tmp_path / "log").read_text()
            time.sleep(rng.uniform(0.5, 5))
            if process.poll() is None and killed["worker"] < KILLS // 2 and workers(process):
                rng.choice(workers(process)).kill()
                killed["worker"] += 1
                time.sleep(rng.uniform(0.2, 2))
            if process.poll() is None:
                killed["driver"] += 1
        finally:
            kill_all(process)
    process = start_query(tmp_path, options)
    try:
        output, _ = process.communicate(timeout=240)
    finally:
        kill_all(process)
    assert output.endswith("done\n"), (tmp_path / "log").read_text()[-5000:]
    found = values(spark.read.parquet(str(tmp_path / "rows")))
    assert duplicates_in(found) == {}
    assert sorted(found) == [body(each) for each in range(MESSAGES)]
    assert killed["driver"] >= 1
    assert killed["worker"] >= 1
