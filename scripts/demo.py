#!/usr/bin/env python3
"""Two subscribers and an emitter: logs to disk and to the screen at the same time.

Ends with success when both subscribers got every record, once.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession

import bindings
import broker
import local_spark
from fanout_source import job
from fanout_source.publisher import Publisher
from fanout_source.severity import SEVERITIES
from machine import SetupError
from management import Management
from program import run
from sample_logs import sample_logs

JOBS = local_spark.PROJECT / "jobs"
PATIENCE_SECONDS = 60
STOP_SECONDS = 10
BOLD, GREEN, RED, PLAIN = "\x1b[1m", "\x1b[32m", "\x1b[31m", "\x1b[0m"
COLOUR = re.compile(r"\x1b\[[\d;]*m")


class Job:
    """A job under `spark-submit`, whose lines are shown as they come."""

    def __init__(self, name: str, url: str, folder: Path, *arguments: str) -> None:
        self.name = name
        self.lines: list[str] = []
        self._log = folder / f"{name}.log"
        command = ["spark-submit", str(JOBS / f"{name}.py"), *arguments]
        command += ["--option", f"spoolDir={folder / 'spool'}"]
        colour = {"FORCE_COLOR": "1"} if sys.stdout.isatty() else {}
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                command, env=local_spark.environment(FANOUT_URL=url, **colour),
                stdout=subprocess.PIPE, stderr=log, text=True, encoding="utf-8", errors="replace",
                start_new_session=True,  # Ctrl-C is ours, and we pass it on
            )  # fmt: skip
        self._reader = threading.Thread(target=self._show, daemon=True)
        self._reader.start()

    def require_life(self) -> None:
        if (code := self._process.poll()) is not None:
            lines = self._log.read_text(errors="replace").strip().splitlines() or ["no output"]
            raise SetupError(f"{self.name} ended with exit code {code}: {lines[-1]}")

    def ask_to_end(self) -> None:
        self._signal(signal.SIGTERM)

    def end(self) -> None:
        """By force, when asking did not help."""
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
        self._reader.join()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _show(self) -> None:
        for line in self._process.stdout or ():
            self.lines.append(COLOUR.sub("", line.rstrip("\n")))
            print(line, end="", flush=True)


def main() -> int:
    given = _parse()
    logs: Path = given.folder / "logs"
    given.folder.mkdir(parents=True, exist_ok=True)
    for left in ("logs", "logs.checkpoint", "spool"):
        shutil.rmtree(given.folder / left, ignore_errors=True)
    used = broker.running() or broker.start()
    _head("1. Two subscribers", ", each a Spark application: Parquet and console …")
    with _subscribers(used, logs) as (parquet, console):
        _head(f"2. {given.count:,} log records", f", {given.rate} a second, on the console")
        emitted = _emit(used, given.count, given.rate, parquet, console)
        _await(lambda: len(console.lines) >= given.count, console)
        _head("3. Who is subscribed")
        bindings.show(used)
        _head("4. What is on disk", ", read back from Parquet …")
        with local_spark.session("demo") as spark:
            rows = _await_rows(spark, logs, given.count, parquet)
    _draw(rows)
    print(f"  {sum(1 for _ in logs.rglob('*.parquet'))} files in {os.path.relpath(logs)}")
    _head("5. What each subscriber got")
    shown = (line.split(maxsplit=3)[-1] for line in console.lines)
    complete = [
        _compare("parquet", emitted, (row.message for row in rows)),
        _compare("console", emitted, shown),
    ]
    return 0 if all(complete) else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--count", type=job.whole_number(1), default=1000, help="records (default: 1000)"
    )
    parser.add_argument(
        "--rate", type=job.whole_number(1), default=50, help="records a second (default: 50)"
    )
    parser.add_argument("--folder", type=Path, default=broker.RUN / "demo", help="for its files")
    return parser.parse_args()


@contextmanager
def _subscribers(used: broker.Broker, logs: Path) -> Iterator[tuple[Job, Job]]:
    """Both jobs, subscribed; gone when this ends."""
    before = _queues(used)
    jobs: list[Job] = []
    try:
        to_logs = ("--path", str(logs), "--trigger", "2 seconds")
        jobs.append(Job("logs_to_parquet", used.url, logs.parent, *to_logs))
        jobs.append(Job("logs_to_console", used.url, logs.parent))
        if not _await(lambda: len(_queues(used) - before) >= len(jobs), *jobs):
            raise SetupError(f"the subscribers did not start: see *.log in {logs.parent}")
        yield jobs[0], jobs[1]
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C does not leave them alone
        for each in jobs:
            each.ask_to_end()
        for each in jobs:
            each.end()
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _queues(used: broker.Broker) -> set[str]:
    found = Management(used).get("bindings", used.address.vhost)
    return {binding["destination"] for binding in found if binding["source"] == "logs"}


def _emit(used: broker.Broker, count: int, rate: int, *jobs: Job) -> Counter[str]:
    """Publish the records, and tell what they said."""
    said: Counter[str] = Counter()
    started = time.monotonic()
    with Publisher(used.address, "logs") as publisher:
        for number, message in enumerate(sample_logs(count)):
            time.sleep(max(0.0, started + number / rate - time.monotonic()))
            for each in jobs:
                each.require_life()
            publisher.publish(*message)
            said[json.loads(message.body)["message"]] += 1
    return said


def _await(condition: Callable[[], bool], *jobs: Job) -> bool:
    """Whether it came true in good time, while these jobs ran."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < give_up:
        if condition():
            return True
        for each in jobs:
            each.require_life()
        time.sleep(0.2)
    return False


def _await_rows(spark: SparkSession, logs: Path, count: int, parquet: Job) -> list[Row]:
    rows: list[Row] = []

    def read() -> bool:
        try:
            rows[:] = spark.read.parquet(str(logs)).drop("body").orderBy("offset").collect()
        except AnalysisException:
            return False  # nothing is written yet
        return len(rows) >= count

    _await(read, parquet)
    return rows


def _draw(rows: list[Row]) -> None:
    counts = Counter(row.severity for row in rows)
    most = max(counts.values(), default=1)
    for severity in SEVERITIES:
        bar = "█" * round(40 * counts[severity] / most)
        print(f"  {severity:9} {counts[severity]:6,} {bar}")
    for label, row in (("first", rows[0]), ("last", rows[-1])) if rows else ():
        print(f"  {label:9} {row.time:%H:%M:%S} {row.severity} {row.host}: {row.message}")


def _compare(name: str, emitted: Counter[str], got: Iterable[str]) -> bool:
    """Say whether a subscriber got what was emitted, once; what others emitted does not count."""
    ours = Counter(message for message in got if message in emitted)
    total = emitted.total()
    missing, doubled = (emitted - ours).total(), (ours - emitted).total()
    verdict = (
        _coloured(GREEN, "complete")
        if not missing and not doubled
        else _coloured(RED, f"{missing:,} missing, {doubled:,} doubled")
    )
    print(f"  {name:9} got {total - missing:,} of {total:,}: {verdict}")
    return not missing and not doubled


def _head(title: str, more: str = "") -> None:
    print(f"\n{_coloured(BOLD, title)}{more}\n", flush=True)


def _coloured(colour: str, text: str) -> str:
    return f"{colour}{text}{PLAIN}" if sys.stdout.isatty() else text


if __name__ == "__main__":
    run("demo", main)
