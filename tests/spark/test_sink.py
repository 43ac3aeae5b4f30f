"""Rows become messages: as they were, all of them, and recognisable when they come twice."""

import datetime
import decimal
import functools
import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.frame import marshal
from pamqp.header import ContentHeader
from pyspark.sql import functions as f

from fanout_source.connection import open_connection
from fanout_source.publisher import Publisher
from private_node import control
from processes import descendants
from proxy import Proxy
from spark_processes import kept_in, kill_family
from waiting import until

APPLICATION = Path(__file__).with_name("publishing_app.py")
NOW = datetime.datetime(2026, 11, 18, 12, 0, 0)
# How a message came; all else it brought along.
OF_RECEIPT = ("exchange", "redelivered", "received_at", "offset", "decode_error")


@pytest.fixture
def collected(address):
    """`collected()`: ids and bodies of all messages published to `out`, in the order of arrival;
    kept by a durable queue."""
    with open_connection(address) as connection:
        channel = connection.channel()
        channel.exchange_declare("out", "fanout", durable=True)
        channel.queue_declare("kept", durable=True)
        channel.queue_bind("kept", "out")
    found = []

    def collect():
        with open_connection(address) as connection:
            channel = connection.channel()
            count = channel.queue_declare("kept", passive=True).method.message_count
            messages = channel.consume("kept", auto_ack=True)
            for _, properties, body in itertools.islice(messages, count):
                found.append((properties.message_id, body))
        return found

    return collect


@pytest.fixture
def write(url):
    """Writes rows as a batch."""

    def save(rows, *, mode="append", **options):
        writer = rows.write.format("fanout").options(**{"url": url, "exchange": "out", **options})
        writer.mode(mode).save()

    return save


def _numbered(spark, count):
    return spark.range(count).select(f.col("id").cast("string").alias("body"))


def _bodies(count):
    return {b"%d" % number for number in range(count)}


def _assert_each_once_by_id(found, count):
    """Every row at least once, and once after the repeats are dropped."""
    assert {body for _, body in found} == _bodies(count)
    assert len(set(found)) == count
    assert len({name for name, _ in found}) == count


def _message(number, header, user):
    """In frames: pamqp knows more types than pika does."""
    properties = commands.Basic.Properties(
        content_type="text/plain", content_encoding="utf-8", delivery_mode=1 + number % 2,
        headers=header | {"number": number}, priority=number % 256, correlation_id=f"c{number}",
        reply_to="r", expiration="600000", message_id=f"m{number}", message_type="t",
        timestamp=NOW + datetime.timedelta(seconds=number), user_id=user, app_id="a",
    )  # fmt: skip
    if number % 10 == 0:
        properties = commands.Basic.Properties(message_id=f"m{number}")
    body = b"%d" % number
    pieces = (
        commands.Basic.Publish(exchange="logs", routing_key=f"key.{number % 100}"),
        ContentHeader(0, len(body), properties),
        ContentBody(body),
    )
    return b"".join(marshal(piece, 1) for piece in pieces)


def test_what_was_read_can_be_written_as_it_is(
    address, read, start, tmp_path, url, eventually, spark
):
    """50,000 messages with all properties and every type of header, from an exchange through the
    source and the sink to another exchange, and through the source again."""
    copying = (
        read().writeStream.format("fanout")
        .options(url=url, exchange="copy", checkpointLocation=str(tmp_path / "copying"))
        .queryName("copying")
        .start()
    )  # fmt: skip
    start(read(), "original")
    start(read(exchange="copy"), "copy")
    until(copying, lambda: copying.lastProgress is not None, "it is subscribed")
    header = {
        "text": "ä", "empty": "", "bytes": bytearray(b"\xff\x00"), "number": -1, "large": 2**62,
        "yes": True, "nothing": None, "table": {"a": {"b": [1, "c"]}}, "list": [1, None, "x"],
        "float": 1.5, "decimal": decimal.Decimal("1.25"), "time": NOW,
    }  # fmt: skip
    with Publisher(address) as publisher:
        for number in range(50_000):
            publisher.publish_frames(_message(number, header, address.username), 1)

    def sent(name):
        written = spark.read.parquet(str(tmp_path / name)).drop(*OF_RECEIPT)
        return written.withColumn("headers", f.map_entries("headers"))

    eventually(lambda: sent("original").count() == 50_000, "the original has all", 120)
    eventually(lambda: sent("copy").count() == 50_000, "the copy has all", 120)
    assert sent("copy").exceptAll(sent("original")).count() == 0
    [some] = sent("copy").where("body = cast('1' as binary)").collect()
    assert len(some.headers) == len(header)
    exchanges = spark.read.parquet(str(tmp_path / "copy")).select("exchange").distinct()
    assert [row.exchange for row in exchanges.collect()] == ["copy"]
    copying.stop()


