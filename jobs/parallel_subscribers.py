#!/usr/bin/env python3
"""Writes log records to Parquet and shows them, at the same time, as independent subscribers.

    spark-submit jobs/parallel_subscribers.py --path logs --subscribers 2

Each query has a queue of its own and gets every record. Further subscribers write Parquet of
their own beside the first: logs-2, logs-3 and so on.
"""

from fanout_source import console, job, logs, parquet


def main() -> None:
    parser = job.arguments(__doc__)
    parquet.add_arguments(parser)
    parser.add_argument(
        "--subscribers", type=job.whole_number(0), default=0, metavar="N",
        help="further ones (default: 0)",
    )  # fmt: skip
    given = parser.parse_args()
    suffixes = ["", *(f"-{number}" for number in range(2, given.subscribers + 2))]
    with job.temporary_spool() as spool, job.session("parallel subscribers") as spark:
        records = logs.parse(job.subscribe(spark, given, spoolDir=spool))
        writers = [console.show(records).queryName("console")]
        for suffix in suffixes:
            checkpoint = given.checkpoint and given.checkpoint + suffix
            records = logs.parse(job.subscribe(spark, given))
            writer = parquet.write(records, given.path + suffix, checkpoint, files=given.files)
            writer = writer.queryName(f"parquet{suffix}").trigger(processingTime=given.trigger)
            writers.append(writer)
        job.await_end([writer.start() for writer in writers])


if __name__ == "__main__":
    job.run(main)
