"""The jobs as people run them: under spark-submit, each a process of its own."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import local_spark
from fanout_source.severity import SEVERITIES
from sample_logs import sample_logs
from waiting import wait_until

JOBS = local_spark.PROJECT / "jobs"
ALL = sorted(job.stem for job in JOBS.glob("*.py"))
WRITE_PARQUET = ("logs_to_parquet", "parallel_subscribers")
NOISE = "WARNING: Using incubator modules"


class Job:
    """A job that runs, and what it has said."""

    def __init__(self, name: str, url: str, folder: Path, *arguments: object) -> None:
        self.name = name
        self._out, self._err = (folder / f"{name}.{end}" for end in ("out", "err"))
        environment = local_spark.environment(
            FANOUT_URL=url,
            # What a kill leaves is the test's own.
            TMPDIR=str(folder),
            SPARK_LOCAL_DIRS=str(folder),
            SPARK_SUBMIT_OPTS=f"-Djava.io.tmpdir={folder}",
            XDG_STATE_HOME=str(folder),
        )
        # Without the caller's help: the jobs find their Python by themselves.
        del environment["PYSPARK_PYTHON"]
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = subprocess.Popen(
                ["spark-submit", JOBS / f"{name}.py", *map(str, arguments)],
                env=environment, stdout=out, stderr=err, start_new_session=True, cwd=folder,
            )  # fmt: skip

    @property
    def lines(self) -> list[str]:
        return self._out.read_text().splitlines()

    @property
    def errors(self) -> list[str]:
        return [line for line in self._err.read_text().splitlines() if NOISE not in line]

    def end(self, how: signal.Signals) -> int:
        """Send the signal to every process of the job; its exit code."""
        os.killpg(self.process.pid, how)
        return self.process.wait(60)


@pytest.fixture
def submit(url: str, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    started: list[Job] = []

    def begin(name: str, *arguments: object, broker_url: str = url, folder: str = "job") -> Job:
        own = tmp_path / folder
        own.mkdir(exist_ok=True)
        started.append(Job(name, broker_url, own, *arguments))
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


def messages(lines: list[str]) -> list[str]:
    return [line.split(maxsplit=3)[3] for line in lines]


def test_disk_and_screen_at_the_same_time(
    submit, emit, bound_queues, management, vhost, spark, tmp_path
):
    """Both get all of 10,000. A killed console starts with what flows from then on; a killed
    Parquet job has everything that it had received, though it had not written it."""
    path = tmp_path / "logs"

    def written() -> list[str]:
        return [row.message for row in spark.read.parquet(str(path)).orderBy("offset").collect()]

    def unacked() -> int:
        return sum(queue.get("messages", 1) for queue in management.get("queues", vhost))

    parquet = submit("logs_to_parquet", "--path", path, "--trigger", "1 second", folder="parquet")
    console = submit("logs_to_console")
    wait_until(lambda: len(bound_queues()) == 2, "both are subscribed", 120)
    first = emit(10_000)
    wait_until(lambda: len(console.lines) >= 10_000, "the console has shown all", 90)
    wait_until(lambda: path.exists() and len(written()) >= 10_000, "Parquet has all", 90)
    assert messages(console.lines) == first
    assert written() == first

    console.end(signal.SIGKILL)
    assert parquet.end(signal.SIGTERM) == 0
    wait_until(lambda: not bound_queues(), "nobody is subscribed")
    emit(10)  # nobody gets these

    parquet = submit("logs_to_parquet", "--path", path, "--trigger", "1 hour", folder="parquet")
    console = submit("logs_to_console", "--severity", "warning")
    wait_until(lambda: len(bound_queues()) == 2, "both are subscribed again", 120)
    second = emit(1_000)
    wait_until(lambda: unacked() == 0, "both have received them", 60)
    parquet.end(signal.SIGKILL)
    again = submit(
        "logs_to_parquet", "--path", path, "--available-now", folder="parquet"
    )
    assert again.process.wait(90) == 0, again.errors
    assert written() == first + second

    wait_until(lambda: second[-1] in " ".join(console.lines) or len(console.lines) > 100, "shown")
    worse = [line.split()[1] for line in console.lines]
    assert set(worse) == set(SEVERITIES[2:]), "only warnings and above"
    assert set(messages(console.lines)) <= set(second), "only what flowed from then on"
    assert console.end(signal.SIGINT) == 0
    assert console.errors[1:] == [], "one line says that it is subscribed"


def test_rates_and_parallel_subscribers(submit, emit, bound_queues, spark, tmp_path):
    rates = submit("severity_rates", "--window", "1 hour", "--trigger", "1 second", folder="rates")
    parallel = submit(
        "parallel_subscribers", "--path", tmp_path / "logs", "--subscribers", 2,
        "--trigger", "1 second",
    )  # fmt: skip
    wait_until(lambda: len(bound_queues()) == 5, "five queries are subscribed", 120)
    sent = emit(1_000)
    for path in ("logs", "logs-2", "logs-3"):

        def written(path=tmp_path / path):
            if not (path / "_spark_metadata" / "1").exists():
                return []
            return [row.message for row in spark.read.parquet(str(path)).orderBy("offset").collect()]

        wait_until(lambda: len(written()) >= len(sent), f"{path} has all", 90)
        assert written() == sent
    wait_until(lambda: len(parallel.lines) >= len(sent), "all are on the screen", 90)
    assert messages(parallel.lines) == sent

    def drawn():
        """The last drawing of each line."""
        return {tuple(words[:2]): int(words[2].replace(",", "")) for words in split()}

    def split():
        return [line.split() for line in rates.lines if line.startswith("  ")]

    wait_until(lambda: sum(drawn().values()) >= len(sent), "all are counted", 90)
    assert sum(drawn().values()) == len(sent)
    assert rates.end(signal.SIGTERM) == 0
    assert parallel.end(signal.SIGINT) == 0
    wait_until(lambda: not bound_queues(), "nobody is subscribed")


def test_a_failing_query_ends_its_job_and_is_named(submit, bound_queues, tmp_path, emit):
    job = submit(
        "parallel_subscribers", "--path", tmp_path / "logs", "--subscribers", 1,
        "--trigger", "1 second",
    )  # fmt: skip
    wait_until(lambda: len(bound_queues()) == 3, "three queries are subscribed", 120)
    wait_until((tmp_path / "logs-2.checkpoint" / "commits" / "0").exists, "a batch is done", 60)
    commits = tmp_path / "logs-2.checkpoint" / "commits"
    for file in commits.iterdir():
        file.unlink()
    commits.rmdir()
    commits.write_text("in the way")
    emit(10)
    assert job.process.wait(60) == 1
    [line] = [line for line in job.errors if "INFO fanout" not in line]
    assert line.startswith("parallel_subscribers: query parquet-2 failed: ")
    assert bound_queues() == []


def test_a_mistake_is_one_line(submit, tmp_path):
    """All at once, since each takes a JVM a few seconds to start."""
    (tmp_path / "file").touch()
    nobody = "amqp://guest:secret@127.0.0.1:1/"
    good = {name: ("--path", tmp_path / name) if name in WRITE_PARQUET else () for name in ALL}
    cases = [(name, good[name], "no broker listens at 127.0.0.1:1") for name in ALL]
    for name in WRITE_PARQUET:
        cases += [
            (name, ("--path", tmp_path / "file" / "logs"), "cannot write to the path"),
            (name, (*good[name], "--checkpoint", "/proc/x"), "cannot write to the checkpoint"),
        ]
    for number, (name, arguments, expected) in enumerate(cases):
        job = submit(name, *arguments, broker_url=nobody, folder=str(number))
        assert job.process.wait(120) == 1
        [line] = job.errors
        assert line.startswith(f"{name}: ")
        assert expected in line
        assert "secret" not in line
        assert job.lines == []


def test_each_job_explains_itself(submit):
    jobs = [submit(name, "--help", folder=name) for name in ALL]
    for job in jobs:
        assert job.process.wait(120) == 0
        text = "\n".join(job.lines)
        assert f"spark-submit jobs/{job.name}.py" in text
        assert "--exchange" in text


def test_an_output_is_not_mixed_with_another_checkpoint(spark, tmp_path):
    """Spark would take new batches for ones that it has written before."""
