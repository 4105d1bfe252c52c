"""The demonstration's Spark row, in all parts that need no Java."""

from __future__ import annotations

import asyncio
import importlib
import io
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pyarrow
import pyarrow.parquet
import pyspark
import pytest
from rich.console import Console

from pulsar_encore.cli.demo import encore_side, killed_stream
from pulsar_encore.cli.demo import measurement as measuring
from pulsar_encore.cli.demo import run as demo
from pulsar_encore.cli.demo import spark_requirements as spark_here
from pulsar_encore.cli.demo.killed_stream import SCENARIO, stream
from pulsar_encore.cli.demo.measurement import MeasurementError, measure
from pulsar_encore.cli.demo.scenario import Scenario, row_of
from pulsar_encore.cli.demo.spark_side import Result
from pulsar_encore.cli.demo.workload import Figures
from pulsar_encore.cli.login import Login
from pulsar_encore.devbroker import BrokerSettings, run_in_thread

FIGURES: Figures = {
    "count": 1000,
    "committed": 400,
    "rows": 1000,
    "distinct": 1000,
    "least": 0,
    "greatest": 999,
    "first_s": 9.54,
    "per_s": 70_000.4,
}


# Text


def native(**changes: float | None) -> str:
    return row_of(SCENARIO, {"native": {**FIGURES, **changes}}).native


def test_the_row_reports_exactly_once_delivery_with_rate_and_restart() -> None:
    row = row_of(SCENARIO, {"native": FIGURES})
    assert row.native == (
        "each once: 1,000 rows, 1,000 distinct (killed when 400 were in); "
        "first commit 9.5 s after the restart, then 70,000/s"
    )
    assert (row.stock, row.missing) == ("no Spark source in Python", ())
    assert row.encore.startswith("not measured")
    assert native(per_s=None).endswith("9.5 s after the restart")


@pytest.mark.parametrize(
    "changes",
    [{"rows": 1001}, {"distinct": 999}, {"rows": 999, "distinct": 999}, {"greatest": 1000}],
)
def test_duplicates_and_losses_are_reported(changes: dict[str, float]) -> None:
    assert native(**changes).startswith("NOT each once: ")
    assert " of 1,000 (killed" in native(**changes)


def test_a_failure_is_reported() -> None:
    row = row_of(SCENARIO, {"native": MeasurementError("no result in 5 s")})
    assert row.native == "could not be measured: no result in 5 s"
    assert row.missing == ("native",)


# Cases in which the row is left out


def test_a_row_that_cannot_run_is_a_line_below_the_table_and_no_failure() -> None:
    async def measured(_: Any) -> dict[str, Figures]:
        return {"native": FIGURES}

    def row(title: str, what: str | None) -> Scenario:
        return Scenario(
            title=title,
            labels=("native",),
            measure=measured,
            cell=lambda _, column: f"row of {title}" if column == "native" else "",
            missing=lambda: what,
        )

    console = Console(file=io.StringIO(), width=240)
    rows = [row("seen?", None), row("unseen?", "Java 17 [or later]")]
    assert demo.run_demo("pulsar://nowhere", scenarios=rows, console=console) == 0
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "row of seen?" in text
    assert "row of unseen?" not in text
    assert "measuring: unseen?" not in text
    assert "Left out: unseen? It needs Java 17 [or later].\n" in text
    assert "seen? It needs" not in text.replace("unseen? It needs", "")


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the java of JAVA_HOME."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin" / "java"


def script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("says", "missing"),
    [
        ('openjdk version "17.0.15" 2025-04-15', None),
        ('java version "21" 2023-09-19 LTS', None),
        ('openjdk version "25-ea" 2025-09-16', None),
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11"),
        ('java version "1.8.0_402"', "is Java 8"),
        ("no such thing", "does not print its version"),
    ],
)
def test_the_java_version_is_checked_and_reported(
    java: Path, says: str, missing: str | None
) -> None:
    script(java, f"echo '{says}' >&2")
    found = spark_here.missing()
    if missing is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith("Java 17 or later, and ")
        assert found.endswith(f"/bin/java {missing}")


@pytest.mark.parametrize("body", ["exec sleep 60", "exit 1", None])
def test_a_java_that_does_not_work_blocks_nothing(
    java: Path, body: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_here, "ASK_S", 0.05 if body == "exec sleep 60" else 10)
    if body is not None:
        script(java, body)
    found = spark_here.missing()
    assert found is not None
    assert str(java) in found


def test_a_missing_java_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert spark_here.missing() == "Java 17 or later: set JAVA_HOME, or put java on the PATH"
    script(tmp_path / "java", "echo 'openjdk version \"17.0.1\"'")
    assert spark_here.missing() is None