def test_a_batch_is_published_whole_with_ids_of_its_own(spark, write, collected):
    write(_numbered(spark, 5000))
    _assert_each_once_by_id(collected(), 5000)
    write(_numbered(spark, 5000))
    assert len(set(collected())) == 10_000  # another job, other ids


def test_repeats_of_a_batch_have_the_same_ids_and_named_queues_drop_them(
    spark, url, collected, tmp_path, read, start, rows, management, vhost, eventually
):
    """The query is killed between sink and checkpoint, as far as Spark can tell. Who reads from
    an exclusive queue gets what is published, and sees by the ids what came twice."""
    named = start(read(exchange="out", exchangeDurable=True, queue="audit"), "named")
    plain = start(read(exchange="out", exchangeDurable=True), "plain")
    _numbered(spark, 3000).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("body string").parquet(str(tmp_path / "in"))

    def run():
        writer = stream.writeStream.format("fanout").options(url=url, exchange="out")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    run()
    for commit in (tmp_path / "checkpoint" / "commits").iterdir():
        commit.unlink()
    run()
    assert len(collected()) == 6000
    _assert_each_once_by_id(collected(), 3000)
    until(plain, lambda: len(rows("plain")) >= 6000, "all is written")
    queue = functools.partial(management.get, "queues", vhost, "audit")
    eventually(lambda: queue().get("messages") == 0, "the named queue is drained")
    named.processAllAvailable()
    assert sorted(row.body for row in rows("named")) == sorted(_bodies(3000))


def test_two_writes_in_foreach_batch_are_two(spark, write, collected, tmp_path):
    """Though their rows are the same."""
    _numbered(spark, 300).write.parquet(str(tmp_path / "in"))
    rows = spark.readStream.schema("body string").parquet(str(tmp_path / "in"))

    def twice(batch, _number):
        write(batch)
        write(batch)

    writer = rows.writeStream.foreachBatch(twice)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert len({name for name, _ in collected()}) == 600


class Trap(Proxy):
    """Calls `spring` in a thread when clients have sent so many bytes, once."""

    def __init__(self, address, after_bytes, spring):
        self._left, self._spring, self._client_sides = after_bytes, spring, set()
        self.sprung = threading.Event()
        super().__init__(address.host, address.port)

    def _connected(self, client, server):
        self._client_sides.add(client)

    def _passing(self, source, data):
        if source in self._client_sides:
            self._left -= len(data)
            if self._left < 0 and not self.sprung.is_set():
                self.sprung.set()
                threading.Thread(target=self._spring).start()


def _through(url, proxy):
    return f"{url[: url.rindex(':')]}:{proxy.port}/{url[url.rindex('/') + 1 :]}"


def test_a_connection_that_is_lost_on_the_way_is_made_again(spark, url, address, write, collected):
    with Trap(address, 500_000, lambda: trap.reset()) as trap:
        write(_numbered(spark, 30_000).coalesce(1), url=_through(url, trap))
        assert trap.sprung.is_set()
    _assert_each_once_by_id(collected(), 30_000)


@pytest.mark.long
def test_a_broker_that_is_restarted_on_the_way_gets_the_rest_when_it_is_back(
    spark, url, address, write, collected, broker, eventually
):
    def restart():
        control(broker.process, "stop_app")
        trap.throttle(0)
        control(broker.process, "start_app")
        restarted.set()

    restarted = threading.Event()
    with Trap(address, 500_000, restart) as trap:
        trap.throttle(200_000)  # so that there is a rest
        write(_numbered(spark, 30_000).coalesce(1), url=_through(url, trap), exchangeDurable=True)
        assert trap.connections > 1
    assert restarted.wait(60)
    _assert_each_once_by_id(collected(), 30_000)


@pytest.fixture
def application(url, tmp_path):
    """Starts the application that publishes 60,000 rows of 12 files."""
    started = []

    def begin(master, url):
        log = open(tmp_path / "application.log", "ab")  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, APPLICATION, master, str(tmp_path / "in"), "out"],
            env={
                **os.environ, "FANOUT_URL": url, "PYSPARK_PYTHON": sys.executable,
                **kept_in(tmp_path),
            },
            stdout=log, stderr=log, start_new_session=True, cwd=tmp_path,
        )  # fmt: skip
        log.close()
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            kill_family(process)


