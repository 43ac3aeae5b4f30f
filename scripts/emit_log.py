#!/usr/bin/env python3
"""Publishes log messages to a fanout exchange; every subscriber gets all of them.

emit_log.py "the printer is on fire" --severity error
tail -f app.log | emit_log.py -
emit_log.py --count 1000 --rate 50
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator

import broker
from fanout_source import log_record
from fanout_source.address import BrokerAddress
from fanout_source.log_record import Message
from fanout_source.publisher import Publisher
from fanout_source.severity import SEVERITIES
from machine import SetupError
from program import run
from progress import Progress
from sample_logs import sample_logs

_LONGEST_SLEEP_SECONDS = 86400.0


def main(arguments: argparse.Namespace) -> None:
    address = BrokerAddress.parse(arguments.url or broker.current_url())
    sent = 0
    with Publisher(
        address,
        arguments.exchange,
        exchange_type=arguments.exchange_type,
        confirm=arguments.confirm,
    ) as publisher:
        for message in _messages(arguments):
            publisher.publish(*message, arguments.routing_key)
            sent += 1
    how = "confirmed by the broker" if arguments.confirm else "not confirmed"
    what = repr(arguments.text) if arguments.text not in (None, "-") else f"{sent:,} messages"
    print(f" [x] Sent {what} to exchange {arguments.exchange!r} at {address} ({how})")


def _messages(arguments: argparse.Namespace) -> Iterator[Message]:
    severity = arguments.severity or "info"
    if arguments.text is None:
        samples = sample_logs(arguments.count, size=arguments.size, severity=arguments.severity)
        yield from _paced(samples, arguments.count, arguments.rate)
    elif arguments.text == "-":
        if sys.stdin is None:
            raise SetupError("standard input is closed: give a text, or something to read")
        while line := sys.stdin.buffer.readline():
            properties = log_record.properties(
                severity=severity, app_id="emit_log", content_type=None
            )
            yield Message(line.removesuffix(b"\n"), properties)
    else:
        # Bytes of the command line that are not UTF-8 go out as they came in.
        text = os.fsencode(arguments.text).decode("utf-8", "backslashreplace")
        yield log_record.encode(text, severity=severity, logger="emit_log", app_id="emit_log")


def _paced(messages: Iterator[Message], count: int, rate: float | None) -> Iterator[Message]:
    started = time.monotonic()
    with Progress("emitting", count) as progress:
        for number, message in enumerate(messages, 1):
            if rate and (early := started + (number - 1) / rate - time.monotonic()) > 0:
                time.sleep(min(early, _LONGEST_SLEEP_SECONDS))
            yield message
            progress.update(number)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "text",
        nargs="?",
        help="the message; '-' sends each line of standard input, bytes untouched",
    )
    parser.add_argument("--count", type=_positive(int), help="send this many generated log records")
    parser.add_argument("--rate", type=_positive(float), help="records a second (default: at once)")
    parser.add_argument(
        "--size", type=_positive(int), help="pad generated records to this many bytes"
    )
    parser.add_argument(
        "--url", help="default: FANOUT_URL, the broker of `make broker`, the local one"
    )
    parser.add_argument("--exchange", default="logs")
    parser.add_argument("--exchange-type", default="fanout")
    parser.add_argument("--severity", choices=SEVERITIES, help="default: info; generated: mixed")
    parser.add_argument("--routing-key", default="")
    parser.add_argument("--confirm", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    if (arguments.text is None) == (arguments.count is None):
        parser.error("give either a text, '-' for standard input, or --count")
    if arguments.count is None and (arguments.rate or arguments.size):
        parser.error("--rate and --size go with --count")
    return arguments


def _positive(kind: type) -> type:
    def convert(text: str) -> float:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise ValueError
        return value  # type: ignore[no-any-return]

    convert.__name__ = f"positive {kind.__name__}"
    return convert  # type: ignore[return-value]


if __name__ == "__main__":
    run("emit_log", lambda: main(_parse()))
