"""A program that a test kills: it streams a topic into Parquet.

    python -m integration.spark.killed_query FOLDER OPTIONS_JSON

It prints "running" when its query runs. It ends when everything that was stored at its start is
written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .spark_kit import spark_session


def main(folder: Path, options: dict[str, str]) -> None:
    with spark_session("local[2,4]") as spark:
        reader = spark.readStream.format("pulsar")
        for name, value in options.items():
            reader = reader.option(name, value)
        query = (
            reader.load()
            .writeStream.format("parquet")
            .option("path", str(folder / "rows"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        print("running", flush=True)
        query.awaitTermination()
        print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
