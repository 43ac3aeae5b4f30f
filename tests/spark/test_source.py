"""The source in one session: rows, limits, triggers, progress, refusals."""

import datetime
import json
import logging
import pickle
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from fanout_source import FanoutDataSource
from fanout_source.schema import SCHEMA
from poison import POISON, publish_raw
from waiting import until


def _progress(query):
    return json.loads(query.lastProgress.json)["sources"][0]


def _numbers(start, end):
    return [b"%d" % number for number in range(start, end)]


def _through(proxy, url):
    return url.replace(f":{urlsplit(url).port}/", f":{proxy.port}/")


def _sizes(query):
    """How many rows the batches had, of those that had any."""
    return [p.numInputRows for p in query.recentProgress if p.numInputRows]


def test_a_row_has_all_of_a_message(read, start, rows, publish):
    query = start(read())
    moment = int(time.time())
    publish(
        [b"\x00body"],
        headers={"host": "web-1", "n": 5},
        content_type="text/plain",
        content_encoding="identity",
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=moment,
        type="t",
        app_id="a",
    )
    query.processAllAvailable()
    [row] = rows()
    received_at = row.received_at
    assert abs(received_at.timestamp() - time.time()) < 300
    assert row.asDict() == {
        "body": bytearray(b"\x00body"),
        "exchange": "logs",
        "routing_key": "",
        "headers": {"host": "web-1", "n": "5"},
        "content_type": "text/plain",
        "content_encoding": "identity",
        "delivery_mode": 2,
        "priority": 3,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "m",
        "timestamp": datetime.datetime.fromtimestamp(moment),
        "type": "t",
        "user_id": None,
        "app_id": "a",
        "redelivered": False,
        "received_at": received_at,
        "offset": 0,
        "decode_error": None,
    }


def test_a_schema_of_the_users_own_selects_columns(read, start, rows, publish):
    query = start(read(schema="offset bigint, routing_key string, body binary"))
    publish([b"x"])
    query.processAllAvailable()
    [row] = rows()
    assert row.asDict() == {"offset": 0, "routing_key": "", "body": bytearray(b"x")}


def test_limits_combine_and_a_batch_can_end_inside_a_segment(read, start, rows, publish):
    query = start(read(maxOffsetsPerTrigger=300, maxBytesPerTrigger="1g"))
    publish(_numbers(0, 1000))
    query.processAllAvailable()
    assert max(_sizes(query)) <= 300
    assert [row.body for row in rows()] == _numbers(0, 1000)
    query.stop()
    query = start(read(maxOffsetsPerTrigger=300, maxBytesPerTrigger="10k"))
    publish([b"x" * 1000] * 100)
    query.processAllAvailable()
    assert 1 <= max(_sizes(query)) <= 20
    assert len(rows()) == 1100


def test_a_batch_waits_for_its_minimum_and_not_for_ever(read, start, rows, publish):
    query = start(read(minOffsetsPerTrigger=50, maxTriggerDelay="5s"))
    publish(_numbers(0, 30))
    publish(_numbers(30, 60))
    until(query, lambda: sum(_sizes(query)) == 60, "both parts are there")
    publish(_numbers(60, 61))
    until(query, lambda: sum(_sizes(query)) == 61, "the delay has passed")
    assert _sizes(query)[0] >= 30
    assert [row.body for row in rows()] == _numbers(0, 61)


def test_a_batch_is_read_by_as_many_tasks_as_asked_for(read, start, rows, publish, spark, tmp_path):
    query = start(read(minPartitions=4))
    publish(_numbers(0, 1000))
    query.processAllAvailable()
    assert len(spark.read.parquet(str(tmp_path / "out")).inputFiles()) >= 4
    assert [row.body for row in rows()] == _numbers(0, 1000)


def test_processing_time_takes_what_came_meanwhile(read, start, rows, publish):
    query = start(read(), processingTime="1 second")
    publish(_numbers(0, 100))
    query.processAllAvailable()
    assert [row.body for row in rows()] == _numbers(0, 100)


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"once": True}])
def test_a_query_that_ends_takes_what_had_been_received(read, start, rows, publish, trigger):
    query = start(read(maxOffsetsPerTrigger=1))
    publish(_numbers(0, 100))
    until(query, lambda: _progress(query)["latestOffset"]["offset"] == 100, "all is received")
    query.stop()
    taken = len(rows())
    assert taken < 100
    query = start(read(maxOffsetsPerTrigger=40), subscribed=False, **trigger)
    assert query.awaitTermination(90)
    assert query.exception() is None
    if "once" in trigger and len(rows()) < 100:  # what was planned, and a batch beyond that
        query = start(read(), subscribed=False, **trigger)
        assert query.awaitTermination(90)
    assert [row.body for row in rows()] == _numbers(0, 100)


