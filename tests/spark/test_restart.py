"""Restarts: what was received is in the sink, once, and what was planned comes again."""

import contextlib
import json
import os
import random
import shutil
import signal
import time
from urllib.parse import urlsplit

import pytest

from processes import descendants, planners
from spark_processes import kill_family
from waiting import until
from witness import Witness


def _numbers(start, end):
    return [b"%d" % number for number in range(start, end)]


def _report(query):
    progress = query.lastProgress
    return (progress and json.loads(progress.json)["sources"][0]["latestOffset"]) or {}


def _received(query):
    return _report(query).get("offset")


def test_a_restart_goes_on_with_what_was_received(read, start, rows, publish):
    query = start(read(maxOffsetsPerTrigger=10))
    publish(_numbers(0, 2000))
    until(query, lambda: _received(query) == 2000, "all is received")
    query.stop()
    before = len(rows())
    publish(_numbers(2000, 2010))  # nobody listens
    query = start(read())
    publish(_numbers(2010, 2020))
    query.processAllAvailable()
    found = [row.body for row in rows()]
    assert found == _numbers(0, 2000) + _numbers(2010, 2020)
    assert 0 < before < 2000


def test_a_planned_batch_comes_again_byte_for_byte(read, spark, publish, tmp_path, url):
    """The sink fails after it has seen the batch: the restart must show it the same rows."""
    seen = []

    def fail(batch, _number):
        rows = batch.collect()
        if rows:
            seen.append(rows)
            raise RuntimeError("the sink fails")

    def keep(batch, _number):
        if not batch.isEmpty():
            seen.append(batch.collect())
            assert batch.collect() == seen[-1]  # two actions, one batch

    def start(sink):
        writer = read().writeStream.foreachBatch(sink)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = start(fail)
    until(query, lambda: query.lastProgress, "it is subscribed")
    publish(_numbers(0, 500), headers={"host": "web-1"}, timestamp=1)
    with pytest.raises(Exception, match="the sink fails"):
        query.awaitTermination(90)
    query = start(keep)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert seen[0] == seen[1]
    bodies = [row.body for batch in seen[1:] for row in batch]
    assert bodies == _numbers(0, len(bodies))  # the rest came when nobody listened any more


@pytest.mark.parametrize("sink_is_done", [True, False])
def test_a_batch_that_was_planned_and_not_committed_comes_once(
    read, start, rows, publish, tmp_path, sink_is_done
):
    """As a kill leaves it: before the sink's own log is written, or before Spark's."""
    query = start(read())
    publish(_numbers(0, 500))
    query.processAllAvailable()
    query.stop()
    last = max(int(file.name) for file in (tmp_path / "out.checkpoint/commits").glob("[0-9]*"))
    logs = [tmp_path / "out.checkpoint/commits", *([tmp_path / "out/_spark_metadata"])]
    for log in logs[:1] if sink_is_done else logs:
        (log / str(last)).unlink()
        (log / f".{last}.crc").unlink()
    assert len(rows()) == (500 if sink_is_done else 500 - len(_rows_of_batch(query, last)))
    query = start(read(), subscribed=False)
    until(query, lambda: _report(query).get("queue"), "it is subscribed")  # may be after that batch
    assert query.recentProgress[0].batchId == last
    publish(_numbers(500, 600))
    until(query, lambda: len(rows()) == 600, "all is there")
    assert [row.body for row in rows()] == _numbers(0, 600)


def _rows_of_batch(query, number):
    [count] = {p.numInputRows for p in query.recentProgress if p.batchId == number}
    return range(count)


@pytest.mark.long
@pytest.mark.parametrize("how", ["spark.stop()", "Ctrl-C"])
def test_an_application_that_is_ended_leaves_no_queue_and_a_whole_spool(
    subscriber, publish, rows, eventually, bound_queues, management, vhost, how
):
    process = subscriber("out")
    eventually(bound_queues, "it is subscribed", 90)
    publish(_numbers(0, 100))
    eventually(lambda: len(rows()) == 100, "all is written", 90)
    if how == "Ctrl-C":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.stdin.write(b"stop\n")
        process.stdin.flush()
    process.wait(60)
    eventually(lambda: management.get("queues", vhost) == [], "its queue is gone")
    process = subscriber("out")
    eventually(bound_queues, "it is subscribed again", 90)
    publish(_numbers(100, 200))
    eventually(lambda: len(rows()) == 200, "all is written", 90)
    assert [row.body for row in rows()] == _numbers(0, 200)
    process.stdin.close()
    assert process.wait(60) == 0


@pytest.mark.long
def test_two_queries_on_one_checkpoint_are_a_clear_error(
    read, start, subscriber, tmp_path, eventually, bound_queues
):
    process = subscriber("out", spoolDir=tmp_path / "spool")
    eventually(bound_queues, "the first is subscribed", 90)
    eventually(lambda: list((tmp_path / "out.checkpoint" / "commits").glob("0")), "batch 0", 90)
    query = start(read(), subscribed=False)
    with pytest.raises(Exception, match="is in use by process"):
        query.awaitTermination(90)
    assert process.poll() is None


def test_a_spool_that_is_gone_is_an_error_or_a_recorded_gap(read, start, rows, publish, tmp_path):
    query = start(read())
    publish(_numbers(0, 10))
    query.processAllAvailable()
    query.stop()
    shutil.rmtree(tmp_path / "spool")
    query = start(read(failOnDataLoss=True), subscribed=False)
    with pytest.raises(Exception, match=r"there is no spool .*set spoolDir to where it was"):
        query.awaitTermination(90)
    query = start(read(failOnDataLoss=False))
    publish(_numbers(10, 20))
    query.processAllAvailable()
    assert [row.body for row in rows()] == _numbers(0, 20)
    assert [row.offset for row in rows()] == list(range(20))
    assert json.loads(query.lastProgress.json)["sources"][0]["latestOffset"]["gaps"] == 1


