#!/usr/bin/env python3
"""Publishes an alert for each host of which too many log records are errors, to another exchange.

    spark-submit jobs/alerts.py --threshold 0.2 --window "1 minute"

A window is judged once: when records come that are later than its end by the watermark. An alert
is a log record itself: whatever shows logs shows alerts, too (--exchange alerts).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from fanout_source import job, logs


def main() -> None:
    parser = job.arguments(__doc__)
    parser.add_argument(
        "--to", type=job.exchange, default="alerts", metavar="EXCHANGE",
        help="where to publish (default: alerts)",
    )  # fmt: skip
    parser.add_argument(
        "--threshold", type=job.share, default=0.1, help="share of errors (default: 0.1)"
    )
    parser.add_argument(
        "--least", type=job.whole_number(1), default=10, metavar="N",
        help="judge windows with so many records of a host (default: 10)",
    )  # fmt: skip
    parser.add_argument("--window", type=job.window, default="1 minute", help="default: 1 minute")
    parser.add_argument(
        "--watermark",
        type=job.interval,
        default="10 seconds",
        help="how late a record may be (default: 10 seconds)",
    )
    parser.add_argument(
        "--trigger", type=job.interval, default="5 seconds", help="default: 5 seconds"
    )
    parser.add_argument(
        "--checkpoint", help="a folder, to go on after a restart (default: begin anew)"
    )
    given = parser.parse_args()
    if given.to == given.exchange:
        parser.error(f"alerts to {given.to!r} would be read as logs: choose another --to")
    with job.temporary_spool() as spool, job.session("alerts") as spark:
        kept = {"spoolDir": spool} if given.checkpoint is None else {}
        records = logs.parse(job.subscribe(spark, given, **kept))
        alerts = as_messages(find(records, given.window, given.watermark), given)
        writer = job.publish(alerts, given, given.to).queryName("alerts")
        writer = writer.option("checkpointLocation", given.checkpoint or f"{spool}/checkpoint")
        job.await_end([writer.trigger(processingTime=given.trigger).start()])


def find(records: DataFrame, window: str, watermark: str) -> DataFrame:
    """How many records, and how many errors, there were of each host in each window."""
    is_error = logs.rank(f.col("severity")) >= logs.rank(f.lit("error"))
    return (
        logs.timely(records, watermark)
        .groupBy(f.window("time", window), f.coalesce("host", f.lit("-")).alias("host"))
        .agg(f.count("*").alias("records"), f.count_if(is_error).alias("errors"))
    )


def as_messages(counts: DataFrame, given) -> DataFrame:
    """Those windows that pass the threshold, as log records."""
    share = f.col("errors") / f.col("records")
    found = counts.where((f.col("records") >= given.least) & (share >= given.threshold))
    severity = f.lit("critical")
    record = f.struct(
        f.col("window.end").alias("time"),
        severity.alias("severity"),
        "host",
        f.lit("fanout.alerts").alias("logger"),
        f.format_string(
            "%d of %d records (%.0f %%) were errors from %s to %s",
            "errors", "records", 100 * share, _clock("window.start"), _clock("window.end"),
        ).alias("message"),
        "errors",
        "records",
    )  # fmt: skip
    return found.select(
        f.to_json(record).alias("body"),
        f.create_map(f.lit("severity"), severity, f.lit("host"), "host").alias("headers"),
        f.lit("application/json").alias("content_type"),
        f.col("window.end").alias("timestamp"),
        f.lit("alerts").alias("app_id"),
    )


def _clock(column: str) -> Column:
    return f.date_format(column, "HH:mm:ss")


if __name__ == "__main__":
    job.run(main)
