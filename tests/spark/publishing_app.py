"""A Spark application that publishes a folder of Parquet files, two a batch, and ends.

Usage: publishing_app.py <master> <folder> <exchange>; the broker is `FANOUT_URL`.
"""

import sys

from pyspark.sql import SparkSession

master, folder, exchange = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.log.level", "ERROR")
    .getOrCreate()
)
rows = spark.readStream.schema("body string").option("maxFilesPerTrigger", 2).parquet(folder)
query = (
    rows.writeStream.format("fanout")
    .option("exchange", exchange)
    .option("checkpointLocation", f"{folder}.checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.stop()
