"""The engine's log in Python's logging: programs as users write them, each in a process of its own.

The engine has one log for a process, so no test of the suite's own process can have it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest

from pulsar_encore.devbroker import BrokerThread, Fault, FaultPlan

# A record of every line, and two ways to provoke some.
BEGINNING = """
import asyncio, json, logging, os, sys, threading, time
import pulsar_encore as encore

URL, NOWHERE = sys.argv[1], "pulsar://127.0.0.1:" + sys.argv[2]
ENGINE = logging.getLogger("pulsar_encore.engine")
records = []

class Keep(logging.Handler):
    def emit(self, record):
        records.append(record)

def texts():
    return [record.getMessage() for record in records]

def say(**found):
    print(json.dumps(found), flush=True)

async def refuse(topic, subscription="audit", **options):
    '''The text of the error of a second exclusive consumer.'''
    async with encore.Client(URL, **options) as client:
        await client.subscribe(topic, subscription)
        try:
            await client.subscribe(topic, subscription)
        except encore.TransportError as error:
            return str(error)
"""


def start(program: str, broker: BrokerThread, port: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BEGINNING + textwrap.dedent(program), broker.url, str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PULSAR_ENCORE_TRANSPORT": "stock"},
    )


class Ended:
    """The output, exit code and duration of a program that has ended."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        began = time.monotonic()
        with process:
            try:
                self.out, self.err = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        self.code = process.returncode
        self.seconds = time.monotonic() - began

    @property
    def printed(self) -> dict[str, Any]:
        """The JSON object that the program printed as its only line; it must have exited with 0."""
        assert self.code == 0, self.err
        (line,) = self.out.splitlines()
        found = json.loads(line)
        assert isinstance(found, dict)
        return found


@pytest.fixture
def run(broker: BrokerThread, unused_port: int) -> Any:
    return lambda program: Ended(start(program, broker, unused_port))


def test_a_program_that_configures_nothing_sees_warnings_on_stderr(run: Any, topic: str) -> None:
    ended = run(f"""
    asyncio.run(refuse({topic!r}))
    print("mine")
    """)
    assert (ended.code, ended.out) == (0, "mine\n")
    first, second = ended.err.splitlines()
    assert "ConsumerBusy (subscription 'audit' is exclusive and taken)" in first
    assert "Failed to create consumer: ConsumerBusy" in second
    assert ended.seconds < 10


def test_the_log_lines_of_an_error_precede_its_traceback(run: Any) -> None:
    ended = run("""
    async def main():
        async with encore.Client(NOWHERE, operation_timeout_seconds=1) as client:
            await client.create_producer("t")
    asyncio.run(main())
    """)
    assert (ended.code, ended.out) == (1, "")
    assert 0 < ended.err.index("Connection refused") < ended.err.index("Traceback")


def test_log_records_of_a_failure_exist_when_its_error_is_raised(run: Any) -> None:
    """As caplog needs it: the assertion comes right after the error."""
    printed = run("""
    logging.getLogger().addHandler(Keep())
    async def main():
        async with encore.Client(NOWHERE, operation_timeout_seconds=1) as client:
            try:
                await client.create_producer("t")
            except encore.TransportError:
                found = [record for record in records if "refused" in record.getMessage()]
                first = found[0]
                say(name=first.name, level=first.levelname, file=first.filename, line=first.lineno,
                    late=time.time() - found[-1].created)
    asyncio.run(main())
    """).printed
    assert (printed["name"], printed["level"]) == ("pulsar_encore.engine", "ERROR")
    assert printed["file"] == "ClientConnection" and printed["line"] > 0
    assert printed["late"] < 5


