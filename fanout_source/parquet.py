"""Log records in Parquet: every record once, in folders by the day of its receipt."""

from __future__ import annotations

import argparse
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from . import job
from .errors import OptionError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What a job must know to `write`."""
    parser.add_argument("--path", required=True, type=_folder, help="folder of the Parquet files")
    parser.add_argument("--checkpoint", help="default: <path>.checkpoint")
    parser.add_argument(
        "--trigger", type=job.interval, default="30 seconds", help="how often (default: 30 seconds)"
    )
    parser.add_argument(
        "--files", type=job.whole_number(1), default=1, metavar="N",
        help="how many files to write at a trigger, by as many tasks (default: 1)",
    )  # fmt: skip


def write(
    records: DataFrame, path: str, checkpoint: str | None = None, *, files: int = 1
) -> DataStreamWriter:
    """A writer of what `logs.parse` gives; `files` are written at each trigger, side by side.

    The day is that of the receipt: what records say of themselves could name any number of folders.
    """
    checkpoint = checkpoint or f"{_folder(path)}.checkpoint"
    # Spark would make these two itself, and say less about why it cannot.
    _make_folder(records.sparkSession, "path", path, "_spark_metadata")
    _make_folder(records.sparkSession, "checkpoint", checkpoint, "offsets")
    _require_its_checkpoint(records.sparkSession, path, checkpoint)
    dated = records.withColumn("date", f.to_date("received_at")).coalesce(files)
    writer = dated.writeStream.format("parquet").partitionBy("date")
    return writer.option("path", path).option("checkpointLocation", checkpoint)


def _folder(text: str) -> str:
    if not text.strip("/ "):
        raise argparse.ArgumentTypeError(f"{text!r} is no folder for Parquet files")
    return text.rstrip("/")


def _require_its_checkpoint(spark: SparkSession, path: str, checkpoint: str) -> None:
    """Spark skips batches whose numbers the output has already: with a checkpoint that is not
    the output's own, those would be new messages."""
    written = _last_batch(spark, f"{path}/_spark_metadata")
    if written > _last_batch(spark, f"{checkpoint}/offsets"):
        raise OptionError(
            f"{path} was written with another checkpoint than {checkpoint}, and Spark would skip "
            "messages: give the checkpoint that belongs to it, or another path"
        )


def _make_folder(spark: SparkSession, what: str, folder: str, inner: str) -> None:
    try:
        files, location = _hadoop(spark, f"{folder}/{inner}")
        if files.mkdirs(location):
            return
        reason = "it cannot be made"
    except Py4JError as error:
        reason = job.explain(error)
    raise OptionError(
        f"cannot write to the {what} {folder}: {reason}; choose a folder that you may write to"
    )


def _last_batch(spark: SparkSession, folder: str) -> int:
    """The number of the last batch in one of Spark's logs; -1 where there is none."""
    files, location = _hadoop(spark, folder)
    if not files.exists(location):
        return -1
    names = (status.getPath().getName() for status in files.listStatus(location))
    numbers = (name.removesuffix(".compact") for name in names)
    return max((int(number) for number in numbers if number.isdigit()), default=-1)


def _hadoop(spark: SparkSession, folder: str) -> tuple[Any, Any]:
    """The file system that a folder is in, and its name there."""
    context: Any = spark.sparkContext
    location = context._jvm.org.apache.hadoop.fs.Path(folder)
    return location.getFileSystem(context._jsc.hadoopConfiguration()), location
