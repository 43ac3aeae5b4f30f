"""Log records out of messages: what the source delivers, as columns that people ask for.

    time timestamp, severity string, host string, logger string, message string

A body is a record as `FanoutHandler` writes it (JSON), or the text of RabbitMQ's tutorial with or
without `severity:` before it, or anything else, which is then the message as it is. What a body
does not say, the message's properties do: header `severity`, header `host`, `timestamp`, and the
time of receipt. Nothing that anyone publishes makes it fail, whatever Spark's ANSI mode.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from .severity import SEVERITIES

_RECORD = "time string, severity string, host string, logger string, message string"
_OTHER_NAMES = {"warn": "warning", "err": "error", "crit": "critical", "fatal": "critical"}
_PREFIX = rf"(?is)^[\s\ufeff]*({'|'.join((*SEVERITIES, *_OTHER_NAMES))})\s*:\s*(.*)$"


def parse(messages: DataFrame) -> DataFrame:
    """The columns of log records instead of the messages'; `received_at`, `body`, `offset` stay.

    Needs the columns `body`, `headers`, `timestamp`, `received_at` and `offset`.
    """
    text = f.make_valid_utf8(f.col("body").cast("string"))
    record = f.from_json(text, _RECORD)
    has_prefix = f.regexp_like(text, f.lit(_PREFIX))
    parsed = messages.select(
        "*",
        text.alias("_text"),
        f.when(record.message.isNotNull(), record).alias("_record"),
        f.when(has_prefix, f.lower(f.regexp_extract(text, _PREFIX, 1))).alias("_prefix"),
    )
    known = f.col("_record")
    severity = f.coalesce(
        f.nullif(f.lower(f.trim(known.severity)), f.lit("")),
        f.when(known.isNull(), f.col("_prefix")),
        f.lower(f.try_element_at("headers", f.lit("severity"))),
        f.lit("info"),
    )
    date = f.when(known.time.contains("-"), known.time)  # a number alone would be a year
    plain = f.when(f.col("_prefix").isNotNull(), f.regexp_extract("_text", _PREFIX, 2)).otherwise(
        f.col("_text")
    )
    return parsed.select(
        f.coalesce(f.try_to_timestamp(date), "timestamp", "received_at").alias("time"),
        _by_its_usual_name(severity).alias("severity"),
        f.coalesce(known.host, f.try_element_at("headers", f.lit("host"))).alias("host"),
        known.logger.alias("logger"),
        f.coalesce(known.message, plain).alias("message"),
        "received_at",
        "body",
        "offset",
    )


def timely(records: DataFrame, watermark: str) -> DataFrame:
    """Records whose `time` Spark may aggregate by; later ones than by the watermark are left out.

    Nobody's clock is ahead of ours: one from the future would make all others late.
    """
    return records.withColumn("time", f.least("time", "received_at")).withWatermark(
        "time", watermark
    )


def at_least(severity: str, records: DataFrame) -> DataFrame:
    """The records of this severity and above; one that nobody knows counts as info."""
    return records.where(rank(f.col("severity")) >= SEVERITIES.index(severity))


def rank(severity: Column) -> Column:
    """0 for debug, 4 for critical; a severity that nobody knows counts as info."""
    position = f.array_position(f.array(*map(f.lit, SEVERITIES)), severity)
    return f.when(position > 0, position - 1).otherwise(f.lit(1))


def _by_its_usual_name(severity: Column) -> Column:
    usual = f.create_map(*(f.lit(name) for pair in _OTHER_NAMES.items() for name in pair))
    return f.coalesce(f.try_element_at(usual, severity), severity)
