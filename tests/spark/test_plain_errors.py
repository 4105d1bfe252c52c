"""Errors of a query are reported soon, and as one sentence."""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource
from pyspark.util import handle_worker_exception

from pulsar_encore.errors import ConfigurationError, TransportError
from pulsar_encore.exceptions import ConnectError
from pulsar_encore.spark import plain_errors as module
from pulsar_encore.spark.driver import cluster
from pulsar_encore.spark.driver.cluster import Cluster
from pulsar_encore.spark.plain_errors import plain_errors
from pulsar_encore.spark.source_options import read_options
from pulsar_encore.testing import run

TOPIC = "persistent://public/default/orders"
T = 5.0  # operation timeout, in s


def asked(took_s: float, retries: int = 3) -> tuple[Cluster, Callable[[], Any], list[float]]:
    """A cluster without brokers: an attempt that fails after a while, and the times of all
    attempts.
    """
    options = read_options(
        {
            "service.url": "pulsar://nowhere:6650",
            "topic": TOPIC,
            "pulsar.client.operationtimeoutms": str(int(T * 1000)),
            "fetchoffset.numretries": str(retries),
        },
        streaming=True,
    )
    with patch.object(cluster, "transport_of", lambda client: SimpleNamespace()):
        made = Cluster(None, options)  # type: ignore[arg-type]
    times: list[float] = []

    async def attempt() -> None:
        times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(took_s)
        raise ConnectError("no connection")

    return made, attempt, times


@pytest.mark.parametrize(("took_s", "attempts"), [(T, 1), (T - 2, 2), (0.5, 4)])
def test_brokers_that_never_answered_are_reported_within_the_operation_timeout(
    took_s: float, attempts: int
) -> None:
    async def scenario() -> None:
        made, attempt, times = asked(took_s)
        with pytest.raises(TransportError):
            await made.with_retries(attempt, "plan")
        assert len(times) == attempts
        assert times[-1] - times[0] < T

    run(scenario())


def test_brokers_that_answered_before_are_retried_as_often_as_the_options_allow() -> None:
    async def scenario() -> None:
        made, attempt, times = asked(T)

        async def answer() -> int:
            return 7

        assert await made.with_retries(answer, "plan") == 7
        with pytest.raises(TransportError):
            await made.with_retries(attempt, "plan")
        assert len(times) == 4

    run(scenario())


def reported(raised: Callable[[], None]) -> str:
    """Return the text that PySpark sends to the JVM for an exception."""
    out = io.BytesIO()
    try:
        raised()
    except Exception as error:
        handle_worker_exception(error, out)
    return out.getvalue()[8:].decode()  # the text follows two numbers


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # monkeypatch removes the variable at the end
    monkeypatch.setattr(module, "_in_worker", lambda: True)


@plain_errors()
def fails(error: Exception) -> None:
    try:
        raise OSError("refused")
    except OSError as cause:
        raise error from cause


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("error", [ConfigurationError("there is no topic t"), ConnectError("no")])
def test_an_error_of_this_package_is_one_line(error: Exception) -> None:
    report = reported(lambda: fails(error))
    assert report == f"{type(error).__module__}.{type(error).__name__}: {error}\n"


@pytest.mark.usefixtures("worker")
def test_any_other_exception_keeps_its_traceback() -> None:
    report = reported(lambda: fails(KeyError("x")))
    assert report.count("Traceback") == 2
    assert "OSError: refused" in report


def test_nothing_changes_outside_of_a_worker() -> None:
    report = reported(lambda: fails(ConfigurationError("there is no topic t")))
    assert report.count("Traceback") == 2
    assert not os.environ.get("SPARK_HIDE_TRACEBACK")


def test_every_method_that_pyspark_calls_shortens_errors() -> None:
    from pulsar_encore.spark.data_source import PulsarDataSource
    from pulsar_encore.spark.driver.batch import PulsarBatchReader
    from pulsar_encore.spark.driver.stream import PulsarStreamReader
    from pulsar_encore.spark.sink.data_writers import _BatchWriter, _StreamWriter

    quiet = {"name", "stop", "commit", "abort", "pushFilters", "getDefaultReadLimit", "read"}
    for kind in (
        PulsarDataSource,
        PulsarBatchReader,
        PulsarStreamReader,
        _BatchWriter,
        _StreamWriter,
    ):
        assert issubclass(kind, DataSource) == (kind is PulsarDataSource)
        for name, method in vars(kind).items():
            if not name.startswith("_") and callable(method) and name not in quiet:
                assert hasattr(method, "__wrapped__"), (kind, name)


def test_a_worker_is_recognised_by_its_main_module(tmp_path: Path) -> None:
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").write_text("")
    asks = "from pulsar_encore.spark.plain_errors import _in_worker; print(_in_worker())"
    code = f"import sys; sys.path.pop(0); del sys.modules['pyspark']; {asks}"
    (package / "daemon.py").write_text(code)

    def says(folder: Path, *args: str) -> str:
        return subprocess.run(
            [sys.executable, *args], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert says(tmp_path, "-m", "pyspark.daemon") == "True"
    assert says(package, "-c", asks) == "False"


def test_a_class_with_decorated_methods_can_be_pickled_by_value() -> None:
    class Decorated:
        @plain_errors()
        def read(self) -> int:
            return 1

    assert pickle.loads(cloudpickle.dumps(Decorated))().read() == 1
