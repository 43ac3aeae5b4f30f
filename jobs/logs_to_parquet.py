#!/usr/bin/env python3
"""Writes every log record to Parquet, once, in folders by date.

    spark-submit jobs/logs_to_parquet.py --path logs

Started again on the same checkpoint, it goes on where it was.
"""

from fanout_source import job, logs, parquet


def main() -> None:
    parser = job.arguments(__doc__)
    parquet.add_arguments(parser)
    parser.add_argument(
        "--available-now", action="store_true", help="write what was received before, and end"
    )
    given = parser.parse_args()
    trigger = {"availableNow": True} if given.available_now else {"processingTime": given.trigger}
    with job.session("logs to Parquet") as spark:
        records = logs.parse(job.subscribe(spark, given))
        writer = parquet.write(records, given.path, given.checkpoint, files=given.files)
        query = writer.queryName("parquet").trigger(**trigger).start()
        job.await_end([query], may_end=given.available_now)


if __name__ == "__main__":
    job.run(main)
