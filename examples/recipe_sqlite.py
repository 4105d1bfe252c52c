"""Write orders to SQLite in lists, each order once, and dead-letter the rows that it refuses.

python examples/recipe_sqlite.py service_url file (runs until SIGTERM or Ctrl+C)
"""

import asyncio
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass

import pulsar_encore as encore

TABLE = """CREATE TABLE IF NOT EXISTS orders (
    message TEXT PRIMARY KEY, number INTEGER NOT NULL, cents INTEGER NOT NULL CHECK (cents > 0))"""
INSERT = "INSERT INTO orders VALUES (?, ?, ?) ON CONFLICT (message) DO NOTHING"


@dataclass
class Order:
    number: int
    cents: int | None = None


def id_of(msg: encore.Message[Order]) -> str:
    return str(msg.message_id())


@dataclass
class Archive:
    file: str

    def store(self, orders: list[Order], msgs: list[encore.Message[Order]]) -> None:  # in a thread
        errors: dict[int, Exception] = {}
        with closing(sqlite3.connect(self.file)) as database, database:  # one transaction
            for index, (order, msg) in enumerate(zip(orders, msgs, strict=True)):
                try:
                    database.execute(INSERT, (id_of(msg), order.number, order.cents))
                except sqlite3.IntegrityError as error:
                    errors[index] = encore.Reject(str(error))
        if errors:  # after the commit: the other messages are acked
            raise encore.BatchFailure(errors)


def archiving(client: encore.Client, archive: Archive) -> encore.BatchWorker[Order]:
    return encore.BatchWorker(
        client,
        "orders",
        "archive",
        archive.store,
        schema=encore.Json(Order),
        max_messages=500,
        concurrency=1,  # SQLite has one writer at a time
        breaker=encore.Breaker(on=sqlite3.OperationalError, pause=5),
        initial_position=encore.InitialPosition.Earliest,
    )


async def main(url: str, file: str) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.execute(TABLE)
    async with encore.Client(url) as client:
        await encore.run(archiving(client, Archive(file)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
