"""The C++ library comes with the stock transport or with the program, and then ours are its too.

Each case is a program of its own: what is imported when is what it is about.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from pulsar_encore.devbroker import BrokerThread

LONGEST_S = 50

LOADED = "loaded = {'_pulsar', 'pulsar'} & sys.modules.keys()\n"

CONSUME = """
import sys
import pulsar_encore as encore

async def main():
    cluster = encore.testing.MemoryTransport()
    async with encore.Client("memory://", transport=cluster) as client:
        producer = await client.create_producer("orders")
        await producer.send(b"paid")
        async with client.subscribe(
            "orders",
            "billing",
            consumer_type=encore.ConsumerType.Shared,
            initial_position=encore.InitialPosition.Earliest,
            dead_letter_policy=encore.DeadLetterPolicy(1),
            retry_enable=True,
            crypto_failure_action=encore.ConsumerCryptoFailureAction.DISCARD,
        ) as consumer:
            message = await consumer.receive(1000)
            assert message.value() == b"paid" and message.encryption_context() is None
            await consumer.negative_acknowledge(message, delay=0.1)
            await consumer.acknowledge(await consumer.receive(1000))
            try:
                await consumer.receive(10)
            except encore.Timeout as error:
                assert error.error() is encore.Result.Timeout
            else:
                raise AssertionError("nothing is there")
        reader = await client.create_reader("orders", encore.MessageId.earliest)
        assert (await reader.read_next(1000)).message_id() == message.message_id()

encore.testing.run(main())
"""

# What has to hold once `pulsar` is imported, whoever imported first.
TWINS = """
import pickle
import pulsar
import pulsar_encore as encore

kept = globals().get("kept", encore.MessageId(0, 1, 2, 3))
made = encore.MessageId(0, 1, 2, 3)
native = pulsar.MessageId(0, 1, 2, 3)
for each in (kept, made):
    assert isinstance(each, pulsar.MessageId)
    assert each == native and native == each and not each != native and not native != each
    assert each <= native and native >= each
    assert pickle.loads(pickle.dumps(each)) == each and hash(each) == hash(made)
    assert each == native._msg_id and each in {made} and vars(each) == {}
assert kept == made
for name in encore.exceptions.__all__:
    assert issubclass(getattr(encore, name), getattr(pulsar, name)), name
try:
    raise encore.ReceiveTimeout("late")
except pulsar.Timeout as error:
    assert isinstance(error, TimeoutError) and str(error) == "late"
    assert error.error() == pulsar.Result.Timeout == error.error()
assert str(pickle.loads(pickle.dumps(encore.TopicNotFound("x")))) == "x"
for name in (
    "Authentication", "AuthenticationToken", "AuthenticationBasic", "AuthenticationTLS",
    "AuthenticationOauth2", "AuthenticationAthenz", "CryptoKeyReader", "ConsoleLogger",
    "FileLogger", "ConsumerKeySharedPolicy", "ConsumerDeadLetterPolicy", "EncryptionContext",
    "EncryptionKey", "ServiceInfo", "ServiceInfoProvider", "AutoClusterFailover", "MessageBatch",
):
    assert issubclass(getattr(encore, name), getattr(pulsar, name)), name
"""

ASYNCIO = """
import pulsar.asyncio
try:
    raise encore.ConsumerBusy("taken")
except pulsar.asyncio.PulsarException as error:
    assert isinstance(error, pulsar.ConsumerBusy)
    assert (error.error(), str(error)) == (pulsar.Result.ConsumerBusy, "taken")
import sys
assert not [each for each in sys.meta_path if type(each).__module__ == "pulsar_encore.stock"]
"""


# The engine came after the handler was registered, and ends after it all the same.
AT_EXIT = """
import asyncio, atexit, sys
import pulsar_encore as encore

async def send():
    async with client, client.create_producer(sys.argv[2]) as producer:
        await producer.send(b"at last")

@atexit.register
def stop():
    asyncio.run(send())
    print("sent")

