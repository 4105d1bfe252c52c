"""The source with PySpark 4.0 and 4.1, which do not pass the start of a batch."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from reader_kit import TOPIC, Stream, numbered, publish

from pulsar_encore.devbroker import BrokerSettings, BrokerThread
from pulsar_encore.errors import ConfigurationError
from pulsar_encore.spark import DataLossError, compat, interpreters
from pulsar_encore.spark.interpreters import check_python, use_this_python
from pulsar_encore.spark.offsets import offset_json, read_offset

EARLIEST: dict[str, Any] = {"startingOffsets": "earliest", "latestOffsetPollMs": 0}


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(BrokerSettings(keep_acked=True)) as started:
        yield started


class OldReader:
    """A reader without the methods that PySpark before 4.2 does not call."""

    def __init__(self, reader: Any) -> None:
        self.whole = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def __reduce__(self) -> Any:
        return OldReader, (self.whole,)

    def latestOffset(self, start: Any, limit: Any) -> Any:
        return self.whole.latestOffset()


class OldStream(Stream):
    """A query of PySpark before 4.2."""

    def __init__(self, url: str, checkpoint: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(url, checkpoint, **options)
        self.reader: Any = OldReader(self.reader)


def test_a_query_continues_at_its_offset(broker: BrokerThread) -> None:
    publish(broker.url, *numbered(100))
    query = OldStream(broker.url, subscription="s", **EARLIEST).run()
    query.reader.stop()
    publish(broker.url, *numbered(70, 100))
    again = OldStream(broker.url, query.offset, subscription="s", **EARLIEST)
    again.step()
    publish(broker.url, *numbered(70, 170))
    again.run()
    again.reader.stop()
    assert again.sizes == [70, 70]
    assert query.values() + again.values() == numbered(240)


def test_limits_need_pyspark_4_2(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(broker.url, *numbered(10))
    monkeypatch.setattr(compat, "HAS_LIMITS", False)
    for limit in ("maxEntriesPerTrigger", "minOffsetsPerTrigger"):
        with pytest.raises(ConfigurationError, match=r"need PySpark 4\.2 or later, this is 4\."):
            Stream(broker.url, **EARLIEST, **{limit: 3})
    assert Stream(broker.url, **EARLIEST).run().values() == numbered(10)


def test_available_now_asks_for_the_end_before_the_beginning(
    broker: BrokerThread,
) -> None:
    """The first answer must not create the subscription, because its position would be wrong."""
    sent = publish(broker.url, *numbered(10))
    query = OldStream(broker.url, offset_json({}), startingOffsets="latest", subscription="s")
    end = query.reader.whole.latestOffset()
    assert query.reader.initialOffset() == end
    assert read_offset(end)[TOPIC].entry_key == (sent[-1].ledger_id(), sent[-1].entry_id())
    query.reader.stop()


def test_a_topic_recreated_between_two_runs_is_data_loss(broker: BrokerThread) -> None:
    publish(broker.url, *numbered(10))
    query = OldStream(broker.url, startingOffsets="earliest").run()
    query.reader.stop()
    [(topic, end)] = read_offset(query.offset).items()
    beyond = offset_json({topic: end._replace(entry=end.entry + 1000)})
    again = OldStream(broker.url, beyond, startingOffsets="earliest")
    with pytest.raises(DataLossError, match="deleted and created again"):
        again.step()
    again.reader.stop()


# Interpreters


class Context:
    """The parts of a `SparkContext` that the code uses."""

    pythonExec = "python3"

    def __init__(self, master: str, setting: str | None = None) -> None:
        self.master = master
        self._setting = setting

    def getConf(self) -> Any:
        return SimpleNamespace(get=lambda name: self._setting)


def used(context: Context) -> str:
    use_this_python(SimpleNamespace(_sc=context))  # type: ignore[arg-type]
    return context.pythonExec


def test_workers_of_a_local_session_use_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert used(Context("local[2]")) == sys.executable
    assert used(Context("local", sys.executable)) == sys.executable
    assert used(Context("yarn")) == "python3", "workers on other machines are not ours to choose"
    monkeypatch.setenv("PYSPARK_PYTHON", "/somewhere/python")
    chosen = Context("local[2]")
    chosen.pythonExec = "/somewhere/python"
    with pytest.raises(ConfigurationError, match=r"'/somewhere/python', which does not exist: set"):
        used(chosen)
    use_this_python(SimpleNamespace())  # type: ignore[arg-type]  # of Spark Connect


def test_the_error_names_an_interpreter_without_this_package(tmp_path: Path) -> None:
    program = tmp_path / "python3"
    stderr = "ModuleNotFoundError: No module named 'pulsar_encore'"
    program.write_text(f'#!/bin/sh\necho "{stderr}" >&2\nexit 1\n')
    program.chmod(0o755)
    with pytest.raises(ConfigurationError) as caught:
        check_python(str(program))
    text = str(caught.value)
    assert text.startswith(f"Spark's workers run {program}, which cannot import pulsar_encore")
    assert stderr in text
    assert "PYSPARK_PYTHON to an interpreter" in text and sys.executable in text
    check_python(sys.executable)


def test_the_error_names_an_interpreter_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python3"
    program.write_text("#!/bin/sh\necho 'a warning' >&2\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(interpreters, "_IMPORT_TIMEOUT_S", 0.5)
    with pytest.raises(ConfigurationError, match=r"\(it did not answer within 0\.5 s\): set the"):
        check_python(str(program))


def test_the_error_names_an_interpreter_that_fails_without_output(tmp_path: Path) -> None:
    program = tmp_path / "python3"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"non-zero exit status 3\.\): set the"):
        check_python(str(program))


def test_names_that_resolve_to_this_environment_are_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: started.append(command[0]))
    base = tmp_path / "base"
    base.write_text("")
    base.chmod(0o755)
    for environment in ("one", "other"):
        folder = tmp_path / environment
        folder.mkdir()
        for name in ("python", "python3"):
            (folder / name).symlink_to(base)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "one" / "python"))
    check_python(str(tmp_path / "one" / "python3"))
    assert started == []
    other = str(tmp_path / "other" / "python")
    check_python(other)
    assert started == [other], "it is the same file, with packages of its own"


def test_the_error_names_the_version_of_an_older_pyspark(tmp_path: Path) -> None:
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "3.5.1"')
    done = subprocess.run(
        [sys.executable, "-c", "import pulsar_encore.spark"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "needs PySpark 4.0 or later, this is 3.5.1" in done.stderr


def test_the_tests_for_other_releases_exist() -> None:
    root = Path(__file__).parents[2]
    tests = runpy.run_path(str(root / "integration/spark/versions.py"))["TESTS"]
    assert [each for each in tests if not (root / each).is_file()] == []
