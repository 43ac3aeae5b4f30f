"""Every query is a subscriber of its own."""

import os
import subprocess

import pytest

from processes import planners

EVERYTHING = [b"%d" % number for number in range(50_000)]


def test_every_query_gets_every_message_in_order_once(
    read,
    start,
    rows,
    subscriber,
    publish,
    bound_queues,
    eventually,
    spark,
    tmp_path,
    script,
    url,
    broker,
):
    """Two queries in one session, two in processes of their own; stopping one of them leaves the
    others alone."""
    apart = [subscriber(name) for name in ("apart-1", "apart-2")]
    together = [start(read(), name) for name in ("together-1", "together-2")]
    eventually(lambda: len(bound_queues()) == 4, "four queues are bound", 120)
    environment = {**os.environ, "FANOUT_URL": url, "FANOUT_MANAGEMENT_URL": broker.management_url}
    shown = subprocess.run(script("bindings.py"), env=environment, capture_output=True, text=True)
    assert shown.stdout.count("► amq.gen-") == 4, shown

    publish(EVERYTHING)

    def has_all(name):
        return spark.read.parquet(str(tmp_path / name)).count() >= len(EVERYTHING)

    for query in together:
        query.processAllAvailable()
    for name in ("apart-1", "apart-2"):
        eventually(lambda name=name: has_all(name), f"{name} has all", 90)
    for name in ("together-1", "together-2", "apart-1", "apart-2"):
        found = rows(name)
        assert [row.body for row in found] == EVERYTHING
        assert [row.offset for row in found] == list(range(len(EVERYTHING)))

    together[0].stop()
    eventually(lambda: len(bound_queues()) == 3, "the stopped query's queue is gone")
    publish([b"one more"])
    together[1].processAllAvailable()
    eventually(lambda: spark.read.parquet(str(tmp_path / "apart-1")).count() == 50_001, "one more")
    assert rows("together-2")[-1].body == b"one more"
    assert len(rows("together-1")) == 50_000
    assert all(process.poll() is None for process in apart)


def test_a_stopped_query_leaves_no_queue_and_no_process(
    read, start, management, vhost, eventually, spark
):
    before = set(planners(os.getpid()))
    query = start(read())
    [planner] = set(planners(os.getpid())) - before
    query.stop()
    eventually(lambda: management.get("queues", vhost) == [], "the queue is gone", 5)
    eventually(lambda: planner not in planners(os.getpid()), "the planner has ended", 5)


@pytest.mark.parametrize("how", ["registered", "found"])
def test_the_format_needs_no_registration_and_allows_one(spark, url, tmp_path, how, eventually):
    from fanout_source import FanoutDataSource

    if how == "registered":
        spark = spark.newSession()
        spark.dataSource.register(FanoutDataSource)
    frame = spark.readStream.format("fanout").option("url", url).load()
    assert frame.schema == FanoutDataSource({}).schema()