@pytest.mark.parametrize("library", ["pyspark", "pyarrow"])
def test_a_missing_library_is_reported(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    reason = f'{library}, which is not installed: pip install "pulsar-encore[spark]"'
    assert spark_here.missing() == reason


def test_an_old_pyspark_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("pulsar_encore.spark")  # it reads the version once, when imported
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    found = spark_here.missing()
    assert found is not None
    assert found.startswith("PySpark 4.2 or later, and 3.5.1 is installed")


# Counting


def write(folder: Path, name: str, numbers: range) -> None:
    values = [b"%08d" % each + b"x" * 8 for each in numbers]
    pyarrow.parquet.write_table(pyarrow.table({"value": values}), folder / name)


def commit(folder: Path, batch: str, *names: str) -> None:
    lines = [json.dumps({"path": f"file:///somewhere/{name}", "action": "add"}) for name in names]
    (folder / "_spark_metadata").mkdir(exist_ok=True)
    (folder / "_spark_metadata" / batch).write_text("\n".join(["v1", *lines]))


def test_only_committed_files_are_counted(tmp_path: Path) -> None:
    result = Result(tmp_path)
    assert (result.rows(), result.has_uncommitted_files()) == (0, False)
    write(tmp_path, "a.parquet", range(10))
    assert (result.rows(), result.has_uncommitted_files()) == (0, True)
    commit(tmp_path, "0", "a.parquet")
    assert (result.rows(), result.has_uncommitted_files()) == (10, False)
    write(tmp_path, "b.parquet", range(8, 12))
    (tmp_path / "_spark_metadata" / ".1.tmp").write_text("v1\nhalf a li")
    assert (result.rows(), result.has_uncommitted_files()) == (10, True)
    commit(tmp_path, "1", "b.parquet")
    assert result.numbers() == {"rows": 14, "distinct": 12, "least": 0, "greatest": 11}


# Processes and folders


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))


async def test_a_driver_that_does_not_start_is_a_one_line_error(
    no_java: None, tmp_path: Path
) -> None:
    with run_in_thread(BrokerSettings(record=False)) as broker:
        with pytest.raises(MeasurementError, match="Java gateway process exited") as error:
            await measure(
                *("spark", "killed_stream", broker.url, "topic"),
                within_s=50,
                transport="native",
                folder=str(tmp_path),
                count=1000,
                batches=1,
            )
    assert "\n" not in str(error.value)


def test_a_driver_ends_with_the_process_that_started_it(no_java: None, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pulsar_encore.cli.demo.spark_driver"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        arguments = {"folder": str(tmp_path), "options": {}, "all_stored": True}
        driver.stdin.write(f"{json.dumps(arguments)}\n")
        driver.stdin.flush()
        assert "Java gateway" in json.loads(driver.stdout.readline())["error"]
        assert driver.poll() is None, "it waits to be killed"
        driver.stdin.close()
        driver.wait(20)
        assert not [each for each in psutil.process_iter() if _group(each.pid) == driver.pid]


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


@pytest.mark.parametrize("how", ["figures", "failure", "interrupted"])
async def test_the_temporary_folder_is_removed(how: str) -> None:
    folders: list[Path] = []

    async def run(*_: Any, folder: str, **__: Any) -> Figures:
        folders.append(Path(folder))
        (folders[0] / "rows").mkdir()
        (folders[0] / "rows" / "file").touch()
        if how == "failure":
            raise MeasurementError("it crashed")
        if how == "interrupted":
            await asyncio.sleep(60)
        return FIGURES

    work = asyncio.ensure_future(stream(run, count=10, batches=1))
    while not folders:
        await asyncio.sleep(0)
    if how == "interrupted":
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    else:
        outcome = (await work)["native"]
        assert isinstance(outcome, MeasurementError) is (how == "failure")
    assert not folders[0].exists()


def test_login_options_reach_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    monkeypatch.setattr(measuring, "LOGIN", {})
    given: dict[str, str] = {}
    monkeypatch.setattr(measuring, "LOGIN_OPTIONS", given)
    monkeypatch.setattr(encore_side, "two_delays", lambda *_: {"it": 1.0}, raising=True)
    login = {"login": asdict(Login(token_file=str(token)))}
    words = ["encore", "two_delays", "pulsar://localhost:6650", "t", json.dumps(login)]
    assert measuring.main(words) == 0
    assert given["pulsar.client.authParams"] == "token:secret"
    assert json.loads(capsys.readouterr().out) == {"it": 1.0}


def test_the_demonstration_has_a_spark_row() -> None:
    assert killed_stream.SCENARIO in demo.SCENARIOS
    assert killed_stream.COUNT == 1_000_000
    assert SCENARIO.missing is spark_here.missing