client = encore.Client(sys.argv[1])
"""


def ran(*parts: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(parts)],
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )


def check(*parts: str) -> None:
    done = ran(*parts)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_consume_in_memory_loads_no_native_library() -> None:
    check(CONSUME, LOADED, "assert not loaded, loaded")


def test_all_that_can_be_made_without_stock_is_made_without_it() -> None:
    check(
        "import sys, pulsar_encore as encore, pulsar_encore.asyncio, pulsar_encore.exceptions",
        "from pulsar_encore.options import ClientOptions, ConsumerOptions, ProducerOptions",
        "token = encore.AuthenticationToken('secret')",
        "encore.AuthenticationBasic('user', 'secret'), encore.AuthenticationAthenz('{}')",
        "ClientOptions(service_url='pulsar://h', authentication=token,",
        "    logger=encore.ConsoleLogger(encore.LoggerLevel.Warn), io_threads=2)",
        "info = encore.ServiceInfo('pulsar://h', token)",
        "ClientOptions(service_url=encore.AutoClusterFailover(info, [info]))",
        "ProducerOptions(topic='t', crypto_key_reader=encore.CryptoKeyReader('a', 'b'))",
        "ConsumerOptions(topics=('t',), pattern=None, subscription_name='s',",
        "    consumer_type=encore.ConsumerType.KeyShared,",
        "    key_shared_policy=encore.ConsumerKeySharedPolicy(",
        "        encore.KeySharedMode.Sticky, sticky_ranges=[(0, 9)]),",
        "    dead_letter_policy=encore.ConsumerDeadLetterPolicy(3))",
        "encore.MessageBatch().with_message_id(encore.MessageId(0, 1, 2))",
        "assert encore.MessageId(0, 1, 2) != 3 and encore.Result.Ok == 0",
        "repr(token), dir(encore.schema)",
        LOADED,
        "assert not loaded, loaded",
    )


def test_the_stock_transport_and_the_schemas_load_it() -> None:
    check(
        "import asyncio, sys, pulsar_encore as encore",
        "client = encore.Client('pulsar://127.0.0.1:1')",
        LOADED,
        "assert not loaded",
        "asyncio.run(client.close())",
        "client = encore.Client('pulsar://127.0.0.1:1', transport='stock')",
        LOADED,
        "assert len(loaded) == 2",
        "asyncio.run(client.close())",
    )
    check(
        "import sys, pulsar_encore.schema",
        "from pulsar_encore.schema import JsonSchema",
        LOADED,
        "assert len(loaded) == 2",
        "from pulsar_encore import BytesSchema",
        "import pulsar; assert BytesSchema is pulsar.schema.BytesSchema",
    )


@pytest.mark.parametrize("first", ["pulsar_encore", "pulsar", "_pulsar", "pulsar.asyncio"])
def test_ours_are_stocks_whichever_is_imported_first(first: str) -> None:
    check(f"import {first}", TWINS, ASYNCIO)


def test_what_was_made_before_stock_came_is_stocks_too() -> None:
    check(
        "import pulsar_encore as encore",
        "kept = encore.MessageId(0, 1, 2, 3)",
        "raised = encore.Timeout('early')",
        "class Own(encore.Timeout): pass",
        "own = Own('mine')",
        "auth = encore.AuthenticationToken('secret')",
        "assert encore.AuthenticationToken.__mro__[-2:] == (encore.stock.Twin, object)",
        TWINS,
        "assert isinstance(raised, pulsar.Timeout) and isinstance(own, pulsar.Timeout)",
        "assert isinstance(auth, pulsar.AuthenticationToken) and auth.auth is auth.auth",
        ASYNCIO,
        "assert isinstance(raised, pulsar.asyncio.PulsarException)",
        "assert isinstance(own, pulsar.asyncio.PulsarException)",
    )


def test_an_import_amid_handling_an_error_catches_it() -> None:
    check(
        "import pulsar_encore as encore",
        "try:",
        "    try:",
        "        raise encore.TopicNotFound('gone')",
        "    except Exception as error:",
        "        import pulsar",
        "        raise",
        "except pulsar.TopicNotFound as error:",
        "    assert str(error) == 'gone'",
    )


def test_a_thread_that_is_importing_stock_is_waited_for() -> None:
    check(
        "import sys, threading",
        "importing = threading.Thread(target=lambda: __import__('pulsar'))",
        "importing.start()",
        "while '_pulsar' not in sys.modules and importing.is_alive(): pass",
        "import pulsar_encore as encore",
        "importing.join()",
        TWINS,
        ASYNCIO,
    )


def test_exit_handlers_of_the_program_run_before_the_engine_ends(
    broker: BrokerThread, topic: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT, broker.url, topic],
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "sent\n", "")


def test_stocks_loader_stays_what_it_was() -> None:
    check(
        "import inspect, importlib.machinery, pulsar_encore",
        "import pulsar",
        "assert type(pulsar.__loader__) is importlib.machinery.SourceFileLoader",
        "assert 'class MessageId' in inspect.getsource(pulsar)",
    )


def test_a_stock_that_does_not_import_fails_as_it_would_without_us() -> None:
    check(
        "import sys, pulsar_encore as encore",
        "sys.modules['_pulsar'] = None",
        "try:",
        "    import pulsar",
        "except ImportError: pass",
        "else: raise AssertionError('there is one')",
        "assert str(encore.Timeout('late')) == 'late'",
    )
