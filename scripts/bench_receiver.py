#!/usr/bin/env python3
"""What receiving costs: our receiver into its spool against a bare pika callback and a bare socket.

All drain the same backlog, each from a queue of its own, several times in turn, with the same
prefetch count:

  pika      a callback that only counts, acking every 4,096th message
  receiver  everything on disk, synced, before it is acked
  socket    reads and discards, and acks by the number of bytes

Then the spooled messages are decoded. The last line is JSON; `cpu_ratio` is receiver over pika and
`rate_ratio` receiver over socket: of each round, and then the median, since a shared machine is
faster in one minute than in the next.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any
from uuid import uuid4

from pika import frame, spec

import broker
from fanout_source import message
from fanout_source.address import BrokerAddress
from fanout_source.connection import open_connection
from fanout_source.log_record import Message
from fanout_source.publisher import Publisher
from fanout_source.receiver import PREFETCH_COUNT, Receiver
from fanout_source.spool import Spool, read_slice
from fanout_source.subscription import Subscription
from measured import Measured
from program import run
from progress import Progress
from sample_logs import sample_logs

ACK_EVERY = 4096
CONSUMER_TAG = "fanout"


class Queue:
    """An exclusive queue on a connection of its own, as a bare pika program would make it."""

    def __init__(self, address: BrokerAddress, exchange: str) -> None:
        self.connection = open_connection(address)
        self.channel = self.connection.channel()
        self.name: str = self.channel.queue_declare("", exclusive=True).method.queue
        self.channel.queue_bind(self.name, exchange)
        self.channel.basic_qos(prefetch_count=PREFETCH_COUNT)


def drain_with_pika(queue: Queue, count: int) -> None:
    seen = 0

    def on_message(channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        nonlocal seen
        seen += 1
        if seen % ACK_EVERY == 0 or seen == count:
            channel.basic_ack(method.delivery_tag, multiple=True)
            if seen == count:
                channel.stop_consuming()

    queue.channel.basic_consume(queue.name, on_message, consumer_tag=CONSUMER_TAG)
    queue.channel.start_consuming()


def drain_with_socket(queue: Queue, sizes: list[int]) -> None:
    """pika has made the connection; from here on its socket is ours."""
    channel = queue.channel.channel_number
    ends = list(accumulate(sizes))
    transport: Any = queue.connection._impl._transport
    raw = transport._sock
    raw.setblocking(True)
    consume = spec.Basic.Consume(queue=queue.name, consumer_tag=CONSUMER_TAG)
    raw.sendall(frame.Method(channel, consume).marshal())
    answer = len(frame.Method(channel, spec.Basic.ConsumeOk(CONSUMER_TAG)).marshal())
    got, acked = -answer, 0
    buffer = bytearray(256 * 1024)
    while got < ends[-1]:
        got += raw.recv_into(buffer)
        while acked < len(ends) and got >= ends[min(acked + ACK_EVERY, len(ends)) - 1]:
            acked = min(acked + ACK_EVERY, len(ends))
            raw.sendall(frame.Method(channel, spec.Basic.Ack(acked, multiple=True)).marshal())
    raw.setblocking(False)


def drain_with_receiver(receiver: Receiver, count: int) -> None:
    receiver.consume()
    while receiver.status().next_offset < count:
        time.sleep(0.01)
    assert receiver.wait_for_more(count) == count  # all of it is on disk


def wire_sizes(exchange: str, messages: list[Message]) -> list[int]:
    return [
        len(
            frame.Method(1, spec.Basic.Deliver(CONSUMER_TAG, 1, False, exchange, "")).marshal()
            + frame.Header(1, len(body), properties).marshal()
            + frame.Body(1, body).marshal()
        )
        for body, properties in messages
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    count, address = arguments.count, broker.start().address
    messages = list(sample_logs(count, size=200, seed=1))
    bare, ours, floor = Measured("bare pika"), Measured("receiver"), Measured("bare socket")
    decoded = {"all columns": Measured("decode all"), "body and key": Measured("decode two")}
    location = tempfile.mkdtemp(prefix="bench-", dir=broker.RUN)
    try:
        with Progress("rounds", arguments.rounds) as progress:
            for turn in range(arguments.rounds):
                _round(turn, address, messages, (bare, ours, floor), decoded, location)
                progress.update(turn + 1)
    finally:
        shutil.rmtree(location)
    _report(count, bare, ours, floor, decoded)


def _round(
    turn: int,
    address: BrokerAddress,
    messages: list[Message],
    sides: tuple[Measured, Measured, Measured],
    decoded: dict[str, Measured],
    location: str,
) -> None:
    bare, ours, floor = sides
    count, exchange = len(messages), f"bench-{uuid4().hex[:8]}"
    with Publisher(address, exchange) as publisher, Spool.create(location) as spool:
        receiver = Receiver(address, spool, Subscription((exchange,)))
        receiver.subscribe()
        for_pika, for_socket = Queue(address, exchange), Queue(address, exchange)
        for each in messages:
            publisher.publish(*each)
        publisher.flush()
        sizes = wire_sizes(exchange, messages)
        drains: list[tuple[Measured, Callable[[], None]]] = [
            (bare, lambda: drain_with_pika(for_pika, count)),
            (ours, lambda: drain_with_receiver(receiver, count)),
            (floor, lambda: drain_with_socket(for_socket, sizes)),
        ]
        for side, drain in drains[turn % 3 :] + drains[: turn % 3]:
            with side.time():
                drain()
        receiver.close()
        for_pika.connection.close()
        for_socket.connection.close()
        _decode(spool, count, decoded["all columns"], tuple(message.COLUMNS))
        _decode(spool, count, decoded["body and key"], ("body", "routing_key"))
    with open_connection(address) as connection:
        connection.channel().exchange_delete(exchange)


def _decode(spool: Spool, count: int, side: Measured, columns: tuple[str, ...]) -> None:
    batches = [(read_slice(spool.location, spool.id, s), s.start) for s in spool.slices(0, count)]
    with side.time():
        for batch, start in batches:
            message.decode(batch, start, columns)


def _report(
    count: int, bare: Measured, ours: Measured, floor: Measured, decoded: dict[str, Measured]
) -> None:
    for side in (bare, ours, floor):
        rate, cpu = side.rate(count), side.cpu_us(count)
        print(f"{side.name:14} {rate:10,.0f} msg/s {cpu:8.2f} µs CPU/msg")
    for name, side in decoded.items():
        print(f"decode {name:14} {side.cpu_us(count):19.2f} µs CPU/msg")
    figures = {
        "cpu_ratio": _ratio(ours.cpu_seconds, bare.cpu_seconds),
        "rate_ratio": _ratio(floor.seconds, ours.seconds),
        "messages": count,
        "pika": bare.figures(count),
        "receiver": ours.figures(count),
        "socket": floor.figures(count),
        "decode_cpu_us": {name: round(side.cpu_us(count), 2) for name, side in decoded.items()},
    }
    print(json.dumps(figures))


def _ratio(of: list[float], to: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(of, to, strict=True)), 3)


if __name__ == "__main__":
    run("bench_receiver", main)