def test_a_stream_with_itself_has_each_message_as_often_as_it_is_named(
    read, start, rows, publish, spark
):
    """`union` of one frame, and of two; a join by the offset. Each name is a subscriber."""
    frame = read()
    query = start(frame.union(frame).union(read()), "union")
    joined = read().select("offset", "body").alias("a").join(
        read().select("offset", "body").alias("b"), "offset"
    )  # fmt: skip
    other = start(joined.selectExpr("offset", "a.body", "b.body as other"), "join")
    publish(_numbers(0, 200))
    until(query, lambda: len(rows("union")) == 600, "the union has all")
    until(other, lambda: len(rows("join")) == 200, "the join has all")
    assert sorted(row.body for row in rows("union")) == sorted(3 * _numbers(0, 200))
    assert [(row.body, row.other) for row in rows("join")] == [(n, n) for n in _numbers(0, 200)]


@pytest.fixture
def received(url, tmp_path, publish, eventually):
    """A reader in this process that has received so many messages, and the offset before them."""
    readers = []

    def receive(count, **options):
        given = {"url": url, "spoolDir": str(tmp_path), **options}
        reader = FanoutDataSource(given).streamReader(SCHEMA)
        readers.append(reader)
        begin = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert reader.partitions(reader.initialOffset(), begin) == []
        publish(_numbers(0, count))
        eventually(
            lambda: reader.latestOffset(begin, ReadAllAvailable())["offset"] == count,
            "all is received",
        )
        return reader, begin

    yield receive
    for reader in readers:
        reader.stop()


def test_a_small_batch_has_its_rows_with_its_plan_and_others_have_not(received):
    """What Spark looks at, and in which order, to take rows without a Python worker."""
    reader, begin = received(1500)

    def plan(start, end):
        return reader.partitions({**begin, "offset": start}, {**begin, "offset": end})

    assert len(plan(0, 1500)) == 1
    assert not isinstance(reader, _SimpleStreamReaderWrapper)
    [planned] = plan(0, 500)
    assert isinstance(reader, _SimpleStreamReaderWrapper)
    rows = list(reader.getCache({**begin, "offset": 0}, {**begin, "offset": 500}))
    assert rows == list(reader.read(planned))
    assert [body for batch in rows for body in batch["body"].to_pylist()] == _numbers(0, 500)
    assert not isinstance(reader, _SimpleStreamReaderWrapper)
    assert reader.reportLatestOffset()["offset"] == 1500


def test_rows_are_the_same_with_the_plan_and_from_tasks(read, start, rows, publish, address):
    small, divided = start(read(), "small"), start(read(minPartitions=2), "divided")
    for raw in POISON.values():
        publish_raw(address, raw)
    publish([b"x" * 1000, b"", b"after"], headers={"host": "web-1", "n": 5}, timestamp=1)
    for query, name in ((small, "small"), (divided, "divided")):
        until(query, lambda name=name: len(rows(name)) == len(POISON) + 3, f"all of {name}")
    others = [{**row.asDict(), "received_at": None} for row in rows("divided")]
    assert [{**row.asDict(), "received_at": None} for row in rows("small")] == others


def test_a_range_is_planned_twice_in_the_same_way(received):
    """Also in part; and nothing for nothing."""
    reader, begin = received(100, minPartitions="3")
    middle, last = ({**begin, "offset": offset} for offset in (50, 100))
    for start, end in ((begin, last), (begin, middle), (middle, last)):
        planned = reader.partitions(start, end)
        assert len(planned) == 3
        assert reader.partitions(start, end) == planned
        bodies = [b for p in planned for rows in reader.read(p) for b in rows["body"].to_pylist()]
        assert bodies == _numbers(start["offset"], end["offset"])
    assert reader.partitions(middle, middle) == []
    reader.commit(middle)
    assert reader.partitions(middle, last) == planned


READ_PICKLED = """
import pickle, sys
reader, partition = pickle.load(sys.stdin.buffer)
sys.stdout.write(repr([batch.to_pylist() for batch in reader.read(partition)]))
"""


