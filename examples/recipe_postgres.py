"""Write orders to PostgreSQL in lists, each order once, and dead-letter the rows that it refuses.

python examples/recipe_postgres.py service_url conninfo (runs until SIGTERM or Ctrl+C)
"""

import asyncio
import sys
from dataclasses import dataclass

import psycopg

import pulsar_encore as encore

TABLE = """CREATE TABLE IF NOT EXISTS orders (
    message text PRIMARY KEY, number integer NOT NULL, cents integer NOT NULL CHECK (cents > 0))"""
INSERT = "INSERT INTO orders VALUES (%s, %s, %s) ON CONFLICT (message) DO NOTHING"
REFUSED = (psycopg.DataError, psycopg.IntegrityError)  # the row never fits


@dataclass
class Order:
    number: int
    cents: int | None = None


def row_of(order: Order, msg: encore.Message[Order]) -> tuple[str, int, int | None]:
    return str(msg.message_id()), order.number, order.cents


@dataclass
class Archive:
    conninfo: str

    async def store(self, orders: list[Order], msgs: list[encore.Message[Order]]) -> None:
        rows = list(map(row_of, orders, msgs))
        errors: dict[int, Exception] = {}
        connection = await psycopg.AsyncConnection.connect(self.conninfo, autocommit=True)
        async with connection as database, database.transaction():
            try:
                async with database.transaction(), database.cursor() as cursor:
                    await cursor.executemany(INSERT, rows)
            except REFUSED:  # a row of the list: try them one by one, each with a savepoint
                for index, row in enumerate(rows):
                    try:
                        async with database.transaction():
                            await database.execute(INSERT, row)
                    except REFUSED as error:  # not str(error), which shows the row
                        errors[index] = encore.Reject(error.diag.message_primary or "refused")
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
        concurrency=4,
        breaker=encore.Breaker(on=psycopg.OperationalError, pause=5),
        initial_position=encore.InitialPosition.Earliest,
    )


async def main(url: str, conninfo: str) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo) as database:
        await database.execute(TABLE)
    async with encore.Client(url) as client:
        await encore.run(archiving(client, Archive(conninfo)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
