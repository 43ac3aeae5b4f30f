#!/usr/bin/env python3
"""Asks the Parquet output of the jobs, as the table `logs`.

query.py .run/logs "SELECT severity, count(*) FROM logs GROUP BY severity"
"""

from __future__ import annotations

import argparse

from pyspark.errors import AnalysisException, PySparkException

import local_spark
from fanout_source import console, job
from machine import SetupError
from program import run

_MOST_ROWS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", help="folder of the Parquet files")
    parser.add_argument("sql", help="what to ask")
    given = parser.parse_args()
    with local_spark.session("query") as spark:
        try:
            spark.read.parquet(given.path).createOrReplaceTempView("logs")
        except AnalysisException as error:
            raise SetupError(
                f"nothing has been written to {given.path} yet: make parquet"
            ) from error
        try:
            table = spark.sql(given.sql)._show_string(_MOST_ROWS, truncate=False)
            print("\n".join(map(console.escaped, table.splitlines())))
        except PySparkException as error:
            raise SetupError(job.explain(error)) from error


if __name__ == "__main__":
    run("query", main)