def test_an_error_includes_the_reason_of_the_broker(run: Any, topic: str) -> None:
    printed = run(f"say(error=asyncio.run(refuse({topic!r})))").printed
    assert "ConsumerBusy: another consumer holds the subscription" in printed["error"]
    assert printed["error"].endswith("(subscription 'audit' is exclusive and taken)")


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("PARTITIONED_METADATA", "AuthorizationError"),
        ("LOOKUP", "AuthorizationError"),
        ("SUBSCRIBE", "NotAllowedError"),
        ("SEEK", "MetadataError"),
    ],
)
def test_the_error_of_each_refused_command_includes_the_reason_of_the_broker(
    run: Any, broker: BrokerThread, topic: str, command: str, error: str
) -> None:
    broker.faults = FaultPlan([Fault(kind="refuse", command=command, error=error)])
    printed = run(f"""
    async def main():
        async with encore.Client(URL) as client:
            try:
                consumer = await client.subscribe({topic!r}, "s")
                await consumer.seek(encore.MessageId.earliest)
            except encore.TransportError as error:
                say(error=str(error), result=error.result)
    asyncio.run(main())
    """).printed
    assert printed["result"].endswith(error)  # "BrokerMetadataError"
    assert printed["error"].endswith(f"(refused by the fault plan: {command})")


def test_errors_that_occur_at_once_have_their_own_reasons(run: Any, topic: str) -> None:
    printed = run(f"""
    async def main():
        async with encore.Client(URL) as client, encore.Client(URL) as other:
            names = [f"s-{{n}}" for n in range(8)]
            for name in names:
                await client.subscribe({topic!r}, name)
            errors = await asyncio.gather(
                *(other.subscribe({topic!r}, name) for name in names), return_exceptions=True
            )
            say(errors=[str(error) for error in errors])
    asyncio.run(main())
    """).printed
    for n, error in enumerate(printed["errors"]):
        assert error.endswith(f"(subscription 's-{n}' is exclusive and taken)")


def test_an_error_for_a_partitioned_topic_includes_the_reason_of_the_broker(
    run: Any, broker: BrokerThread, topic: str
) -> None:
    broker.create_partitioned_topic(topic, 3)
    printed = run(f"say(error=asyncio.run(refuse({topic!r})))").printed
    assert printed["error"].endswith("(subscription 'audit' is exclusive and taken)")


def test_a_console_logger_of_the_first_client_is_used_by_all(run: Any, topic: str) -> None:
    ended = run(f"""
    console = encore.ConsoleLogger(encore.LoggerLevel.Warn)
    first = asyncio.run(refuse({topic!r}, logger=console))
    logging.getLogger().addHandler(Keep())
    second = asyncio.run(refuse({topic!r}))
    ours = [thread.name for thread in threading.enumerate()]
    say(first=first, second=second, records=len(records), threads=ours)
    """)
    assert ended.code == 0
    *console, printed = ended.out.splitlines()
    assert sum("Received error response from server: ConsumerBusy" in line for line in console) == 2
    found = json.loads(printed)
    assert found["records"] == 0
    assert "pulsar-encore-log" not in found["threads"]
    for error in found["first"], found["second"]:  # no reason, and the advice all the same
        assert "KeyShared or Failover on both" in error


def test_python_logging_of_the_first_client_is_used_by_all(run: Any, topic: str) -> None:
    printed = run(f"""
    logging.getLogger().addHandler(Keep())
    asyncio.run(refuse({topic!r}))
    before = len(records)
    console = encore.ConsoleLogger(encore.LoggerLevel.Warn)
    error = asyncio.run(refuse({topic!r}, logger=console))
    say(error=error, before=before, after=len(records))
    """).printed
    assert printed["error"].endswith("is exclusive and taken)")
    assert 0 < printed["before"] < printed["after"]


@pytest.mark.parametrize(
    ("level", "levels"),
    [
        ("DEBUG", {"DEBUG", "INFO", "WARNING", "ERROR"}),
        ("WARNING", {"WARNING", "ERROR"}),
        ("CRITICAL", set()),
    ],
)
def test_a_logger_of_the_first_client_gets_the_lines_of_the_engine(
    run: Any, topic: str, level: str, levels: set[str]
) -> None:
    printed = run(f"""
    own = logging.getLogger("own")
    own.setLevel(logging.{level})
    own.addHandler(Keep())
    error = asyncio.run(refuse({topic!r}, logger=own))
    lines = [each for each in records if not each.filename.endswith(".py")]
    levels, threads = ({{getattr(each, what) for each in lines}} for what in
                       ("levelname", "threadName"))
    say(levels=sorted(levels), threads=sorted(threads), error=error)
    """).printed
    assert set(printed["levels"]) == levels
    assert set(printed["threads"]) <= {"pulsar-encore-log"}, "not on threads of the C++ client"
    assert printed["error"].endswith("is exclusive and taken)")  # whatever is shown


