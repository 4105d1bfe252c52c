"""A streaming query into the sink, to be killed: `python -m integration.spark.sink_process JSON`.

It writes micro-batches of numbered rows, which are the same in every run, until the last one is
done. The JSON has `checkpoint`, `batches`, `rows` (in each batch), `options` of the sink, how often
a task may fail (`attempts`), and how often a query that failed is started again (`restarts`).
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pyspark.sql import functions as F

from .sink_source import Sink
from .spark_kit import spark_session


def main(
    checkpoint: str,
    batches: int,
    rows: int,
    options: dict[str, str],
    attempts: int,
    restarts: int,
) -> None:
    """Run the query to its last micro-batch.

    Raises:
        StreamingQueryException: if the query failed once more than it may be started again.
    """
    with spark_session(
        f"local[2,{attempts}]", spark__sql__execution__arrow__maxRecordsPerBatch="20"
    ) as spark:
        spark.dataSource.register(Sink)
        made = (
            spark.readStream.format("rate-micro-batch")
            .options(rowsPerBatch=str(rows), numPartitions="2", startTimestamp="0")
            .load()
            .select(F.col("value").cast("string").alias("value"))
        )
        for left in range(restarts, -1, -1):
            query: Any = (
                made.writeStream.format("sink")
                .options(checkpointLocation=checkpoint, **options)
                .start()
            )
            while (
                query.isActive and (query.lastProgress or {"batchId": -1})["batchId"] < batches - 1
            ):
                time.sleep(0.05)
            failure = query.exception()
            query.stop()
            if failure is None:
                return
            if not left:
                raise failure


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
