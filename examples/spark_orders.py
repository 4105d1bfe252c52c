"""Pulsar in Spark: the sink, a batch, a stream and its lag, dead letters, triage.

pip install "pulsar-encore[spark]"; Java 17; python examples/spark_orders.py [service_url]
The output of each cell is written below it. On two slow cores Spark takes about a minute.
"""

# %% A broker (or the one of your service_url), a folder and a session
import os
import queue
import sys
import tempfile
import uuid
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pulsar_encore import testing
from pulsar_encore.spark.metrics import PulsarProgressListener, QueryMetrics, with_metrics
from pulsar_encore.spark.triage import GroupSelection, triage

broker = testing.BrokerThread()
service_urls = [each for each in sys.argv[1:] if each.startswith("pulsar")]
url = service_urls[0] if service_urls else broker.start().url
tmp = tempfile.TemporaryDirectory(prefix="spark-orders-")
folder = Path(tmp.name)

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers need this interpreter
builder: SparkSession.Builder = SparkSession.builder
spark = (
    builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")  # starts sooner
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
name = f"example-spark-{uuid.uuid4().hex[:8]}"
topic = {"service.url": url, "topic": name}
as_json = {"valueFormat": "json", "valueSchema": "id BIGINT, customer STRING, price DOUBLE"}

# %% The sink: each row becomes a message
orders = spark.range(100).selectExpr(
    "id",
    "element_at(array('Ada', 'Edsger', 'Grace'), int(id % 3) + 1) AS customer",
    "double(id) - 1 AS price",  # the price of the first order is wrong
)
orders.write.format("pulsar").mode("append").options(**topic, valueFormat="json").save()
print("100 orders written")
# 100 orders written

# %% A batch: all stored messages, with a column for each field
stored = spark.read.format("pulsar").options(**topic, **as_json).load()
for row in stored.where("price > 96").select("id", "customer", "price").collect():
    print(*row)
# 98 Grace 97.0
# 99 Ada 98.0

# %% A stream: orders with a wrong price become dead letters; the listener reports the lag
source = {**topic, **as_json, "startingOffsets": "earliest", "subscription": "billing"}


def bill() -> None:
    """Process all orders since the checkpoint."""
    progress: queue.Queue[QueryMetrics] = queue.Queue()
    listener = PulsarProgressListener(progress.put, source)  # with admin.url also the backlog
    spark.streams.addListener(listener)
    read = with_metrics(spark.readStream.format("pulsar").options(**source).load())
    wrong_orders = read.where("price < 0").select(
        F.to_json(F.struct("id", "customer", "price")).alias("value"),
        *("__topic", "__messageId", "__messageProperties"),
        F.lit("ValueError").alias("errorClass"),
        F.lit("a price below 0").alias("errorMessage"),
    )
    sink = {"service.url": url, "sinkMode": "dead_letter", "subscription": "billing"}
    query = (
        wrong_orders.writeStream.format("pulsar")
        .options(**sink, checkpointLocation=str(folder / "billing"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    metrics = progress.get(timeout=30)
    spark.streams.removeListener(listener)
    print(f"batch {metrics.batch}: {metrics.rows} rows, the newest {metrics.lag_s:.1f} s old")


bill()
# batch 0: 100 rows, the newest 9.3 s old

# %% The dead letters, with their evidence as columns
letters = spark.read.format("pulsar").option("service.url", url).option("view", "dlq")
letters = letters.option("topic", f"{name}-billing-DLQ")
for row in letters.load().collect():
    print(bytes(row["value"]).decode(), row["__errorClass"], row["__errorMessage"])
# {"id":0,"customer":"Ada","price":-1.0} ValueError a price below 0

# %% Triage: count the letters, save them as Parquet, and replay one group
report = triage(
    spark,
    [name],
    {"service.url": url},
    subscription="billing",
    out=str(folder / "letters"),
    checkpoint=str(folder / "triage"),
    replay=GroupSelection(error_classes=["ValueError"]),
)
for group in report.groups:
    print(f"{group.count} x {group.error_class}: {group.error_message}")
print(f"{report.letters} letters, {report.replayed} replayed")
# 1 x ValueError: a price below 0
# 1 letters, 1 replayed

# %% The stream again, on its checkpoint: only new messages
bill()
# batch 1: 1 rows, the newest 8.0 s old

# %% The end
spark.stop()
tmp.cleanup()
broker.close()
