"""A Spark job: JSON orders of a topic into Parquet, and broken orders to the dead letter topic.

pip install "pulsar-encore[spark]"; Java 17; python examples/spark_parquet.py URL TOPIC FOLDER
It writes all orders since its last run, prints the orders of each day, and ends: a scheduler can
start it every hour. docs/spark-parquet.md explains the steps.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pulsar_encore.spark

SCHEMA = "id BIGINT, total DOUBLE, placed TIMESTAMP"
IS_ORDER = "order.id IS NOT NULL AND order.total IS NOT NULL AND order.placed IS NOT NULL"
EVIDENCE = ["__key", "__keyIsBytes", "__topic", "__messageId", "__messageProperties"]


def main(url: str, topic: str, folder: str) -> None:
    builder: SparkSession.Builder = SparkSession.builder
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    pulsar_encore.spark.register(spark)

    def parsed(subscription: str) -> DataFrame:
        options = {
            "service.url": url,
            "topic": topic,
            "subscription": subscription,
            "startingOffsets": "earliest",  # of the first run, which creates the subscription
            "maxEntriesPerTrigger": "10000",  # over several ledgers only with "admin.url"
        }
        stream = spark.readStream.format("pulsar").options(**options).load()
        return stream.withColumn("order", F.from_json(F.col("value").cast("string"), SCHEMA))

    orders = parsed("lake").where(IS_ORDER)
    orders = orders.select("order.*", F.to_date("order.placed").alias("day"))
    broken = parsed("lake-letters").where(f"NOT ({IS_ORDER})")
    letters = broken.select("value", *EVIDENCE, F.lit("not an order").alias("errorMessage"))
    sinks = {
        "orders": orders.writeStream.format("parquet").partitionBy("day"),
        "letters": letters.writeStream.format("pulsar").option("service.url", url),
    }
    sinks["orders"].option("path", f"{folder}/orders")
    sinks["letters"].options(sinkMode="dead_letter", subscription="lake")
    sinks["letters"].option("initialSubscriptionName", "encore-replay")  # keeps the letters
    for name, sink in sinks.items():
        sink.option("checkpointLocation", f"{folder}/checkpoints/{name}")
        sink.trigger(availableNow=True).start().awaitTermination()
    days = spark.read.parquet(f"{folder}/orders").groupBy("day").count()
    for row in days.orderBy("day").collect():
        print(row["day"], row["count"])


if __name__ == "__main__":
    main(*sys.argv[1:])
