"""The jobs as people run them: under spark-submit, each a process of its own."""

import json
import shutil
import signal

import pytest

from fanout_source import logs, parquet
from fanout_source.connection import open_connection
from fanout_source.errors import OptionError
from fanout_source.severity import SEVERITIES
from spark_processes import JOBS, written
from waiting import until, wait_until

ALL = sorted(job.stem for job in JOBS.glob("*.py"))
WRITE_PARQUET = ("logs_to_parquet", "parallel_subscribers")


def messages(lines: list[str]) -> list[str]:
    return [line.split(maxsplit=3)[3] for line in lines]


def test_disk_and_screen_at_the_same_time(submit, emit, publish, bound_queues, spark, tmp_path):
    """Both get all of 10,000. A killed Parquet job has everything that it had received; a killed
    console starts with what flows from then on."""
    path, spool = tmp_path / "logs", tmp_path / "parquet" / "spool"
    to_parquet = ("logs_to_parquet", "--path", path, "--option", f"spoolDir={spool}")
    parquet = submit(*to_parquet, "--trigger", "1 second", folder="parquet")
    console = submit("logs_to_console")
    wait_until(lambda: len(bound_queues()) == 2, "both are subscribed", 120)
    sent = emit(10_000)
    wait_until(lambda: len(console.lines) >= len(sent), "the console has shown all", 90)
    wait_until(lambda: len(written(spark, path)) >= len(sent), "Parquet has all", 90)
    assert messages(console.lines) == sent
    assert written(spark, path) == sent
    console.end(signal.SIGKILL)

    sent += emit(1_000)
    end = f"-{len(sent):020}-"
    wait_until(lambda: any(end in file.name for file in spool.rglob("*.arrow")), "they are kept")
    parquet.end(signal.SIGKILL)
    wait_until(lambda: not bound_queues(), "nobody is subscribed")
    emit(10)  # nobody gets these
    parquet = submit(*to_parquet, "--available-now", folder="parquet")
    console = submit("logs_to_console", "--severity", "warning")
    assert parquet.process.wait(90) == 0, parquet.errors
    assert written(spark, path) == sent

    wait_until(lambda: len(bound_queues()) == 1, "the console is subscribed again", 60)
    wait_until(lambda: console.errors, "it says so")
    sent = emit(1_000)
    publish([b"critical: the end"])
    wait_until(lambda: "the end" in "".join(console.lines[-1:]), "the console has shown all", 60)
    *lines, _ = console.lines
    assert {line.split()[1] for line in lines} == set(SEVERITIES[2:]), "warnings and above"
    assert set(messages(lines)) <= set(sent), "only what flowed from then on"
    assert console.end(signal.SIGINT) == 0
    [line, *others] = console.errors
    assert not others
    assert "INFO fanout: subscribed to exchange 'logs'" in line


@pytest.mark.long
def test_many_queries_in_one_job_and_one_that_fails(submit, emit, bound_queues, spark, tmp_path):
    """Each gets all. When one fails, the job names it and ends."""
    rates = submit("severity_rates", "--window", "1 hour", "--trigger", "1 second", folder="rates")
    parallel = submit(
        "parallel_subscribers", "--path", tmp_path / "logs", "--subscribers", 2,
        "--trigger", "1 second",
    )  # fmt: skip
    wait_until(lambda: len(bound_queues()) == 5, "five queries are subscribed", 120)
    sent = emit(1_000)
    for name in ("logs", "logs-2", "logs-3"):
        path = tmp_path / name
        wait_until(lambda path=path: len(written(spark, path)) >= 1_000, f"{name} has all", 90)
        assert written(spark, path) == sent
    wait_until(lambda: len(parallel.lines) >= len(sent), "all are on the screen", 90)
    assert messages(parallel.lines) == sent

    def drawn() -> int:
        """The sum of what was drawn last for each severity and host."""
        words = [line.split() for line in rates.lines if line.startswith("  ")]
        return sum({(w[0], w[1]): int(w[2].replace(",", "")) for w in words}.values())

    wait_until(lambda: drawn() >= len(sent), "all are counted", 90)
    assert drawn() == len(sent)
    assert rates.end(signal.SIGTERM) == 0

    commits = tmp_path / "logs-2.checkpoint" / "commits"
    shutil.rmtree(commits)
    commits.write_text("in the way")
    emit(10)
    assert parallel.process.wait(60) == 1
    [line, *others] = [line for line in parallel.errors if "INFO fanout" not in line]
    assert not others
    assert line.startswith("parallel_subscribers: query parquet-2 failed: ")
    wait_until(lambda: not bound_queues(), "nobody is subscribed")


