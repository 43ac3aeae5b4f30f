"""Log records, and counts of them, on a screen; coloured where there is a terminal."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from . import job
from .severity import SEVERITIES

_COLOURS = {"debug": "2", "warning": "33", "error": "31", "critical": "1;31"}
_LONGEST_MESSAGE = 10_000
_LONGEST_BAR = 40
_MOST_ROWS = 1000
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")


def show(records: DataFrame) -> DataStreamWriter:
    """A writer that prints what `logs.parse` gives, a line each, in the order of receipt."""
    shown = records.select(
        # As text: a datetime of Python has no year 10000, but somebody's clock may.
        f.date_format("time", "HH:mm:ss.SSS"),
        "severity",
        "host",
        f.when(f.length("message") <= _LONGEST_MESSAGE, f.col("message")).otherwise(
            f.concat(f.left("message", f.lit(_LONGEST_MESSAGE)), f.lit("…"))
        ),
    )
    coloured = on_a_terminal()
    return _print(shown, lambda rows: (record_line(*row, coloured=coloured) for row in rows))


def table(records: DataFrame) -> DataStreamWriter:
    """Spark's own console, with what a person can read of the records."""
    readable = records.drop("body").writeStream.format("console")
    return readable.option("truncate", False).option("numRows", _MOST_ROWS)


def draw(counts: DataFrame) -> DataStreamWriter:
    """A writer that draws counts (`window`, `severity`, `host`, `count`) as bars."""
    shown = counts.select(
        f.date_format("window.start", "yyyy-MM-dd HH:mm:ss"),
        f.date_format("window.end", "HH:mm:ss"),
        "severity",
        "host",
        "count",
    )
    coloured = on_a_terminal()
    return _print(shown, lambda rows: count_lines(rows, coloured=coloured))


def record_line(time: str, severity: str, host: str | None, message: str, *, coloured: bool) -> str:
    """One record as one line, whatever is in it."""
    return _painted(f"{time} {severity:8} {host or '-':10} {message}", severity, coloured)


def count_lines(rows: Iterable[Any], *, coloured: bool) -> Iterator[str]:
    """Windows in their order, in each the worst first, with bars of one scale."""
    ordered = sorted(rows, key=lambda row: (row[0], -_rank(row[2]), row[2], row[3] or ""))
    most = max((row[4] for row in ordered), default=1)
    for (start, end), window in itertools.groupby(ordered, key=lambda row: (row[0], row[1])):
        yield f"{start} to {end}"
        for *_, severity, host, count in window:
            bar = "█" * max(1, round(_LONGEST_BAR * count / most))
            text = f"  {severity:8} {host or '-':10} {count:9,} {bar}"
            yield _painted(text, severity, coloured)


def on_a_terminal() -> bool:
    """Whether a person sees our stdout; NO_COLOR and FORCE_COLOR say otherwise.

    Under `spark-submit` our stdout is a pipe to the JVM, and the JVM's is what people see.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR") or sys.stdout.isatty():
        return True
    try:
        stdout = os.readlink(f"/proc/{os.getppid()}/fd/1")
    except OSError:
        return False
    return job.under_spark_submit() and stdout.startswith(_TERMINALS)


def _print(rows: DataFrame, lines: Callable[[Iterable[Any]], Iterable[str]]) -> DataStreamWriter:
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # no character ends the query

    def write(batch: DataFrame, _number: int) -> None:
        try:
            for line in lines(batch.toLocalIterator()):
                sys.stdout.write(line + "\n")
            sys.stdout.flush()
            if job.is_stdout_closed():
                job.stop()
        except BrokenPipeError:  # whoever reads our output has seen enough
            job.stop()
        except (Py4JError, PySparkException) as error:
            # Spark searches the text of a Py4JError with a pattern that overflows its stack.
            raise job.JobFailed(job.explain(error)) from None

    return rows.writeStream.foreachBatch(write)


def _painted(text: str, severity: str, coloured: bool) -> str:
    colour = _COLOURS.get(severity) if coloured else None
    return f"\x1b[{colour}m{escaped(text)}\x1b[0m" if colour else escaped(text)


def escaped(text: str) -> str:
    """Without anything that could move the cursor or pretend to be another line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else 1
