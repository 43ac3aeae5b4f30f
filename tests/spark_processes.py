"""What Spark processes of the tests have in common."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import local_spark
from processes import descendants

JOBS = local_spark.PROJECT / "jobs"
# A JVM that lives for seconds takes a third less CPU when it does not optimise itself for hours.
SHORT_LIVED = "-XX:TieredStopAtLevel=1"
_NOISE = re.compile("Using incubator modules|Current batch is falling behind")


def kept_in(folder: Path) -> dict[str, str]:
    """An environment in which whatever a killed Spark leaves is in this folder."""
    return {
        "TMPDIR": str(folder),
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={folder} {SHORT_LIVED}",
    }


class Job:
    """A job of ours under `spark-submit`, and what it has said."""

    def __init__(
        self,
        name: str,
        arguments: Iterable[object],
        url: str,
        folder: Path,
        *,
        options: Iterable[str] = (),
        python: Path | None = None,
    ) -> None:
        """`options` are those of spark-submit; `python` comes first on the path."""
        self.name = name
        folder.mkdir(exist_ok=True)
        self._out, self._err = (folder / f"{name}.{end}" for end in ("out", "err"))
        environment = local_spark.environment(
            FANOUT_URL=url, XDG_STATE_HOME=str(folder), **kept_in(folder)
        )
        # Without the caller's help: the jobs find their Python by themselves.
        del environment["PYSPARK_PYTHON"]
        if python is not None:
            environment["PATH"] = f"{python.parent}{os.pathsep}{environment['PATH']}"
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = subprocess.Popen(
                ["spark-submit", *options, JOBS / f"{name}.py", *map(str, arguments)],
                env=environment, stdout=out, stderr=err, start_new_session=True, cwd=folder,
            )  # fmt: skip

    @property
    def lines(self) -> list[str]:
        return self._out.read_text().splitlines()

    @property
    def errors(self) -> list[str]:
        return [line for line in self._err.read_text().splitlines() if not _NOISE.search(line)]

    def end(self, how: signal.Signals) -> int:
        """Send the signal to every process of the job; its exit code."""
        os.killpg(self.process.pid, how)
        return self.process.wait(60)


def written(spark: SparkSession, path: Path) -> list[str]:
    """What is in a job's Parquet output, in the order of receipt."""
    try:
        rows = spark.read.parquet(str(path)).orderBy("offset").collect()
    except AnalysisException:
        return []  # no batch has been committed yet
    return [row.message for row in rows]


def kill_family(process: subprocess.Popen[bytes]) -> None:
    """Driver, JVM and workers at once, as when a machine goes."""
    for pid in [process.pid, *descendants(process.pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(60)
