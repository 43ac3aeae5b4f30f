#!/usr/bin/env python3
"""How fast log records go out: our publisher with confirms against a bare pika loop without.

Both send the same records to the same exchange with one queue bound, several times in turn. The
last line is JSON; `rate_ratio` is ours over pika's, of the medians.
"""

from __future__ import annotations

import argparse
import json
import time
from uuid import uuid4

import pika

import broker
from fanout_source.address import BrokerAddress
from fanout_source.connection import open_connection
from fanout_source.log_record import Message
from fanout_source.publisher import Publisher
from machine import SetupError
from measured import Measured
from program import run
from progress import Progress
from sample_logs import sample_logs


def send_with_ours(address: BrokerAddress, exchange: str, messages: list[Message]) -> None:
    with Publisher(address, exchange) as publisher:
        for body, properties in messages:
            publisher.publish(body, properties)


def send_with_pika(address: BrokerAddress, exchange: str, messages: list[Message]) -> None:
    connection = open_connection(address)
    channel = connection.channel()
    for body, properties in messages:
        channel.basic_publish(exchange, "", body, properties)
    connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    count = arguments.count
    address = broker.start().address
    exchange = f"bench-{uuid4().hex[:8]}"
    messages = list(sample_logs(count, size=200, seed=1))
    ours, bare = Measured("fanout_source, confirms"), Measured("bare pika, no confirms")
    senders = {ours: send_with_ours, bare: send_with_pika}
    watcher = open_connection(address)
    channel = watcher.channel()
    try:
        channel.exchange_declare(exchange, "fanout")
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, exchange)
        with Progress("rounds", 2 * arguments.rounds) as progress:
            for turn in range(arguments.rounds):
                for place, side in enumerate((bare, ours) if turn % 2 else (ours, bare)):
                    with side.time():
                        senders[side](address, exchange, messages)
                    await_all(watcher, channel, queue, count)
                    channel.queue_purge(queue)
                    progress.update(2 * turn + place + 1)
        channel.exchange_delete(exchange)
    finally:
        watcher.close()
    _report(ours, bare, count)


def await_all(
    watcher: pika.BlockingConnection, channel: pika.channel.Channel, queue: str, count: int
) -> None:
    deadline = time.monotonic() + 60
    while (held := channel.queue_declare(queue, passive=True).method.message_count) < count:
        if time.monotonic() > deadline:
            raise SetupError(f"only {held} of {count} messages arrived")
        watcher.sleep(0.02)


def _report(ours: Measured, bare: Measured, count: int) -> None:
    for side in (ours, bare):
        print(
            f"{side.name:28} {side.rate(count):10,.0f} msg/s {side.cpu_us(count):8.1f} µs CPU/msg"
        )
    figures = {
        "rate_ratio": round(ours.rate(count) / bare.rate(count), 2),
        "cpu_ratio": round(ours.cpu_us(count) / bare.cpu_us(count), 2),
        "messages": count,
        "ours": ours.figures(count),
        "pika": bare.figures(count),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    run("bench_emit", main)