def test_a_query_goes_on_behind_what_is_damaged(read, start, rows, publish, tmp_path):
    query = start(read(maxOffsetsPerTrigger=2))
    publish(_numbers(0, 3000))
    until(query, lambda: _received(query) == 3000, "all is received")
    query.stop()
    before = len(rows())
    for segment in (tmp_path / "spool").glob("*/*.arrow"):
        segment.write_bytes(b"x" + segment.read_bytes()[1:])
    query = start(read(maxOffsetsPerTrigger=1000))
    publish([b"after"])
    query.processAllAvailable()
    assert [row.body for row in rows()][before:] == [b"after"]
    report = json.loads(query.lastProgress.json)["sources"][0]["latestOffset"]
    assert report["lostRows"] >= 3000 - before - 2


def test_a_checkpoint_of_another_source_is_refused(read, start, tmp_path, spark):
    offsets = tmp_path / "out.checkpoint" / "offsets"
    query = start(read())
    query.stop()
    for file in offsets.iterdir():
        if file.name.isdigit():
            lines = file.read_text().splitlines()
            file.write_text("\n".join([*lines[:2], '{"logs":{"0":23}}']))
    for file in offsets.glob(".*.crc"):
        file.unlink()
    query = start(read(), subscribed=False)
    with pytest.raises(Exception, match="does it belong to another query"):
        query.awaitTermination(90)


def test_the_planner_ends_with_its_driver(subscriber, eventually, bound_queues, management, vhost):
    process = subscriber("out")
    eventually(bound_queues, "it is subscribed", 90)
    family = descendants(process.pid)
    [planner] = planners(process.pid)
    [jvm] = [pid for pid, command in family.items() if "org.apache.spark.deploy" in command]
    os.kill(jvm, signal.SIGKILL)
    process.wait(60)
    eventually(lambda: not os.path.exists(f"/proc/{planner}"), "the planner has ended")
    eventually(lambda: management.get("queues", vhost) == [], "the queue is gone")


@pytest.mark.long
def test_every_acked_message_is_in_parquet_once_through_kills_of_the_driver(
    subscriber, address, url, publish, rows, eventually, bound_queues, management, vhost
):
    """Asks a witness between the query and the broker which messages were acked."""
    kills = int(os.environ.get("FANOUT_KILLS", "3"))
    seed = int(os.environ.get("FANOUT_SEED", "0")) or random.randrange(1 << 32)
    print(f"seed {seed}")  # shown when the test fails
    moments = random.Random(seed)
    batch, published = 250, 0
    with Witness(address.host, address.port) as witness:
        through = url.replace(f":{urlsplit(url).port}/", f":{witness.port}/")
        for life in range(kills + 1):
            process = subscriber("out", broker_url=through, maxOffsetsPerTrigger=3000)
            eventually(bound_queues, "it is subscribed", 120)
            end = 100_000 * (life + 1) // (kills + 1)
            kill_at = moments.randrange(published, end)
            while published < end:
                publish(_numbers(published, published + batch))
                published += batch
                if life < kills and published >= kill_at and process.poll() is None:
                    time.sleep(moments.uniform(0, 3))
                    kill_family(process)  # and emitters go on
            if life < kills:
                eventually(lambda: management.get("queues", vhost) == [], "its queue is gone")
        eventually(lambda: _committed_all(witness, rows), "all that was acked is there", 120)
        process.stdin.close()
        assert process.wait(60) == 0
    found = [bytes(row.body) for row in rows()]
    print(f"{published} published, {len(witness.acked)} acked, {len(found)} in Parquet")
    assert len(found) == len(set(found)), "doubled"
    assert set(witness.acked) - set(found) == set(), "lost"
    assert [row.offset for row in rows()] == list(range(len(found)))


def _committed_all(witness, rows):
    return set(witness.acked) <= {bytes(row.body) for row in rows()}


@pytest.mark.long
def test_an_executor_that_is_killed_in_the_middle_of_a_read_changes_nothing(
    subscriber, publish, rows, eventually, bound_queues, tmp_path, monkeypatch
):
    failpoints = tmp_path / "failpoints"
    failpoints.write_text("reader.slice=stop@2")
    monkeypatch.setenv("EXECUTOR_FAILPOINTS", f"@{failpoints}")
    monkeypatch.setenv("SPARK_MASTER", "local-cluster[2,1,1024]")
    process = subscriber("out", minPartitions=4)
    eventually(bound_queues, "it is subscribed", 120)
    publish(_numbers(0, 20_000))

    def workers():
        """Those that read, with the executor of each."""
        family = descendants(process.pid).items()
        executors = [pid for pid, line in family if "CoarseGrainedExecutor" in line]
        return [(worker, pid) for pid in executors for worker in descendants(pid)]

    def between_two_slices():
        return [executor for worker, executor in workers() if _state(worker) == "T"]

    executor = eventually(between_two_slices, "a task has read a part", 120)[0]
    failpoints.write_text("")
    for pid in (executor, *(worker for worker, _ in workers())):  # the others would stop, too
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(rows()) >= 20_000, "all is written", 180)
    assert [row.body for row in rows()] == _numbers(0, 20_000)
    assert [row.offset for row in rows()] == list(range(20_000))
    process.stdin.close()
    assert process.wait(60) == 0


def _state(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]