def _records(host, minute, *, errors, others):
    """Bodies of records, all of this minute of the past."""
    for number in range(errors + others):
        record = {
            "time": f"2026-01-01T12:{minute:02}:{number % 60:02}Z", "host": host, "message": "x",
            "severity": "error" if number < errors else "info",
        }  # fmt: skip
        yield json.dumps(record).encode()


@pytest.mark.long
def test_alerts_are_published_once_for_each_host_and_window_that_passes(
    submit, publish, address, bound_queues, tmp_path
):
    with open_connection(address) as connection:
        channel = connection.channel()  # as the tutorial's receiver
        channel.exchange_declare("alerts", "fanout")
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "alerts")
        arguments = ("--threshold", 0.2, "--least", 10, "--trigger", "1 second")
        job = submit("alerts", *arguments, "--checkpoint", tmp_path / "alerts")
        wait_until(bound_queues, "it is subscribed", 120)
        publish([
            *_records("web-1", 0, errors=30, others=70), *_records("web-1", 1, errors=1, others=99),
            *_records("web-2", 0, errors=19, others=81), *_records("web-3", 0, errors=9, others=0),
            *_records("web-2", 2, errors=20, others=80),
        ])  # fmt: skip
        publish(_records("web-1", 10, errors=0, others=1))  # later than all of that
        alerts = []
        for _, properties, body in channel.consume(queue, auto_ack=True, inactivity_timeout=60):
            assert body is not None, job.errors
            alerts.append((properties, json.loads(body)))
            if len(alerts) == 2:
                break
        connection.sleep(3)
        assert channel.queue_declare(queue, passive=True).method.message_count == 0
        channel.cancel()
    found = {(a["host"], a["errors"], a["records"], a["severity"]) for _, a in alerts}
    assert found == {("web-1", 30, 100, "critical"), ("web-2", 20, 100, "critical")}
    assert "30 of 100 records (30 %) were errors from " in min(alerts, key=str)[1]["message"]
    assert all(properties.message_id for properties, _ in alerts)
    assert {properties.headers["host"] for properties, _ in alerts} == {"web-1", "web-2"}
    assert job.end(signal.SIGTERM) == 0


def test_alerts_that_would_be_read_as_logs_are_refused(submit):
    job = submit("alerts", "--to", "logs")
    assert job.process.wait(120) == 2
    assert job.errors == [
        "alerts: alerts to 'logs' would be read as logs: choose another --to (--help tells more)"
    ]


@pytest.mark.long
def test_a_mistake_is_one_line(submit, tmp_path):
    (tmp_path / "file").touch()
    to_file = ("--path", tmp_path / "file" / "logs")
    good = {name: ("--path", tmp_path / name) if name in WRITE_PARQUET else () for name in ALL}
    cases = [(name, good[name], "no broker listens at 127.0.0.1:1") for name in ALL]
    cases += [
        ("logs_to_parquet", to_file, "cannot write to the path"),
        (
            "logs_to_parquet",
            (*good["logs_to_parquet"], "--checkpoint", "/proc/x"),
            "the checkpoint",
        ),
    ]
    nobody = "amqp://guest:secret@127.0.0.1:1/"
    # All at once: a JVM takes seconds to start, most of them waiting.
    jobs = [
        submit(name, *arguments, broker_url=nobody, folder=str(number))
        for number, (name, arguments, _) in enumerate(cases)
    ]
    for job, (name, _, expected) in zip(jobs, cases, strict=True):
        assert job.process.wait(180) == 1
        [line, *others] = job.errors
        assert not others
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


def test_an_output_is_not_mixed_with_another_checkpoint(read, publish, tmp_path):
    """Spark would take new batches for ones that it has written before."""

    def write(path, checkpoint):
        return parquet.write(logs.parse(read()), str(tmp_path / path), str(tmp_path / checkpoint))

    query = write("logs", "checkpoint").start()
    until(query, lambda: query.lastProgress is not None, "the query is subscribed")
    publish([b"hello"])
    query.processAllAvailable()
    query.stop()
    with pytest.raises(OptionError, match="was written with another checkpoint"):
        write("logs", "other")
    write("logs", "checkpoint")
    write("elsewhere", "checkpoint")