def test_a_partition_gives_the_same_rows_to_tasks_that_read_it_at_once(received):
    """As a task does that Spark runs a second time, because the first one is slow."""
    reader, begin = received(2000)
    [planned] = reader.partitions(begin, {**begin, "offset": 2000})
    task = [sys.executable, "-c", READ_PICKLED]
    tasks = [
        subprocess.Popen(task, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    for each in tasks:
        pickle.dump((reader, planned), each.stdin)
        each.stdin.flush()
    first, second = (each.communicate()[0] for each in tasks)
    assert first == second
    assert first.count(b"'body': b'") == 2000


def test_a_checkpoint_that_is_gone_is_said_where_its_messages_are(received, caplog):
    """Of an exclusive queue: whose they were, nobody knows, so that there is no gap in them."""
    reader, begin = received(1)
    reader.stop()
    with caplog.at_level(logging.INFO):
        received(0)
    assert f"{begin['spool']} has messages of a query that ended at" in caplog.text


def test_poison_reaches_parquet_with_the_reason_beside_it(read, start, rows, address, publish):
    query = start(read())
    for raw in POISON.values():
        publish_raw(address, raw)
    publish([b"x" * 16 * 2**20, b"after"], message_id="fine")
    until(query, lambda: len(rows()) == len(POISON) + 2, "all is written")
    found = dict(zip([*POISON, "large", "after"], rows(), strict=True))
    assert found["large"].body == b"x" * 16 * 2**20
    assert {row.body for name, row in found.items() if name in POISON} == {b"body"}
    assert found["milliseconds in a header"].headers == {"t": "1700000000000"}
    assert found["milliseconds as timestamp"].timestamp is None
    assert "the unit is seconds" in found["milliseconds as timestamp"].decode_error
    assert found["2,000 nested tables"].headers["n"].count("{") == 2000
    assert found["broken UTF-8 as message id"].message_id == "\\xff\\xfe"
    assert (found["after"].message_id, found["after"].decode_error) == ("fine", None)


def test_progress_says_where_it_is_and_how_far_behind(read, start, publish, proxy, url):
    through = _through(proxy, url)
    query = start(read(url=through, maxOffsetsPerTrigger=50))
    first = _progress(query)["latestOffset"]
    assert first["queue"].startswith("amq.gen-")
    assert (first["gaps"], first["lastGap"], first["resubscriptions"]) == (0, None, 0)
    publish(_numbers(0, 200))
    query.processAllAvailable()
    behind = [json.loads(p.json)["sources"][0]["latestOffset"] for p in query.recentProgress]
    assert max(report["backlogRows"] for report in behind) > 0
    assert max(report["backlogBytes"] for report in behind) > 0
    assert (behind[-1]["offset"], behind[-1]["backlogRows"]) == (200, 0)
    proxy.reset()
    until(query, lambda: _progress(query)["latestOffset"]["gaps"] == 1, "the gap is shown")
    report = _progress(query)["latestOffset"]
    assert report["resubscriptions"] == 1
    assert report["queue"] != first["queue"]
    assert report["lastGap"]["beforeOffset"] == 200
    assert "was lost" in report["lastGap"]["reason"]


def test_with_fail_on_data_loss_a_gap_ends_the_query(read, start, publish, proxy, url, rows):
    through = _through(proxy, url)
    query = start(read(url=through, failOnDataLoss=True))
    publish([b"0"])
    query.processAllAvailable()
    proxy.reset()
    with pytest.raises(Exception, match="was lost"):
        query.awaitTermination(90)
    query = start(read(failOnDataLoss=True))  # a person has seen it, and goes on
    publish([b"1"])
    query.processAllAvailable()
    assert [row.body for row in rows()] == [b"0", b"1"]
    assert _progress(query)["latestOffset"]["gaps"] == 1


# ── what is refused, and how ────────────────────────────────────────────────────────────────────


def _refusal(action):
    with pytest.raises(Exception) as refused:  # noqa: PT011
        action()
    text = str(refused.value)
    assert "Traceback" not in text
    assert 'File "' not in text
    return text


def test_options_are_refused_together_and_without_a_traceback(read):
    text = _refusal(lambda: read(exchnage="x", prefetchCount=0, startingOffsets="earliest"))
    assert "OptionError: 3 options cannot be used: " in text
    assert "did you mean exchange?" in text
    assert "prefetchCount=0: must be a number from 1 to 65535" in text
    assert "startingOffsets=earliest: must be latest: a broker keeps nothing" in text


def _run(frame, **trigger):
    writer = frame.writeStream.format("noop")
    query = (writer.trigger(**trigger) if trigger else writer).start()
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("body binary, rooting_key string", "there is no column rooting_key"),
        ("body string", "column body is binary, not string"),
        ("body binary, body binary", "column body is there twice"),
        (StructType([]), "it has no column"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_with_the_right_one(read, schema, message):
    text = _refusal(lambda: _run(read(schema=schema)))
    assert message in text
    assert "The columns are: body binary, exchange string, " in text


def test_batch_reads_are_refused_with_what_to_use(spark, url):
    text = _refusal(lambda: spark.read.format("fanout").option("url", url).load().collect())
    assert "use spark.readStream, with trigger(availableNow=True)" in text


def test_continuous_processing_is_refused(read):
    text = _refusal(lambda: _run(read(), continuous="1 second"))
    assert "fanout does not support continuous processing" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "amqp://guest:geheim@127.0.0.1:1/"}, "no broker listens at 127.0.0.1:1"),
        ({"password": "geheim"}, "refused the login of user 'guest'"),
        ({"exchange": "amq.direct", "exchangeType": "fanout"}, "is of type 'direct', not 'fanout'"),
        ({"exchange": "absent", "declare": "passive"}, "there is no exchange 'absent'"),
        ({"spoolDir": "/dev/null/spool"}, "cannot create /dev/null/spool/"),
    ],
)
def test_a_query_that_cannot_subscribe_says_why(read, options, message):
    text = _refusal(lambda: _run(read(**options)))
    assert message in text
    assert "geheim" not in text


def test_a_query_that_could_not_subscribe_leaves_no_spool(read, tmp_path):
    _refusal(lambda: _run(read(password="geheim")))
    assert list((tmp_path / "spool").iterdir()) == []
