#!/usr/bin/env python3
"""Shows every log record on the screen, a line each, from now on.

spark-submit jobs/logs_to_console.py --severity warning
"""

from fanout_source import console, job, logs
from fanout_source.severity import SEVERITIES


def main() -> None:
    parser = job.arguments(__doc__)
    parser.add_argument("--severity", choices=SEVERITIES, default="debug", help="this and above")
    parser.add_argument("--raw", action="store_true", help="as Spark's own console table")
    given = parser.parse_args()
    with job.temporary_spool() as spool, job.session("logs to console") as spark:
        records = logs.parse(job.subscribe(spark, given, spoolDir=spool))
        records = logs.at_least(given.severity, records)
        writer = console.table(records) if given.raw else console.show(records)
        job.await_end([writer.queryName("console").start()])


if __name__ == "__main__":
    job.run(main)
