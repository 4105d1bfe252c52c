"""The same calls for Java's client and ours. A call returns "ok", or the name of the error."""

from __future__ import annotations

import contextlib
from typing import Protocol

from pulsar_encore import (
    Client,
    Consumer,
    ConsumerType,
    EncoreError,
    InitialPosition,
    Message,
    Producer,
    Transaction,
)

from .java_sessions import JavaFailure, JavaProcess

OPERATION_TIMEOUT_S = 5
OK = "ok"


class Side(Protocol):
    """One client of a case, with at most one producer and one consumer."""

    async def open(self, url: str) -> None: ...
    async def close(self) -> None: ...
    async def create_producer(self, topic: str) -> None:
        """Create a producer without batches."""

    async def subscribe(self, topic: str, kind: str) -> None:
        """Subscribe with the name "s", from the earliest message."""

    async def begin(self, name: str, timeout_s: float) -> str:
        """Return the id of a new transaction, or the name of the error."""

    async def send(self, name: str, value: str) -> str: ...
    async def receive(self, count: int, within_s: float) -> list[str]:
        """Return up to `count` values, as soon as none comes within a time."""

    async def ack(self, name: str, value: str) -> str:
        """Ack the last delivery of a value."""

    async def ack_cumulative(self, name: str, value: str) -> str: ...
    async def commit(self, name: str) -> str: ...
    async def abort(self, name: str) -> str: ...


class Ours:
    """Our client with the native transport."""

    def __init__(self) -> None:
        self._transactions: dict[str, Transaction] = {}
        self._received: dict[str, Message] = {}

    async def open(self, url: str) -> None:
        self._client = Client(
            url, transport="native", operation_timeout_seconds=OPERATION_TIMEOUT_S
        )

    async def close(self) -> None:
        await self._client.close()

    async def create_producer(self, topic: str) -> None:
        self._producer: Producer = await self._client.create_producer(
            topic, batching_enabled=False, send_timeout_millis=OPERATION_TIMEOUT_S * 1000
        )

    async def subscribe(self, topic: str, kind: str) -> None:
        self._consumer: Consumer = await self._client.subscribe(
            topic,
            "s",
            ConsumerType[kind.replace("_", "")],
            initial_position=InitialPosition.Earliest,
        )

    async def begin(self, name: str, timeout_s: float) -> str:
        try:
            self._transactions[name] = await self._client.transaction(timeout_s)
        except EncoreError as error:
            return type(error).__name__
        return str(self._transactions[name].id)

    async def send(self, name: str, value: str) -> str:
        return await _report(self._producer.send(value.encode(), txn=self._transactions[name]))

    async def receive(self, count: int, within_s: float) -> list[str]:
        values: list[str] = []
        with contextlib.suppress(TimeoutError):
            while len(values) < count:
                message = await self._consumer.receive(timeout=within_s)
                values.append(message.data().decode())
                self._received[values[-1]] = message
        return values

    async def ack(self, name: str, value: str) -> str:
        txn = self._transactions[name]
        return await _report(self._consumer.acknowledge(self._received[value], txn=txn))

    async def ack_cumulative(self, name: str, value: str) -> str:
        txn = self._transactions[name]
        return await _report(self._consumer.acknowledge_cumulative(self._received[value], txn=txn))

    async def commit(self, name: str) -> str:
        return await _report(self._transactions[name].commit())

    async def abort(self, name: str) -> str:
        return await _report(self._transactions[name].abort())


async def _report(call: object) -> str:
    try:
        await call  # type: ignore[misc]
    except EncoreError as error:
        return type(error).__name__
    return OK


class Java:
    """Java's client. Its errors are named as Java names them."""

    def __init__(self, process: JavaProcess, session: str) -> None:
        self._process = process
        self._session = session

    async def _call(self, *words: object) -> list[str]:
        return await self._process.call(self._session, *words)

    async def _report(self, *words: object) -> str:
        try:
            await self._call(*words)
        except JavaFailure as failure:
            return failure.name
        return OK

    async def open(self, url: str) -> None:
        await self._call("open", url, OPERATION_TIMEOUT_S * 1000)

    async def close(self) -> None:
        await self._call("close")

    async def create_producer(self, topic: str) -> None:
        await self._call("producer", topic, OPERATION_TIMEOUT_S * 1000)

    async def subscribe(self, topic: str, kind: str) -> None:
        await self._call("consumer", topic, kind)

    async def begin(self, name: str, timeout_s: float) -> str:
        try:
            return (await self._call("begin", name, round(timeout_s * 1000)))[0]
        except JavaFailure as failure:
            return failure.name

    async def send(self, name: str, value: str) -> str:
        return await self._report("send", name, value)

    async def receive(self, count: int, within_s: float) -> list[str]:
        return await self._call("receive", count, round(within_s * 1000))

    async def ack(self, name: str, value: str) -> str:
        return await self._report("ack", name, value)

    async def ack_cumulative(self, name: str, value: str) -> str:
        return await self._report("ack-cumulative", name, value)

    async def commit(self, name: str) -> str:
        return await self._report("commit", name)

    async def abort(self, name: str) -> str:
        return await self._report("abort", name)
