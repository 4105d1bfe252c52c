"""The option `logger`: the records of a client and of its parts go where it says."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pulsar
import pytest

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread
from pulsar_encore.options.client_logs import ClientLogs
from pulsar_encore.testing import MemoryTransport

LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} WARNING \[\d+\] pulsar_encore\.consumer:\d+ \| held 3"
)


class Records(logging.Logger):
    """A logger that keeps its records, and passes none on."""

    def __init__(self, name: str, level: int = logging.DEBUG) -> None:
        super().__init__(name, level)
        self.kept: list[logging.LogRecord] = []

    def handle(self, record: logging.LogRecord) -> None:
        self.kept.append(record)

    def texts(self) -> list[str]:
        return [each.getMessage() for each in self.kept]

    def has(self, text: str, level: int) -> bool:
        return any(text in each.getMessage() and each.levelno == level for each in self.kept)


@pytest.fixture
def package() -> Iterator[Records]:
    """Return the records that reach the loggers of this package."""
    kept = Records("kept")
    thread = threading.get_ident()

    def emit(record: logging.LogRecord) -> None:
        # A client of another test may still reconnect, on an event loop in another thread.
        if record.thread == thread or record.name != "pulsar_encore.connection":
            kept.handle(record)

    handler = logging.Handler()
    handler.emit = emit  # type: ignore[method-assign]
    logger = logging.getLogger("pulsar_encore")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield kept
    logger.removeHandler(handler)
    logger.setLevel(level)


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


class Service:
    """A consumer with failing callbacks, and a producer, on a client with a logger of its own."""

    def __init__(self, url: str, topic: str, logger: Any, **options: Any) -> None:
        self.client = encore.Client(url, logger=logger, **options)
        self.topic = topic

    async def open(self) -> None:
        self.consumer = await self.client.subscribe(
            self.topic,
            "s",
            encore.ConsumerType.Shared,
            message_listener=self.fail,
            event_listener=self.fail_at_event,
        )
        self.producer = await self.client.create_producer(self.topic)

    def fail(self, consumer: Any, message: Any) -> None:
        raise KeyError(f"no order on {self.topic}")

    def fail_at_event(self, event: Any) -> None:
        raise KeyError(f"no event on {self.topic}")


async def test_records_of_each_native_client_go_to_its_own_logger(
    broker: BrokerThread, topic: str, package: Records
) -> None:
    loggers = [Records("first"), Records("second")]
    services = [
        Service(broker.url, f"{topic}-{each.name}", each, transport="native") for each in loggers
    ]
    default = encore.Client(broker.url, transport="native")
    for service in services:
        await service.open()
        await service.producer.send(b"one")
    async with default.create_producer(f"{topic}-default") as plain:
        await until(lambda: all(each.has("message_listener failed", 40) for each in loggers))
        broker.drop_connections()
        await until(lambda: all(each.has("attached again", 20) for each in loggers))
        await until(lambda: package.has("attached again", 20))
        await plain.send(b"one")
    for service in services:
        await service.client.close()
    await default.close()
    for own, other in (loggers, reversed(loggers)):
        assert own.has("was lost", logging.WARNING), "records of connections"
        assert own.has("the event_listener failed", logging.ERROR), "records of consumers"
        assert not any(other.name in text for text in own.texts()), own.texts()
        assert not any(f"{topic}-{own.name}" in text for text in package.texts())
        failed = next(each for each in own.kept if "message_listener failed" in each.getMessage())
        assert failed.exc_info is not None and "no order" in str(failed.exc_info[1])
    assert package.has("was lost", logging.WARNING), "a client without logger="


async def test_the_level_of_the_logger_decides_which_records_of_a_native_client_it_gets(
    broker: BrokerThread, topic: str
) -> None:
    logger = Records("errors", logging.ERROR)
    service = Service(broker.url, topic, logger, transport="native")
    async with service.client:
        await service.open()
        broker.drop_connections()
        await until(lambda: logger.has("the event_listener failed", logging.ERROR))
    assert {each.levelno for each in logger.kept} == {logging.ERROR}


async def test_a_producer_of_a_native_client_logs_failed_sends_to_the_logger(
    broker: BrokerThread, topic: str, package: Records
) -> None:
    logger = Records("own")
    async with encore.Client(broker.url, transport="native", logger=logger) as client:
        producer = await client.create_producer(topic)
        broker.terminate(topic)
        producer.send_async(b"one", None)
        await until(lambda: logger.has(f"send_async to persistent://public/default/{topic}", 30))
    assert package.kept == []


async def test_a_reader_of_a_native_client_logs_to_the_logger(
    broker: BrokerThread, topic: str, package: Records
) -> None:
    def fail(event: object) -> None:
        raise KeyError("no event")

    logger = Records("own")
    async with encore.Client(broker.url, transport="native", logger=logger) as client:
        await client.create_reader(topic, encore.MessageId.earliest, event_listener=fail)
        broker.drop_connections()
        await until(lambda: logger.has("the event_listener failed", logging.ERROR))
    assert package.kept == []


async def test_a_consumer_of_a_stock_client_logs_to_the_logger_too(
    broker: BrokerThread, topic: str, package: Records
) -> None:
    logger = Records("own")
    service = Service(broker.url, topic, logger, transport="stock")
    async with service.client:
        await service.open()
        await service.producer.send(b"one")
        await until(lambda: logger.has("message_listener failed", logging.ERROR))
    assert not package.has("message_listener failed", logging.ERROR)


async def test_a_consumer_of_a_memory_transport_logs_to_the_logger(package: Records) -> None:
    logger, transport = Records("own"), MemoryTransport()
    service = Service("memory://", "t", logger, transport=transport)
    async with service.client:
        await service.open()
        transport.put("t", b"one")
        await until(lambda: logger.has("message_listener failed", logging.ERROR))
    assert package.kept == []


async def test_a_client_without_a_logger_logs_to_the_loggers_of_the_package(
    broker: BrokerThread, topic: str, package: Records
) -> None:
    service = Service(broker.url, topic, None, transport="native")
    async with service.client:
        await service.open()
        await service.producer.send(b"one")
        await until(lambda: package.has("message_listener failed", logging.ERROR))
        broker.drop_connections()
        await until(lambda: package.has("was lost", logging.WARNING))
    names = {each.name for each in package.kept}
    assert {"pulsar_encore.connection", "pulsar_encore.consumer.delivery.listener"} <= names


@pytest.mark.parametrize("module", [encore, pulsar], ids=["ours", "of pulsar-client"])
@pytest.mark.parametrize(
    ("level", "expected"),
    [("Debug", [10, 20, 30, 40]), ("Info", [20, 30, 40]), ("Warn", [30, 40]), ("Error", [40])],
)
def test_a_file_logger_writes_records_from_its_level_on(
    module: Any, level: str, expected: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "client.log"
    logs = ClientLogs(module.FileLogger(getattr(module.LoggerLevel, level), str(path)))
    logger = logs.named("pulsar_encore.consumer")
    for number in (10, 20, 30, 40):
        logger.log(number, "record %d", number)
    logs.close()
    text = path.read_text()
    assert [int(each) for each in re.findall(r"record (\d+)", text)] == expected


@pytest.mark.parametrize("module", [encore, pulsar], ids=["ours", "of pulsar-client"])
def test_a_console_logger_writes_to_the_standard_output_of_the_moment(
    module: Any, capsys: pytest.CaptureFixture[str], package: Records
) -> None:
    logs = ClientLogs(module.ConsoleLogger(module.LoggerLevel.Warn))
    logs.named("pulsar_encore.consumer").info("not this")
    logs.named("pulsar_encore.consumer").warning("held %d", 3)
    logs.close()
    out, err = capsys.readouterr()
    assert LINE.fullmatch(out.rstrip("\n")), out
    assert err == ""
    assert package.kept == [], "and not to the loggers of the package"


async def test_a_file_logger_of_a_client_is_closed_with_it(
    broker: BrokerThread, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "client.log"
    logger = encore.FileLogger(encore.LoggerLevel.Info, str(path))
    service = Service(broker.url, topic, logger, transport="native")
    async with service.client:
        await service.open()
        broker.drop_connections()
        await until(lambda: "attached again" in path.read_text())
    assert str(path) not in {each.path for each in psutil.Process().open_files()}
    assert "pulsar_encore.connection" in path.read_text()


def test_the_file_of_a_client_that_cannot_be_made_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "client.log"
    logger = encore.FileLogger(encore.LoggerLevel.Info, str(path))
    # The traceback keeps the half-made client alive.
    with pytest.raises(encore.ConfigurationError) as _refused:
        encore.Client("pulsar://127.0.0.1:1", logger=logger, transport="bogus")
    assert path.exists()
    assert str(path) not in {each.path for each in psutil.Process().open_files()}


def test_a_file_that_cannot_be_opened_is_a_configuration_error(tmp_path: Path) -> None:
    logger = encore.FileLogger(encore.LoggerLevel.Info, str(tmp_path / "missing" / "client.log"))
    with pytest.raises(encore.ConfigurationError, match=r"FileLogger: cannot open .*client\.log"):
        encore.Client("pulsar://127.0.0.1:1", logger=logger)


def test_a_file_that_vanished_does_not_fail_the_caller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    logs = ClientLogs(encore.FileLogger(encore.LoggerLevel.Info, str(folder / "client.log")))
    logs.close()
    (folder / "client.log").unlink()
    folder.rmdir()
    logs.named("pulsar_encore.consumer").warning("after the close")
    assert "Logging error" in capsys.readouterr().err


async def test_a_worker_logs_to_the_logger_of_its_client(
    broker: BrokerThread, topic: str, package: Records
) -> None:
    async def reject(value: bytes) -> None:
        raise encore.Reject("no order")

    logger = Records("own")
    async with encore.Client(broker.url, transport="native", logger=logger) as client:
        async with encore.Worker(
            client, topic, "s", reject, initial_position=encore.InitialPosition.Earliest
        ):
            async with client.create_producer(topic) as producer:
                for _ in range(20):
                    await producer.send(b"one")
            await until(lambda: logger.has("dead letter", logging.WARNING))
            await until(lambda: logger.has("worker", logging.ERROR))  # the reject limit
    assert not any(each.name.startswith("pulsar_encore.consumer") for each in package.kept)
    assert package.kept == []