@pytest.mark.long
def test_a_killed_driver_loses_nothing(spark, url, address, application, collected, tmp_path):
    _numbered(spark, 60_000).repartition(12).write.parquet(str(tmp_path / "in"))
    with Trap(address, 700_000, lambda: kill_family(process)) as trap:
        process = application("local[2]", _through(url, trap))
        assert process.wait(120) != 0
        assert trap.sprung.is_set()
    assert application("local[2]", url).wait(120) == 0
    found = collected()
    assert len(found) > 60_000, "nothing came twice: the kill came too late"
    _assert_each_once_by_id(found, 60_000)


@pytest.mark.long
def test_killed_executors_lose_nothing(spark, url, address, application, collected, tmp_path):
    _numbered(spark, 60_000).repartition(12).write.parquet(str(tmp_path / "in"))

    def kill_executors():
        """Both: one alone may not be the one that publishes."""
        for pid, command in descendants(process.pid).items():
            if "CoarseGrainedExecutorBackend" in command:
                os.kill(pid, signal.SIGKILL)

    with Trap(address, 700_000, kill_executors) as trap:
        process = application("local-cluster[2,1,1024]", _through(url, trap))
        assert process.wait(180) == 0, (tmp_path / "application.log").read_text()[-3000:]
        assert trap.sprung.is_set()
    found = collected()
    assert len(found) > 60_000, "nothing came twice: the kill came too late"
    _assert_each_once_by_id(found, 60_000)


def test_what_came_back_is_not_forgotten_with_the_connection(spark, url, address, write):
    with open_connection(address) as connection:
        channel = connection.channel()
        channel.exchange_declare("to", "direct")
        channel.queue_declare("kept", durable=True)
        channel.queue_bind("kept", "to", "good")
    rows = spark.range(0, 30_000, 1, 1).selectExpr(
        "repeat('x', 200) body", "if(id < 5, 'bad', 'good') routing_key"
    )
    with (
        Trap(address, 3_000_000, lambda: trap.reset()) as trap,
        pytest.raises(Exception, match="5 messages reached no queue behind exchange 'to'"),
    ):
        write(rows, url=_through(url, trap), exchange="to", exchangeType="direct", mandatory=True)
    assert trap.sprung.is_set()


def test_an_exchange_that_was_deleted_is_declared_again(spark, write, address):
    write(_numbered(spark, 10), exchange="passing")
    with open_connection(address) as connection:
        connection.channel().exchange_delete("passing")
    write(_numbered(spark, 10), exchange="passing")


def test_columns_are_known_whatever_their_case(spark, write, collected):
    rows = _numbered(spark, 3).selectExpr("body BODY", "body Message_Id", "null as type")
    write(rows)
    assert sorted(collected()) == [(str(n), b"%d" % n) for n in range(3)]


def test_a_mistake_of_a_query_is_that_of_the_sink(spark, url, tmp_path):
    _numbered(spark, 1).write.parquet(str(tmp_path / "in"))
    rows = spark.readStream.schema("body string").parquet(str(tmp_path / "in"))
    writer = rows.writeStream.format("fanout").options(url=url, queue="q", exchange="out")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(Exception, match="Error: option queue is one of the source") as failure:
        query.awaitTermination(60)
    assert "checkpointlocation" not in str(failure.value).lower()


