#!/usr/bin/env python3
"""Removes the queue of a named subscription that is no longer wanted.

unsubscribe.py audit
"""

from __future__ import annotations

import argparse
import sys

import broker
from fanout_source.address import BrokerAddress
from fanout_source.connection import explained, open_connection
from fanout_source.topology import Topology, require_name
from machine import SetupError
from program import run


def main() -> int:
    given = _parse()
    require_name("queue", given.queue)
    address = BrokerAddress.parse(given.url or broker.current_url())
    with open_connection(address) as connection:
        topology = Topology(connection, address)
        found = topology.look_for_queue(given.queue)
        if found is None:
            if topology.remove_markers(given.queue):
                print(f"queue {given.queue!r} was gone already; what it had left is removed")
                return 0
            raise SetupError(f"there is no queue {given.queue!r} on the broker at {address}")
        if found.consumer_count:
            raise SetupError(f"queue {given.queue!r} has a subscriber: stop it first")
        held = found.message_count
        if held and not given.yes and not _is_confirmed(given.queue, held):
            print(f"queue {given.queue!r} is left alone")
            return 1
        with explained(address, f"deleting queue {given.queue!r}"):
            connection.channel().queue_delete(given.queue)
        topology.remove_markers(given.queue)
    print(f"queue {given.queue!r} is gone, with {held:,} messages")
    return 0


def _is_confirmed(queue: str, held: int) -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        raise SetupError(
            f"queue {queue!r} holds {held:,} messages: --yes removes them too "
            f"(make unsubscribe QUEUE={queue} ARGS=--yes)"
        )
    answer = input(f"queue {queue!r} holds {held:,} messages, remove them too? [y/N] ")
    return answer.strip().lower() in ("y", "yes")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("queue")
    parser.add_argument("--yes", action="store_true", help="do not ask, whatever it holds")
    parser.add_argument(
        "--url", help="default: FANOUT_URL, the broker of `make broker`, the local one"
    )
    return parser.parse_args()


if __name__ == "__main__":
    run("unsubscribe", main)
