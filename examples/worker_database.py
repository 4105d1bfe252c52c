"""Write lists of messages to a database, and dead-letter the rows that it refuses.

python examples/worker_database.py [service_url]
"""

import asyncio
import sqlite3
import sys

import pulsar_encore as encore
from pulsar_encore import testing

database = sqlite3.connect(":memory:")
database.execute("CREATE TABLE readings (number INTEGER PRIMARY KEY, celsius REAL NOT NULL)")
done = asyncio.Event()


async def store(readings: list[bytes]) -> None:
    errors: dict[int, Exception] = {}
    with database:  # one transaction for the list
        for index, reading in enumerate(readings):
            number, celsius = reading.decode().split(",")
            try:  # a list may be passed again, so a row replaces itself
                row = (int(number), float(celsius) if celsius else None)
                database.execute("INSERT OR REPLACE INTO readings VALUES (?, ?)", row)
            except sqlite3.IntegrityError as error:
                errors[index] = encore.Reject(error)
    if database.execute("SELECT count(*) FROM readings").fetchone() == (99,):
        done.set()
    if errors:
        raise encore.BatchFailure(errors)  # the other messages are acked


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        worker = encore.BatchWorker(
            client, "example-readings", "database", store, max_messages=50, max_wait=0.2
        )
        async with worker, client.create_producer("example-readings") as producer:
            for number in range(100):
                await producer.send(b"%d,%s" % (number, b"" if number == 7 else b"21.5"))
            await done.wait()
        print(f"{worker.report().succeeded} rows, {worker.report().rejected} dead letter")
        dead_letters = "example-readings-database-DLQ"
        async with client.create_reader(dead_letters, encore.MessageId.earliest) as reader:
            letter = await reader.read_next(timeout=10)
            print(letter.data().decode(), letter.properties()["ENCORE_ERROR_MESSAGE"])


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
