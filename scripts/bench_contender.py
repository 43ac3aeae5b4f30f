#!/usr/bin/env python3
"""One side of `make bench`, in a process of its own, so that all that it takes can be counted.

bench_contender.py NAME URL FOLDER [OPTION=VALUE …]

Consumes from a queue until stdin ends, and says on stdout how many messages it is done with, as
JSON: `{"done": 4096}`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pika import frame, spec

from bench_messages import CHUNK, CONSUMER_TAG, ends_on_the_wire
from fanout_source.address import BrokerAddress
from fanout_source.connection import open_connection
from fanout_source.receiver import PREFETCH_COUNT, Receiver
from fanout_source.spool import Spool
from fanout_source.subscription import Subscription

ACK_EVERY = 4096
_RECEIVE_BYTES = 256 * 1024
_LOOK_SECONDS = 0.1
_HEARTBEAT_SECONDS = 600  # nobody runs while a backlog is made


class Side:
    """What a contender is asked, and where it answers."""

    def __init__(self, url: str, folder: Path, options: dict[str, str]) -> None:
        self.url, self.folder, self.options = url, folder, options
        self.queue = options.get("queue", "")
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        self._done = 0

    def say(self, **figures: Any) -> None:
        self._answers.write(json.dumps(figures) + "\n")

    def add(self, done: int) -> None:
        self.tell(self._done + done)

    def tell(self, done: int, **figures: Any) -> None:
        """How many messages it is done with by now."""
        self._done = done
        self.say(done=done, **figures)

    def connect(self) -> Any:
        """A channel, as a bare pika program makes it."""
        address = BrokerAddress.parse(self.url)
        channel = open_connection(address, heartbeat_seconds=_HEARTBEAT_SECONDS).channel()
        channel.basic_qos(prefetch_count=PREFETCH_COUNT)
        self.say(ready=True)
        return channel


# ── without Spark ───────────────────────────────────────────────────────────────────────────────


def socket(side: Side) -> None:
    """Reads and discards, and acks by the number of bytes: what the broker can give at all."""
    ends = ends_on_the_wire(int(side.options["size"]), side.options["exchange"], ACK_EVERY)
    channel = side.connect()
    raw = channel.connection._impl._transport._sock
    raw.setblocking(True)
    consume = spec.Basic.Consume(queue=side.queue, consumer_tag=CONSUMER_TAG)
    raw.sendall(frame.Method(channel.channel_number, consume).marshal())
    got = -len(frame.Method(1, spec.Basic.ConsumeOk(CONSUMER_TAG)).marshal())
    buffer, acked = bytearray(_RECEIVE_BYTES), 0
    for end in ends:
        while got < end:
            got += raw.recv_into(buffer)
        acked += ACK_EVERY
        ack = spec.Basic.Ack(acked, multiple=True)
        raw.sendall(frame.Method(channel.channel_number, ack).marshal())
        side.add(ACK_EVERY)


def pika(side: Side) -> None:
    """A callback that counts and acks."""
    channel, seen = side.connect(), 0

    def on_message(channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        nonlocal seen
        seen += 1
        if seen % ACK_EVERY == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
            side.add(ACK_EVERY)

    channel.basic_consume(side.queue, on_message)
    channel.start_consuming()


def tutorial(side: Side) -> None:
    """RabbitMQ's `receive_logs.py`, a line for each message, into a file."""
    channel, seen = side.connect(), 0
    with open(side.folder / "logs.txt", "a") as file:

        def callback(_channel: Any, _method: Any, _properties: Any, body: bytes) -> None:
            nonlocal seen
            seen += 1
            print(f" [x] {body!r}", file=file)
            if seen % ACK_EVERY == 0:
                side.add(ACK_EVERY)

        channel.basic_consume(side.queue, callback, auto_ack=True)
        channel.start_consuming()


def pika_to_parquet(side: Side) -> None:
    """A callback that gathers, writes a row group with pyarrow, and acks."""
    channel = side.connect()
    names = ("body", "routing_key", "headers", "message_id", "timestamp", "app_id")
    kinds = (
        pa.binary(), pa.string(), pa.map_(pa.string(), pa.string()), pa.string(), pa.int64(),
        pa.string(),
    )  # fmt: skip
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    columns: list[list[Any]] = [[] for _ in names]
    with pq.ParquetWriter(side.folder / "logs.parquet", schema) as writer:

        def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            p = properties
            cells = (
                body, method.routing_key, list(p.headers.items()), p.message_id, p.timestamp,
                p.app_id,
            )  # fmt: skip
            for column, cell in zip(columns, cells, strict=True):
                column.append(cell)
            if len(columns[0]) == ACK_EVERY:
                writer.write_table(pa.table(columns, schema=schema))
                for column in columns:
                    column.clear()
                channel.basic_ack(method.delivery_tag, multiple=True)
                side.add(ACK_EVERY)

        channel.basic_consume(side.queue, on_message)
        channel.start_consuming()


