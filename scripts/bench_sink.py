#!/usr/bin/env python3
"""How fast rows are published: `df.write.format("fanout")`, every message confirmed, against a bare
pika loop without confirms.

Both send the same records with the same properties to the same exchange with one queue bound,
several times in turn, and are timed until all are in the queue; the first write, which warms up
Spark, is not counted. The last line is JSON; `rate_ratio` is ours over pika's, of each round, and
then the median. CPU is that of the whole process tree, Spark's JVM included, broker apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import broker
import local_spark
from bench_emit import await_all, send_with_pika
from bench_messages import as_rows
from fanout_source.connection import open_connection
from fanout_source.log_record import Message
from measured import Measured
from program import run
from progress import Progress
from sample_logs import sample_logs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    running = broker.start()
    messages = list(sample_logs(arguments.count, size=200, seed=1))
    with local_spark.session("bench sink") as spark, tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.Table.from_batches([as_rows(messages)]), f"{folder}/rows.parquet")
        _measure(spark, running, f"{folder}/rows.parquet", messages, arguments.rounds)


def _measure(
    spark: SparkSession, running: broker.Broker, path: str, messages: list[Message], rounds: int
) -> None:
    count, exchange = len(messages), f"bench-{uuid4().hex[:8]}"
    rows = spark.read.parquet(path).repartition(2).cache()
    rows.count()
    ours, bare = Measured("sink, confirmed"), Measured("bare pika, no confirms")
    senders: dict[Measured, Callable[[], None]] = {
        ours: lambda: _write(rows, running.url, exchange),
        bare: lambda: send_with_pika(running.address, exchange, messages),
    }
    watcher = open_connection(running.address)
    channel = watcher.channel()
    try:
        channel.exchange_declare(exchange, "fanout")
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, exchange)

        with Progress("rounds", 2 * (rounds + 1)) as progress:
            for turn in range(rounds + 1):
                for side in (bare, ours) if turn % 2 else (ours, bare):
                    with side.time():
                        senders[side]()
                        await_all(watcher, channel, queue, count)
                    channel.queue_purge(queue)
                if not turn:  # has warmed up
                    for side in (ours, bare):
                        side.forget()
                progress.update(2 * (turn + 1))
        channel.exchange_delete(exchange)
    finally:
        watcher.close()
    _report(count, ours, bare)


def _write(rows: DataFrame, url: str, exchange: str) -> None:
    rows.write.format("fanout").options(url=url, exchange=exchange).mode("append").save()


def _report(count: int, ours: Measured, bare: Measured) -> None:
    for side in (ours, bare):
        rate, cpu = side.rate(count), side.cpu_us(count)
        print(f"{side.name:24} {rate:10,.0f} msg/s {cpu:8.1f} µs CPU/msg")
    ratios = [b / a for a, b in zip(ours.seconds, bare.seconds, strict=True)]
    figures = {
        "rate_ratio": round(statistics.median(ratios), 2),
        "rate_ratios": [round(ratio, 2) for ratio in ratios],
        "messages": count,
        "sink": ours.figures(count),
        "pika": bare.figures(count),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    run("bench_sink", main)
