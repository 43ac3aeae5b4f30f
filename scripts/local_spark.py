"""The Spark of this checkout: its own Python, its own settings, no help from the shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from fanout_source import job

PROJECT = Path(__file__).resolve().parent.parent


def environment(**more: str) -> dict[str, str]:
    """What `spark-submit` needs in its environment to run a job of ours."""
    own_programs = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": os.pathsep.join([own_programs, os.environ.get("PATH", os.defpath)]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(PROJECT / "conf"),
        **more,
    }


@contextmanager
def session(name: str) -> Iterator[SparkSession]:
    """A session in this process, with the same settings."""
    os.environ.update(environment())
    job.say_errors_once()
    spark = SparkSession.builder.appName(name).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
