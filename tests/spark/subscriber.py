"""A Spark application that subscribes and writes Parquet, until its stdin is closed. A line there
stops Spark with the query running.

Usage: subscriber.py <folder> [option=value …]; the broker is `FANOUT_URL`, `SPARK_MASTER` what
Spark runs on, `EXECUTOR_FAILPOINTS` where its executors fail.
"""

import os
import sys
import threading

from pyspark.sql import SparkSession

folder, *options = sys.argv[1:]
spark = (
    SparkSession.builder.master(os.environ.get("SPARK_MASTER", "local[2]"))
    .config("spark.executorEnv.FANOUT_FAILPOINTS", os.environ.get("EXECUTOR_FAILPOINTS", ""))
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.log.level", "ERROR")
    .getOrCreate()
)
logs = spark.readStream.format("fanout").option("spoolDir", f"{folder}.spool")
logs = logs.options(**dict(option.split("=", 1) for option in options)).load()
query = (
    logs.writeStream.format("parquet")
    .option("path", folder)
    .option("checkpointLocation", f"{folder}.checkpoint")
    .start()
)


def stop_with_stdin():
    if sys.stdin.readline():
        spark.stop()
    query.stop()


threading.Thread(target=stop_with_stdin, daemon=True).start()
query.awaitTermination()
spark.stop()
