#!/usr/bin/env python3
"""Counts log records by severity and host, in windows of time, and draws the counts.

    spark-submit jobs/severity_rates.py --window "10 seconds"

A window is drawn again whenever its counts have changed, until the watermark has passed it.
"""

from pyspark.sql import functions as f

from fanout_source import console, job, logs


def main() -> None:
    parser = job.arguments(__doc__)
    parser.add_argument(
        "--window", type=job.window, default="10 seconds", help="default: 10 seconds"
    )
    parser.add_argument(
        "--watermark",
        type=job.interval,
        default="1 minute",
        help="how late a record may be (default: 1 minute)",
    )
    parser.add_argument(
        "--trigger", type=job.interval, default="5 seconds", help="default: 5 seconds"
    )
    given = parser.parse_args()
    with job.temporary_spool() as spool, job.session("severity rates") as spark:
        records = logs.parse(job.subscribe(spark, given, spoolDir=spool))
        counts = (
            logs.timely(records, given.watermark)
            .groupBy(f.window("time", given.window), "severity", "host")
            .count()
        )
        writer = console.draw(counts).queryName("rates").outputMode("update")
        job.await_end([writer.trigger(processingTime=given.trigger).start()])


if __name__ == "__main__":
    job.run(main)
