#!/usr/bin/env python3
"""Ten million messages through a receiver with a small spool and a slow reader.

Emitters outrun the reader, the spool fills, and the backlog waits in the broker. Each message
carries its number, so that every lost or doubled one is found; the receiver's resident memory is
looked at twice a second. The last line is JSON. Ends with 1 when something was lost or doubled,
when the spool outgrew its limit, or when memory grew by more than 32 MiB after the first tenth.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import tempfile
import time
from pathlib import Path
from uuid import uuid4

import pyarrow.compute as pc

import broker
from fanout_source import message
from fanout_source.address import BrokerAddress
from fanout_source.publisher import Publisher
from fanout_source.receiver import Receiver
from fanout_source.spool import Spool, read_slice
from fanout_source.subscription import Subscription
from program import run
from progress import Progress

MIB = 1024**2


def emit(url: str, exchange: str, count: int) -> None:
    with Publisher(BrokerAddress.parse(url), exchange) as publisher:
        for number in range(count):
            publisher.publish(b"%012d" % number)


class Reader:
    """Twice a second reads a batch, checks that its numbers follow those before, and lets go."""

    def __init__(self, receiver: Receiver, spool: Spool, per_second: int) -> None:
        self._receiver, self._spool, self._batch_rows = receiver, spool, per_second // 2
        self.seen = 0
        self.out_of_order = 0

    def read_batch(self) -> None:
        due = time.monotonic() + 0.5
        end = self._receiver.wait_for_more(self.seen, timeout_seconds=1)
        end = min(end, self.seen + self._batch_rows)
        for piece in self._spool.slices(self.seen, end):
            batch = read_slice(self._spool.location, self._spool.id, piece)
            rows = message.decode(batch, piece.start, ("body", "offset"))
            numbers = pc.cast(pc.cast(rows.column("body"), "string"), "int64")
            right = pc.equal(numbers, rows.column("offset"))
            self.out_of_order += batch.num_rows - pc.sum(right).as_py()
        time.sleep(max(0.0, due - time.monotonic()))
        self._receiver.drop_below(end)
        self.seen = end


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--spool-mib", type=int, default=64)
    parser.add_argument("--rate", type=int, default=20_000, help="messages read a second")
    arguments = parser.parse_args()
    running = broker.start()
    exchange = f"bench-{uuid4().hex[:8]}"
    subscription = Subscription((exchange,))
    location = tempfile.mkdtemp(prefix="bench-", dir=broker.RUN)
    limit = arguments.spool_mib * MIB
    memory: list[tuple[int, int]] = []
    largest = pauses = 0
    started = time.monotonic()
    # A process of its own, and before the receiver's threads begin.
    emitter = multiprocessing.get_context("spawn").Process(
        target=emit, args=(running.url, exchange, arguments.count)
    )
    try:
        with (
            Spool.create(location) as spool,
            Receiver(running.address, spool, subscription, max_spool_bytes=limit) as receiver,
            Progress("received", arguments.count) as progress,
        ):
            emitter.start()
            reader = Reader(receiver, spool, arguments.rate)
            while reader.seen < arguments.count:
                largest = max(largest, spool.bytes)
                pauses += receiver.status().paused
                reader.read_batch()
                memory.append((reader.seen, _resident_bytes()))
                progress.update(min(reader.seen, arguments.count))
                if not emitter.is_alive() and emitter.exitcode:
                    return 1
            extra = receiver.wait_for_more(reader.seen, timeout_seconds=2) - arguments.count
            gaps = receiver.status().gaps
    finally:
        if emitter.is_alive():
            emitter.terminate()
        emitter.join()
        shutil.rmtree(location)
    tenth = arguments.count // 10
    early = max(size for seen, size in memory if seen <= tenth or seen == memory[0][0])
    figures = {
        "messages": arguments.count,
        "out_of_order": reader.out_of_order,
        "extra": extra,
        "gaps": gaps,
        "seconds": round(time.monotonic() - started),
        "spool_limit_mib": arguments.spool_mib,
        "spool_largest_mib": round(largest / MIB, 1),
        "times_seen_paused": pauses,
        "resident_mib_in_the_first_tenth": round(early / MIB, 1),
        "resident_mib_largest": round(max(size for _, size in memory) / MIB, 1),
        "resident_mib_at_the_end": round(memory[-1][1] / MIB, 1),
    }
    print(json.dumps(figures))
    flat = max(size for _, size in memory) - early < 32 * MIB
    whole = not (reader.out_of_order or extra or gaps)
    return 0 if flat and whole and largest <= limit * 5 // 4 else 1


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


if __name__ == "__main__":
    run("bench_memory", main)
