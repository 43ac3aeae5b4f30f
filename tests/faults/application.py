"""A Spark application that keeps a query to Parquet alive, whatever ends it; until stdin closes.

Usage: application.py <folder> [option=value …]; the broker is `FANOUT_URL`. A line on stdin stops
the query and starts it again.
"""

import sys
import threading
import time

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

folder, *options = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2,4]")  # a task may fail three times
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.log.level", "ERROR")
    .config("spark.driver.memory", "512m")
    .getOrCreate()
)
logs = spark.readStream.format("fanout").option("spoolDir", f"{folder}.spool")
logs = logs.options(**dict(option.split("=", 1) for option in options)).load()
writer = logs.select("offset", "body").coalesce(1).writeStream.format("parquet")
writer = writer.option("path", folder).option("checkpointLocation", f"{folder}.checkpoint")
writer = writer.trigger(processingTime="500 milliseconds")
ended = threading.Event()


def run():
    """One life of the query after the other."""
    while not ended.is_set():
        query = writer.start()
        queries[:] = [query]
        print("started", flush=True)
        try:
            query.awaitTermination()
        except PySparkException as error:
            print(f"failed {str(error).splitlines()[0][:300]}", flush=True)
        time.sleep(0.2)


queries = []
thread = threading.Thread(target=run)
thread.start()
for _ in sys.stdin:
    queries[0].stop()
ended.set()
while thread.is_alive():
    for query in queries:
        query.stop()
    thread.join(0.5)
spark.stop()
