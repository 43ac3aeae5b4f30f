"""A query on a named queue: what flows while it is down waits for it."""

import json
import os
import random
import shutil
import time

import pika
import pytest

from fanout_source.publisher import Publisher
from spark_processes import kill_family
from waiting import until

TYPES = ("classic", "quorum")


def _numbers(start, end):
    return [b"%d" % number for number in range(start, end)]


@pytest.fixture
def publish(address):
    """Publishes bodies, confirmed, each with its own message id."""
    with Publisher(address) as publisher:

        def send(bodies):
            for body in bodies:
                name = body[:20].decode()
                publisher.publish(body, pika.BasicProperties(message_id=name, delivery_mode=2))
            publisher.flush()

        yield send


@pytest.fixture
def queue(management, vhost):
    """What the broker says of the queue."""

    def look():
        found = management.get("queues", vhost, "audit")
        return found.get("messages_ready"), found.get("messages_unacknowledged")

    return look


@pytest.mark.parametrize("kind", TYPES)
def test_a_query_that_was_down_misses_nothing(read, start, rows, publish, kind):
    def subscribe():
        return start(read(queue="audit", queueType=kind))

    query = subscribe()
    publish(_numbers(0, 1000))
    query.processAllAvailable()
    query.stop()
    publish(_numbers(1000, 51_000))
    query = subscribe()
    until(query, lambda: len(rows()) >= 51_000, "all is written")
    assert [row.body for row in rows()] == _numbers(0, 51_000)
    report = json.loads(query.lastProgress.json)["sources"][0]["latestOffset"]
    assert (report["queue"], report["gaps"], report["inDoubt"]) == ("audit", 0, 0)


@pytest.mark.long
@pytest.mark.parametrize("kind", TYPES)
def test_every_message_is_in_parquet_once_through_kills_of_the_driver(
    subscriber, publish, rows, eventually, kind, management, vhost
):
    kills = int(os.environ.get("FANOUT_KILLS", "3"))
    seed = int(os.environ.get("FANOUT_SEED", "0")) or random.randrange(1 << 32)
    print(f"seed {seed}")  # shown when the test fails
    moments = random.Random(seed)
    options = {"queue": "audit", "queueType": kind, "maxOffsetsPerTrigger": 3000}
    published, batch, total = 0, 250, 50_000
    for life in range(kills):
        process = subscriber("out", **options)
        eventually(lambda: management.get("consumers", vhost), "it consumes", 120)
        while published < total * (life + 1) // (kills + 1):
            publish(_numbers(published, published + batch))
            published += batch
        time.sleep(moments.uniform(0, 3))
        kill_family(process)
        eventually(lambda: not management.get("consumers", vhost), "its consumer is gone")
    publish(_numbers(published, total))  # nobody listens
    process = subscriber("out", **options)
    eventually(lambda: len(rows()) >= total, "all is written", 180)
    process.stdin.close()
    assert process.wait(60) == 0
    assert [row.body for row in rows()] == _numbers(0, total)


@pytest.mark.parametrize("kind", TYPES)
def test_available_now_takes_what_is_in_the_queue_and_ends(
    read, start, rows, publish, queue, eventually, kind
):
    count = int(os.environ.get("FANOUT_BACKLOG", "20000"))

    def run():
        now = read(queue="audit", queueType=kind, maxOffsetsPerTrigger=count // 3)
        query = start(now, subscribed=False, availableNow=True)
        assert query.awaitTermination(300), "it ends"
        assert query.exception() is None

    run()  # makes the queue
    publish(_numbers(0, count))
    run()
    assert [row.body for row in rows()] == _numbers(0, count)
    eventually(lambda: queue() == (0, 0), "the broker has nothing left")
    publish(_numbers(count, count + 10))
    run()
    run()
    assert len(rows()) == count + 10


def test_a_backlog_that_is_larger_than_the_spool_is_drained(read, start, rows, publish, queue):
    def run():
        now = read(queue="audit", maxSpoolBytes="1m", prefetchCount=1000)
        assert start(now, subscribed=False, availableNow=True).awaitTermination(300)

    run()
    publish([b"%06d" % number + bytes(1000) for number in range(5000)])
    run()
    assert [int(row.body[:6]) for row in rows()] == list(range(5000))


def test_a_queue_that_is_gone_ends_the_query_unless_told_otherwise(
    read, start, rows, publish, management, vhost
):
    query = start(read(queue="audit"))
    publish([b"0"])
    query.processAllAvailable()
    query.stop()
    management.delete("queues", vhost, "audit")
    query = start(read(queue="audit"), subscribed=False)
    with pytest.raises(Exception, match="queue 'audit' was deleted, with what it held"):
        query.awaitTermination(90)
    query = start(read(queue="audit", failOnDataLoss=False))
    publish([b"1"])
    query.processAllAvailable()
    assert [row.body for row in rows()] == [b"0", b"1"]
    assert json.loads(query.lastProgress.json)["sources"][0]["latestOffset"]["gaps"] == 1


def test_a_checkpoint_that_is_gone_is_a_recorded_gap(read, start, rows, publish, tmp_path):
    """What was received for it, and acked, is in a spool that nobody reads."""
    query = start(read(queue="audit", maxOffsetsPerTrigger=1))
    publish(_numbers(0, 50))
    until(query, lambda: query.lastProgress.numInputRows, "it receives")
    query.stop()
    shutil.rmtree(tmp_path / "out.checkpoint")
    query = start(read(queue="audit"), "anew")
    publish(_numbers(50, 60))
    query.processAllAvailable()
    report = json.loads(query.lastProgress.json)["sources"][0]["latestOffset"]
    assert report["gaps"] == 1
    assert report["lastGap"]["beforeOffset"] == 0
    assert "queue 'audit' was read with another checkpoint" in report["lastGap"]["reason"]
    [kept] = (p for p in (tmp_path / "spool").iterdir() if p.name != report["spool"])
    assert str(kept) in report["lastGap"]["reason"]


def test_what_was_read_with_another_checkpoint_meanwhile_is_a_recorded_gap(
    read, start, rows, publish
):
    def run(name, sent):
        publish(sent)
        query = start(read(queue="audit"), name, subscribed=False, availableNow=True)
        assert query.awaitTermination(90)
        latest = json.loads(query.lastProgress.json)["sources"][0]["latestOffset"]
        return latest["gaps"], (latest["lastGap"] or {}).get("reason", "")

    assert run("one", []) == (0, "")
    assert run("one", _numbers(0, 5)) == (0, "")
    assert run("one", _numbers(5, 10)) == (0, "")
    assert run("other", _numbers(10, 15))[0] == 1  # it is new, and the first one has had some
    gaps, reason = run("one", _numbers(15, 20))
    assert gaps == 1
    assert "queue 'audit' was read with another checkpoint meanwhile" in reason
    assert run("one", _numbers(20, 25))[0] == 1  # nobody else has had any since
    assert [row.body for row in rows("one")] == _numbers(0, 10) + _numbers(15, 25)


def test_a_second_query_on_the_queue_is_refused(read, start, publish):
    query = start(read(queue="audit"))
    publish([b"0"])
    query.processAllAvailable()
    second = start(read(queue="audit"), "second", subscribed=False)
    with pytest.raises(Exception, match=r"queue 'audit' .* has a consumer already"):
        second.awaitTermination(90)
    assert query.isActive
