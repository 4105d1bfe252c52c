"""When the C++ client is loaded, and which exceptions and ids a program then gets.

Each case is a program of its own, because the order of imports matters.
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

# These checks hold with the stock transport, whichever package is imported first.
BOTH = """
import pickle
import pulsar
import pulsar.asyncio
import pulsar_encore as encore
from pulsar_encore.transport.stock.dual_exceptions import use_dual_exceptions
from pulsar_encore.transport.stock.cpp_ids import from_native

use_dual_exceptions()

plain, native = encore.MessageId(0, 1, 2, 3), pulsar.MessageId(0, 1, 2, 3)
received = from_native(native._msg_id)
assert isinstance(received, pulsar.MessageId) and isinstance(received, encore.MessageId)
for each in (plain, received):
    assert each == native and native == each and not each != native and not native != each
    assert each <= native and native >= each
    assert pickle.loads(pickle.dumps(each)) == each and hash(each) == hash(plain)
    assert each == native._msg_id and each in {plain}
for name in encore.exceptions.__all__:
    ours, theirs = getattr(encore, name), getattr(pulsar, name)
    for kinds in ours, theirs, pulsar.PulsarException, pulsar.asyncio.PulsarException:
        try:
            raise ours("why")
        except kinds as error:
            assert str(error) == "why" and type(error).__name__ == ours.__name__, name
try:
    raise encore.ReceiveTimeout("late")
except pulsar.Timeout as error:
    assert isinstance(error, TimeoutError) and str(error) == "late"
    assert error.error() == pulsar.Result.Timeout == error.error()
again = pickle.loads(pickle.dumps(encore.TopicNotFound("x")))
assert str(again) == "x" and isinstance(again, pulsar.TopicNotFound)
"""

# A client on the native transport: `pulsar` is loaded, and none of its exceptions is raised.
NATIVE = """
import asyncio, sys
import pulsar, pulsar.asyncio
import pulsar_encore as encore

async def main():
    async with encore.Client(sys.argv[1], transport="native") as client:
        producer = await client.create_producer(sys.argv[2])
        sent = await producer.send(b"x")
        consumer = await client.subscribe(sys.argv[2], "s")
        assert type(sent) is encore.MessageId and sent == pulsar.MessageId.wrap(sent._msg_id)
        try:
            await consumer.receive(10)
        except (pulsar.PulsarException, pulsar.asyncio.PulsarException):
            raise AssertionError("of the C++ client")
        except encore.Timeout as error:
            assert type(error) is encore.ReceiveTimeout
            assert error.error() == pulsar.Result.Timeout

asyncio.run(main())
"""

# A client on the stock transport: exceptions of the code above the transport are dual as well.
STOCK = """
import asyncio, sys
import pulsar, pulsar.asyncio
import pulsar_encore as encore

async def main():
    quiet = encore.ConsoleLogger(encore.LoggerLevel.Error)
    async with encore.Client(sys.argv[1], transport="stock", logger=quiet) as client:
        producer = await client.create_producer(sys.argv[2])
        ids = [await producer.send(b"x")]
        consumer = await client.subscribe(
            sys.argv[2], "s", initial_position=encore.InitialPosition.Earliest
        )
        reader = await client.create_reader(sys.argv[2], encore.MessageId.earliest)
        ids.append((await consumer.receive(5000)).message_id())
        ids.append((await reader.read_next(5000)).message_id())
        ids.append(await consumer.get_last_message_id())
        for each in ids:
            assert isinstance(each, pulsar.MessageId) and isinstance(each, encore.MessageId)
            assert each == ids[0] and each in {ids[0]}
        for late in consumer.receive(10), reader.read_next(10):
            try:
                await late
            except pulsar.Timeout as error:
                assert isinstance(error, encore.Timeout) and isinstance(error, TimeoutError)
        try:
            await client.create_producer("not://a/topic")
        except pulsar.InvalidTopicName as error:
            assert isinstance(error, encore.ConfigurationError)
        await consumer.close()
        for kinds in pulsar.AlreadyClosed, pulsar.asyncio.PulsarException, encore.ClosedError:
            try:
                await consumer.receive()
            except kinds as error:
                assert error.error() == pulsar.Result.AlreadyClosed

asyncio.run(main())
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


def ran(*parts: str, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(parts), *arguments],
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )


def check(*parts: str) -> None:
    done = ran(*parts)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_consuming_from_a_memory_transport_does_not_import_pulsar() -> None:
    check(CONSUME, LOADED, "assert not loaded, loaded")


def test_options_and_values_are_made_without_importing_pulsar() -> None:
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


def test_the_stock_transport_and_the_schemas_import_pulsar() -> None:
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
def test_errors_and_ids_of_the_stock_transport_are_those_of_pulsar_client(first: str) -> None:
    check(f"import {first}", BOTH)


def test_importing_pulsar_changes_no_class_of_this_package() -> None:
    check(
        "import sys, pulsar_encore as encore",
        "kinds = {name: getattr(encore, name) for name in encore.__all__}",
        "bases = {n: k.__bases__ for n, k in kinds.items() if isinstance(k, type)}",
        "raised = encore.Timeout('early')",
        "import pulsar, pulsar.asyncio",
        "assert not [f for f in sys.meta_path if type(f).__module__.startswith('pulsar_encore')]",
        "assert bases == {name: kinds[name].__bases__ for name in bases}",
        "assert type(encore.Timeout('late')) is type(raised) is encore.Timeout",
        "import asyncio",
        "asyncio.run(encore.Client('pulsar://127.0.0.1:1', transport='stock').close())",
        "assert bases == {name: kinds[name].__bases__ for name in bases}",
        "assert not isinstance(raised, pulsar.Timeout)",
        "assert isinstance(encore.Timeout('late'), pulsar.Timeout)",
    )


@pytest.mark.parametrize("program", [NATIVE, STOCK], ids=["native", "stock"])
def test_which_names_catch_an_error_depends_on_the_transport(
    program: str, broker: BrokerThread, topic: str
) -> None:
    done = ran(program, arguments=(broker.url, topic))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


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
