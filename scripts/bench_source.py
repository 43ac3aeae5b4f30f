#!/usr/bin/env python3
"""What a trigger costs: our source against Spark's own `rate-micro-batch`, one row into Parquet.

Both run in the same session, in turn, several rounds; the first triggers of all are not counted.
Our source has a backlog and takes one message a trigger, so that neither waits for data. Then one
query is left without messages, to see what it costs to wait. The last line is JSON;
`trigger_ratio` is ours over Spark's: of each round, and then the median.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import broker
from fanout_source.publisher import Publisher
from processes import cpu_seconds, descendants
from program import run
from progress import Progress


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--triggers", type=int, default=40, help="in each round (default: 40)")
    parser.add_argument("--idle-seconds", type=float, default=20)
    arguments = parser.parse_args()
    running = broker.start()
    os.environ["FANOUT_URL"] = running.url
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = _session()
    with tempfile.TemporaryDirectory() as folder:
        _measure(spark, running, Path(folder), arguments)
    spark.stop()


def _session() -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "FATAL",  # a query that is stopped aborts its task
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    return SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()


def _measure(
    spark: SparkSession, running: broker.Broker, folder: Path, arguments: argparse.Namespace
) -> None:
    rate = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=1)
    ours = spark.readStream.format("fanout").option("spoolDir", str(folder / "spool"))
    ours = ours.option("exchange", "bench-source").option("maxOffsetsPerTrigger", 1)

    def publish() -> None:
        with Publisher(running.address, "bench-source") as publisher:
            for number in range(arguments.triggers):
                publisher.publish(b'{"message": "%d"}' % number)

    times: dict[str, list[float]] = {"rate-micro-batch": [], "fanout": []}
    with Progress("triggers", 2 * (arguments.rounds + 1) * arguments.triggers) as progress:
        for number in range(arguments.rounds + 1):
            for name, frame, fill in (
                ("rate-micro-batch", rate.load(), lambda: None),
                ("fanout", ours.load(), publish),
            ):
                median = _trigger_ms(frame, folder / f"{name}-{number}", arguments.triggers, fill)
                if number:  # the first round warms up
                    times[name].append(median)
                done = 2 * number + (name == "fanout") + 1
                progress.update(done * arguments.triggers)
    idle = _idle_share(ours.load(), folder / "idle", arguments.idle_seconds)
    for name, medians in times.items():
        print(f"{name:18} {statistics.median(medians):7.0f} ms a trigger")
    print(f"idle               {100 * idle:7.1f} % of a core")
    pairs = zip(times["fanout"], times["rate-micro-batch"], strict=True)
    ratio = round(statistics.median(a / b for a, b in pairs), 3)
    print(json.dumps({"trigger_ratio": ratio, "trigger_ms": times, "idle_share": round(idle, 4)}))


def _start(frame: DataFrame, path: Path) -> StreamingQuery:
    writer = frame.writeStream.format("parquet").option("path", str(path))
    query = writer.option("checkpointLocation", f"{path}.checkpoint").start()
    _wait(query, lambda: query.lastProgress is not None)
    return query


def _trigger_ms(frame: DataFrame, path: Path, triggers: int, fill: Callable[[], None]) -> float:
    """The median over the second half of the triggers that had a row."""
    query = _start(frame, path)
    fill()
    found: dict[int, float] = {}

    def enough() -> bool:
        for progress in query.recentProgress:
            if progress.numInputRows == 1:
                found[progress.batchId] = progress.durationMs["triggerExecution"]
        return len(found) >= triggers

    _wait(query, enough)
    query.stop()
    return statistics.median([found[batch] for batch in sorted(found)][triggers // 2 :])


def _idle_share(frame: DataFrame, path: Path, seconds: float) -> float:
    """The part of a core that a query without messages takes, beyond what the session takes."""

    def used() -> float:
        before = cpu_seconds([os.getpid(), *descendants(os.getpid())])
        time.sleep(seconds)
        return (cpu_seconds([os.getpid(), *descendants(os.getpid())]) - before) / seconds

    query = _start(frame, path)
    time.sleep(3)
    with_query = used()
    query.stop()
    time.sleep(1)
    return with_query - used()


def _wait(query: StreamingQuery, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        if query.exception() is not None:
            raise query.exception()  # type: ignore[misc]
        if time.monotonic() > deadline:
            raise TimeoutError("the query does not get on")
        time.sleep(0.05)


if __name__ == "__main__":
    run("bench_source", main)