@pytest.mark.parametrize(
    ("configure", "levels"),
    [
        ("logging.getLogger().setLevel(logging.DEBUG)", {"WARNING", "ERROR"}),
        ("ENGINE.setLevel(logging.INFO)", {"INFO", "WARNING", "ERROR"}),
        ("ENGINE.setLevel(logging.DEBUG)", {"DEBUG", "INFO", "WARNING", "ERROR"}),
        ("logging.getLogger('pulsar_encore').setLevel(logging.INFO)", {"INFO", "WARNING", "ERROR"}),
        ("logging.getLogger().setLevel(logging.ERROR)", {"ERROR"}),
        ("ENGINE.setLevel(logging.CRITICAL)", set()),
    ],
)
def test_the_level_of_the_engine_log_is_set_by_its_logger_name(
    run: Any, topic: str, configure: str, levels: set[str]
) -> None:
    printed = run(f"""
    logging.getLogger().addHandler(Keep())
    {configure}
    error = asyncio.run(refuse({topic!r}))
    mine = [each for each in records if each.name == ENGINE.name]
    say(levels=sorted({{record.levelname for record in mine}}), error=error)
    """).printed
    assert set(printed["levels"]) == levels
    assert printed["error"].endswith("is exclusive and taken)")  # whatever is shown


def test_a_log_handler_that_raises_stops_no_later_record(run: Any, topic: str) -> None:
    ended = run(f"""
    class Raise(Keep):
        def handle(self, record):
            if not records:
                records.append(record)
                raise SystemExit("not again")
            return super().handle(record)
    logging.getLogger().addHandler(Raise())
    asyncio.run(refuse({topic!r}))
    say(texts=texts())
    """)
    assert len(ended.printed["texts"]) == 2
    assert "not again" in ended.err


def test_a_slow_log_handler_delays_no_call_and_no_exit(run: Any, topic: str) -> None:
    ended = run(f"""
    class Slow(Keep):
        def emit(self, record):
            time.sleep(0.2)
            super().emit(record)
    ENGINE.addHandler(Slow())
    ENGINE.setLevel(logging.DEBUG)

    async def main():
        async with encore.Client(URL) as client:
            producer = await client.create_producer({topic!r})
            consumer = await client.subscribe({topic!r}, "s")
            began = time.monotonic()
            for n in range(100):
                await producer.send(b"x")
                await consumer.acknowledge(await consumer.receive())
            say(seconds=time.monotonic() - began, records=len(records))
    asyncio.run(main())
    """)
    assert ended.printed["records"] < 50
    assert ended.printed["seconds"] < 5
    assert ended.seconds < 10  # hundreds of lines are left: the process ends all the same


def test_the_oldest_log_lines_are_dropped_when_a_handler_is_too_slow(run: Any, topic: str) -> None:
    printed = run(f"""
    from pulsar_encore.transport.stock import cpp_log
    cpp_log._MAX_LINES = 20
    class Slow(Keep):
        def emit(self, record):
            time.sleep(0.01)
            super().emit(record)
    ENGINE.addHandler(Slow())
    ENGINE.setLevel(logging.DEBUG)

    async def main():
        async with encore.Client(URL) as client:
            producer = await client.create_producer({topic!r})
            for n in range(200):
                await producer.send(b"x")
            written = cpp_log.engine_log.position()
            await asyncio.sleep(0.6)
            return written
    written = asyncio.run(main())
    say(written=written, kept=sum(map(len, texts())), records=len(records))
    """).printed
    assert printed["records"] > 10
    assert printed["kept"] < printed["written"] / 2


FORKING = """
logging.getLogger().addHandler(Keep())
asyncio.run(refuse("in-the-parent"))
records.clear()
client = encore.Client(URL)
child = os.fork()
if child == 0:
    %s
_, status = os.waitpid(child, 0)
error = asyncio.run(refuse("in-the-parent-again"))
say(who="parent", status=status, error=error, texts=texts())
client.shutdown()
"""