@pytest.mark.parametrize("streaming", [False, True])
def test_mandatory_messages_that_reach_nobody_fail_the_task(spark, url, write, tmp_path, streaming):
    rows = _numbered(spark, 10)
    reason = "messages reached no queue behind exchange 'nobody'"
    if not streaming:
        write(rows, exchange="nobody")  # nobody needs to listen by default
        with pytest.raises(Exception, match=f"10 {reason}"):
            write(rows.coalesce(1), exchange="nobody", mandatory=True)
        return
    rows.write.parquet(str(tmp_path / "in"))
    query = (
        spark.readStream.schema("body string").parquet(str(tmp_path / "in"))
        .writeStream.format("fanout").options(url=url, exchange="nobody", mandatory=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )  # fmt: skip
    with pytest.raises(Exception, match=reason):
        query.awaitTermination(60)


def test_a_message_that_a_full_queue_refuses_fails_the_task(spark, write, address):
    with open_connection(address) as connection:
        channel = connection.channel()
        channel.exchange_declare("out", "fanout")
        arguments = {"x-max-length": 10, "x-overflow": "reject-publish"}
        channel.queue_declare("small", durable=True, arguments=arguments)
        channel.queue_bind("small", "out")
    with pytest.raises(Exception, match="refused a message"):
        write(_numbered(spark, 100))


def test_a_broker_that_blocks_publishers_fails_the_task_with_its_reason(spark, write, broker):
    control(broker.process, "set_vm_memory_high_watermark", "0")
    try:
        with pytest.raises(Exception, match=r"confirmed nothing for 2 s \(it blocks publishers: "):
            write(_numbered(spark, 100), confirmTimeoutMs=2000)
    finally:
        control(broker.process, "set_vm_memory_high_watermark", "0.4")


def test_a_broker_that_is_away_fails_the_task_after_the_stated_time(spark, write):
    with pytest.raises(Exception, match=r"no broker listens at 127\.0\.0\.1:1"):
        write(_numbered(spark, 1), url="amqp://127.0.0.1:1", confirmTimeoutMs=500)


def test_a_login_that_is_refused_fails_the_task_at_once(spark, write, url, address):
    with Proxy(address.host, address.port) as proxy:
        account = {"username": "nobody", "password": "s3cret", "url": _through(url, proxy)}
        with pytest.raises(Exception, match="refused the login of user 'nobody'") as failure:
            write(_numbered(spark, 20).repartition(20), **account)
        assert proxy.connections <= 2, "one for each task that runs"
    assert "s3cret" not in str(failure.value)


def test_a_wrong_user_id_is_refused_with_the_brokers_reason(spark, write):
    rows = _numbered(spark, 1).withColumn("user_id", f.lit("somebody"))
    with pytest.raises(Exception, match="user_id property set to 'somebody' but authenticated"):
        write(rows)


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ({"mandatry": "true"}, None, "option mandatry is not known: did you mean mandatory?"),
        ({"exchange": "a,b"}, None, "a sink publishes to one exchange"),
        ({"queue": "q"}, None, "option queue is one of the source, not of the sink"),
        ({"batchSize": "0"}, None, "option batchSize=0: must be a number from 1"),
        ({"mode": "overwrite"}, None, "what is published stays: use mode"),
        ({}, ("extra", "1"), "no column extra in a message.*ignoreUnknownColumns=true"),
        ({}, ("headers", "'x'"), "column headers is string, not map<string,string>"),
        ({}, ("body", "1"), "column body is int, not binary or string"),
        ({}, ("body", "cast(null as string)"), "rows have no body"),
        ({}, ("type", "repeat('x', 256)"), "column type has 256 bytes; AMQP allows 255"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(spark, write, options, change, message):
    rows = _numbered(spark, 1)
    if change is not None:
        name, expression = change
        rows = rows.withColumn(name, f.expr(expression))
    with pytest.raises(Exception, match=message) as failure:
        write(rows, **options)
    assert "Traceback" not in str(failure.value)


def test_the_exchange_must_be_named(spark, url):
    """Otherwise what reads `logs` would soon write to it."""
    with pytest.raises(Exception, match="option exchange: say which one to publish to"):
        _numbered(spark, 1).write.format("fanout").option("url", url).mode("append").save()


def test_unknown_columns_can_be_left_out(spark, write, collected):
    write(_numbered(spark, 10).withColumn("extra", f.lit(1)), ignoreUnknownColumns=True)
    _assert_each_once_by_id(collected(), 10)


def test_an_option_of_the_sink_is_refused_by_the_source(read):
    with pytest.raises(Exception, match="option mandatory is one of the sink, not of the source"):
        read(mandatory=True)


def test_tasks_that_follow_each_other_share_a_connection(spark, write, url, address):
    """A stream of small batches does not open connections by the hundred."""
    with Proxy(address.host, address.port) as proxy:
        for _ in range(5):
            write(_numbered(spark, 10).repartition(20), url=_through(url, proxy))
        assert 1 <= proxy.connections <= 10, "100 tasks"


def test_the_password_can_stay_in_a_file(spark, write, collected, management, vhost, url, tmp_path):
    name = f"writer-{vhost}"
    management.put("users", name, body={"password": "geheim", "tags": ""})
    try:
        rights = {"configure": "^$", "write": "^out$", "read": "^$"}
        management.put("permissions", vhost, name, body=rights)
        (tmp_path / "password").write_text("geheim\n")
        account = {"username": name, "passwordFile": tmp_path / "password"}
        write(_numbered(spark, 10), **account)
        _assert_each_once_by_id(collected(), 10)
        with pytest.raises(Exception, match="passwordFile=/no/such: cannot be read"):
            write(_numbered(spark, 1), username=name, passwordFile="/no/such")
        with pytest.raises(Exception, match="rabbitmqctl set_permissions"):
            write(_numbered(spark, 1), **account, exchange="another")
    finally:
        management.delete("users", name)