def receiver(side: Side) -> None:
    """Ours, without Spark: into the spool, synced, acked."""
    subscription = Subscription((side.options["exchange"],), queue=side.queue or None)
    address = BrokerAddress.parse(side.url)
    with (
        Spool.create(str(side.folder)) as spool,
        Receiver(address, spool, subscription, heartbeat_seconds=_HEARTBEAT_SECONDS) as ours,
    ):
        side.say(ready=True)
        done = 0
        while True:
            end = ours.wait_for_more(done, 1.0)
            if end > done:
                side.add(end - done)
                done = end
                ours.drop_below(done)
            else:
                time.sleep(0.01)


# ── Spark ───────────────────────────────────────────────────────────────────────────────────────


def spark_session(side: Side) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": side.options.get("log", "FATAL"),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.network.timeout": f"{_HEARTBEAT_SECONDS}s",  # it stands still, now and then
        "spark.storage.blockManagerSlaveTimeoutMs": f"{_HEARTBEAT_SECONDS}s",
    }
    return SparkSession.builder.master("local[*]").config(map=settings).getOrCreate()


def _ours(side: Side, spark: Any, number: int = 0) -> Any:
    options = {"url": side.url, "exchange": side.options["exchange"]}
    options["heartbeat"] = str(_HEARTBEAT_SECONDS)
    options["spoolDir"] = str(side.folder / f"spool-{number}")
    if side.queue:
        options["queue"] = side.queue
    return spark.readStream.format("fanout").options(**options).load()


def _to_parquet(side: Side, rows: Any, number: int = 0) -> Any:
    writer = rows.writeStream.format("parquet").option("path", str(side.folder / f"out-{number}"))
    return writer.option("checkpointLocation", str(side.folder / f"checkpoint-{number}"))


def _run(side: Side, *writers: Any) -> None:
    """Start, one after the other, each when the one before is subscribed; then look on, at next to
    no cost: a listener in Python would have its share of every trigger."""
    queries = []
    for writer in writers:
        began = time.monotonic()
        queries.append(writer.start())
        while _progress(queries[-1]) is None:
            time.sleep(0.01)
        side.say(started=time.monotonic() - began)
    side.say(ready=True)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    done = 0
    while True:
        found = [_progress(query) for query in queries]
        before, done = done, sum(_position(each["sources"][0]["endOffset"]) for each in found)
        if done != before:
            side.tell(done, ms=found[0]["durationMs"]["triggerExecution"])
        time.sleep(_LOOK_SECONDS)


def _progress(query: Any) -> dict[str, Any] | None:
    if query.exception():
        raise query.exception()
    progress = query.lastProgress
    return progress and json.loads(progress.json)


def _position(offset: Any) -> int:
    """How many messages are before it."""
    if isinstance(offset, dict):
        return offset["files"] * CHUNK if "files" in offset else offset["offset"]
    return int(offset or 0)


def parquet(side: Side) -> None:
    spark = spark_session(side)
    _run(side, _to_parquet(side, _ours(side, spark)))


def noop(side: Side) -> None:
    spark = spark_session(side)
    writer = _ours(side, spark).writeStream.format("noop")
    _run(side, writer.option("checkpointLocation", str(side.folder / "checkpoint")))


def console(side: Side) -> None:
    """As `jobs/logs_to_console.py` does it, into a file."""
    from fanout_source import console, logs

    spark = spark_session(side)
    sys.stdout = open(side.folder / "console.txt", "w")  # noqa: SIM115
    writer = console.show(logs.parse(_ours(side, spark)))
    _run(side, writer.option("checkpointLocation", str(side.folder / "checkpoint")))


def subscribers(side: Side) -> None:
    """Several queries, each with an exclusive queue of its own."""
    spark = spark_session(side)
    count = int(side.options["count"])
    _run(side, *(_to_parquet(side, _ours(side, spark, n), n) for n in range(count)))


def naive(side: Side) -> None:
    from bench_naive import NaiveSource

    spark = spark_session(side)
    spark.dataSource.register(NaiveSource)
    rows = spark.readStream.format("naive").options(
        address=side.url, queue=side.queue, prefetch=PREFETCH_COUNT, heartbeat=_HEARTBEAT_SECONDS
    )
    _run(side, _to_parquet(side, rows.load()))


def arrow_to_parquet(side: Side) -> None:
    """What Spark alone takes for these rows."""
    from bench_arrow import ArrowSource

    spark = spark_session(side)
    spark.dataSource.register(ArrowSource)
    rows = spark.readStream.format("arrow-files").option("path", str(side.folder / "arrow"))
    _run(side, _to_parquet(side, rows.load()))


def rate(side: Side) -> None:
    """Spark's own, a row a trigger: what a trigger takes at least."""
    spark = spark_session(side)
    rows = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=1)
    _run(side, _to_parquet(side, rows.load()))


CONTENDERS: dict[str, Callable[[Side], None]] = {
    each.__name__: each
    for each in (
        socket, pika, tutorial, pika_to_parquet, receiver,
        parquet, noop, console, subscribers, naive, arrow_to_parquet, rate,
    )
}  # fmt: skip


def _given() -> Iterator[tuple[str, str]]:
    for option in sys.argv[4:]:
        name, _, value = option.partition("=")
        yield name, value


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    name, url, folder = sys.argv[1:4]
    side = Side(url, Path(folder), dict(_given()))
    if name in ("socket", "pika", "tutorial", "pika_to_parquet", "receiver"):
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    CONTENDERS[name](side)


if __name__ == "__main__":
    main()
