"""A real Spark for every test here, with Python workers in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from sample_logs import sample_logs
from spark_processes import SHORT_LIVED, Job, kept_in
from waiting import until

SUBSCRIBER = Path(__file__).with_name("subscriber.py")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_SUBMIT_OPTS"] = SHORT_LIVED
    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[2]").appName("tests")
    session = builder.config(map=settings).getOrCreate()
    yield session
    session.stop()
    session.sparkContext._gateway.shutdown()  # type: ignore[union-attr]


@pytest.fixture
def read(spark: SparkSession, url: str, tmp_path: Path) -> Callable[..., DataFrame]:
    """A stream of what is published, with these options."""

    def load(schema: str | StructType | None = None, **options: Any) -> DataFrame:
        reader = spark.readStream.format("fanout")
        reader = reader.options(**{"url": url, "spoolDir": tmp_path / "spool", **options})
        return (reader if schema is None else reader.schema(schema)).load()

    return load


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., StreamingQuery]]:
    """Starts a query that writes Parquet to `<name>`, and waits until it is subscribed."""
    started: list[StreamingQuery] = []

    def begin(
        frame: DataFrame, name: str = "out", *, subscribed: bool = True, **trigger: Any
    ) -> StreamingQuery:
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / name))
        writer = writer.option("checkpointLocation", str(tmp_path / f"{name}.checkpoint"))
        query = (writer.trigger(**trigger) if trigger else writer).start()
        started.append(query)
        if subscribed:
            until(query, lambda: query.lastProgress is not None, "the query is subscribed")
        return query

    yield begin
    for query in started:
        query.stop()


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> Callable[..., list[Any]]:
    """What is in the Parquet output of a query, ordered by offset."""

    def collect(name: str = "out") -> list[Any]:
        try:
            written = spark.read.parquet(str(tmp_path / name))
        except AnalysisException as error:
            if error.getCondition() not in ("UNABLE_TO_INFER_SCHEMA", "PATH_NOT_FOUND"):
                raise
            return []  # no batch has been committed yet
        return written.orderBy("offset").collect()

    return collect


@pytest.fixture
def subscriber(url: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a Spark application of its own that subscribes and writes Parquet to `<name>`."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(name: str, *, broker_url: str = url, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(SUBSCRIBER), str(tmp_path / name)]
        command += [f"{key}={value}" for key, value in options.items()]
        environment = {
            **os.environ,
            "FANOUT_URL": broker_url,
            "PYSPARK_PYTHON": sys.executable,
            **kept_in(tmp_path),
        }
        log = open(tmp_path / f"{name}.log", "ab")  # noqa: SIM115
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log,
            start_new_session=True, cwd=tmp_path,
        )  # fmt: skip
        log.close()
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.stdin.close()  # type: ignore[union-attr]
            process.wait(60)


@pytest.fixture
def submit(url: str, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Starts a job under `spark-submit`, with what it leaves behind in `<folder>`."""
    started: list[Job] = []

    def begin(
        name: str, *arguments: object, broker_url: str = url, folder: str = "job", **spark: Any
    ) -> Job:
        started.append(Job(name, arguments, broker_url, tmp_path / folder, **spark))
        return started[-1]

    yield begin
    for job in started:
        if job.process.poll() is None:
            job.end(signal.SIGKILL)


@pytest.fixture
def emit(publish) -> Callable[[int], list[str]]:
    """Publishes generated records; returns what they say."""

    def send(count: int) -> list[str]:
        bodies = [record.body for record in sample_logs(count)]
        publish(bodies)
        return [json.loads(body)["message"] for body in bodies]

    return send