def test_a_forked_child_has_a_log_of_its_own(run: Any) -> None:
    ended = run(
        FORKING
        % """
    error = asyncio.run(refuse("in-the-child"))
    say(who="child", error=error, texts=texts())
    os._exit(0)"""
    )
    assert ended.code == 0, ended.err
    child, parent = (json.loads(line) for line in ended.out.splitlines())
    assert parent["status"] == 0
    for found, topic in (child, "in-the-child"), (parent, "in-the-parent-again"):
        assert found["error"].endswith("is exclusive and taken)")
        assert len(found["texts"]) == 2
        assert f"{topic}, audit" in found["texts"][1]


def test_a_forked_child_without_a_client_leaves_the_log_to_its_parent(run: Any) -> None:
    ended = run(
        FORKING
        % """
    os._exit(0)"""
    )
    assert ended.printed["status"] == 0
    assert len(ended.printed["texts"]) == 2


def test_a_daemon_that_closed_every_descriptor_logs_again(run: Any) -> None:
    ended = run(
        FORKING
        % """
    os.closerange(3, 256)
    error = asyncio.run(refuse("in-the-child"))
    say(who="child", error=error, texts=texts())
    os._exit(0)"""
    )
    assert ended.code == 0, ended.err
    child, parent = (json.loads(line) for line in ended.out.splitlines())
    for found in child, parent:
        assert found["error"].endswith("is exclusive and taken)")
        assert len(found["texts"]) == 2


def test_the_log_is_never_written_to_a_descriptor_that_the_program_reused(run: Any) -> None:
    ended = run(
        FORKING
        % """
    os.closerange(3, 256)
    mine = [os.open(os.devnull, os.O_WRONLY) for _ in range(60)]
    try:
        encore.Client(URL)
    except encore.ConfigurationError as error:
        say(error=str(error))
    os._exit(0)"""
    )
    child, _ = (json.loads(line) for line in ended.out.splitlines())
    assert "make the first client after descriptors are closed" in child["error"]


def test_a_started_program_does_not_inherit_the_log_file(run: Any, topic: str) -> None:
    printed = run(f"""
    import subprocess
    logging.getLogger().addHandler(Keep())
    asyncio.run(refuse({topic!r}))
    own = [os.readlink(f"/proc/self/fd/{{fd}}") for fd in os.listdir("/proc/self/fd")
           if os.path.exists(f"/proc/self/fd/{{fd}}")]
    child = subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True)
    say(own=sum("pulsar-encore-log" in each for each in own), child=child.stdout.decode())
    """).printed
    assert "pulsar-encore-log" not in printed["child"]


def test_a_process_with_an_engine_log_ends_on_sigterm(
    broker: BrokerThread, unused_port: int
) -> None:
    process = start(
        """
    async def main():
        async with encore.Client(URL) as client:
            consumer = await client.subscribe("waiting", "s")
            say(ready=True)
            await consumer.receive()
    asyncio.run(main())
    """,
        broker,
        unused_port,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == {"ready": True}
    process.send_signal(signal.SIGTERM)
    ended = Ended(process)
    assert (ended.code, ended.out) == (-signal.SIGTERM, "")
    assert ended.seconds < 5


def test_without_memfd_create_the_engine_logs_to_the_console(run: Any, topic: str) -> None:
    ended = run(f"""
    del os.memfd_create
    error = asyncio.run(refuse({topic!r}))
    say(error=error)
    """)
    *console, printed = ended.out.splitlines()
    assert any("Received error response" in line for line in console)
    assert "KeyShared or Failover on both" in json.loads(printed)["error"]


def test_memory_of_log_lines_that_were_read_is_freed(run: Any, topic: str) -> None:
    printed = run(f"""
    ENGINE.setLevel(logging.CRITICAL)
    asyncio.run(refuse({topic!r}))
    paths = [f"/proc/self/fd/{{fd}}" for fd in os.listdir("/proc/self/fd")]
    path = next(path for path in paths
                if os.path.exists(path) and "pulsar-encore-log" in os.readlink(path))
    with open(path, "ab", buffering=0) as library:
        for _ in range(64):
            library.write((b"x" * 999 + b"\\n") * 1000)
    asyncio.run(refuse({topic!r}))  # an error has its reason when all of the log was read
    found = os.stat(path)
    say(size=found.st_size, taken=found.st_blocks * 512)
    """).printed
    assert printed["size"] > 64_000_000
    assert printed["taken"] < 4_000_000
