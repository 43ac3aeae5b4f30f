#!/usr/bin/env python3
"""What a subscriber costs, the whole way: this source beside what one would use instead of it.

All sides take the same messages from the same broker, in turn, several rounds; each is a process
tree of its own (`bench_contender`), which stands still while it is not its turn and while a backlog
is made for it. Ratios are of each round, and then the median. Results go to docs/benchmarks.md,
with a picture, and to docs/benchmarks.json.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import bench_report
import broker
from bench_arrow import ArrowFiles
from bench_latency import Latencies, measure_latency
from bench_messages import CHUNK, Load
from bench_side import Drained, Side
from fanout_source.connection import open_connection
from fanout_source.publisher import Publisher
from management import Management
from program import run
from progress import Progress

ACKED = 4 * CHUNK  # what the bare sides ack at a time; every count is a multiple
BARE = ("socket", "pika", "tutorial", "pika_to_parquet", "naive")
SIZES = (200, 2000, 20)
FLOORS = ("pika", "receiver", "parquet")  # for the other sizes
WARMED_UP = ("naive", "parquet", "noop", "console", "arrow_to_parquet")  # a JVM is faster later
SIDES = (*BARE, "receiver", "parquet", "noop", "console", "arrow_to_parquet")


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    messages: int  # a round
    rounds: int
    warm_up_rounds: int
    backlogs: Sequence[int]
    subscribers: Sequence[int]
    messages_for_each: int  # of the subscribers
    triggers: int  # of Spark's own source
    latency_rates: Sequence[int]
    latency_seconds: float
    idle_seconds: float


FULL = Plan(
    messages=48 * ACKED, rounds=3, warm_up_rounds=5, backlogs=(12 * ACKED, 123 * ACKED),
    subscribers=(1, 2, 4, 8), messages_for_each=24 * ACKED,
    triggers=150, latency_rates=(10, 1_000, 10_000), latency_seconds=20, idle_seconds=10,
)  # fmt: skip
QUICK = Plan(
    messages=12 * ACKED, rounds=1, warm_up_rounds=1, backlogs=(12 * ACKED,),
    subscribers=(1, 2), messages_for_each=12 * ACKED,
    triggers=20, latency_rates=(10,), latency_seconds=5, idle_seconds=3,
)  # fmt: skip


class Stage:
    """A side with an exchange of its own, and what fills its queue."""

    def __init__(
        self, running: broker.Broker, kind: str, folder: Path, *, size: int = 200,
        queue: str = "", **options: Any,
    ) -> None:  # fmt: skip
        """With `queue`, a durable one of that name; otherwise one that is gone with its reader."""
        self.kind, self._address = kind, running.address
        self.exchange = f"bench-{kind}-{uuid4().hex[:8]}"
        self._folder = folder / self.exchange
        self._queue = queue or (self.exchange if kind in BARE else "")
        self._stack = ExitStack()
        try:
            self._publisher = self._stack.enter_context(Publisher(self._address, self.exchange))
            self._stack.callback(self._remove)
            if kind in BARE:
                self._make_queue(durable=bool(queue))
            self.send(size)
            given = {"queue": self._queue} if self._queue else {}
            self.side = self._stack.enter_context(
                Side(kind, running.url, self._folder, exchange=self.exchange, size=size,
                     **given, **options)
            )  # fmt: skip
        except BaseException:
            self._stack.close()
            raise

    def send(self, size: int) -> None:
        """Messages of this size from now on."""
        if self.kind == "arrow_to_parquet":
            self._load: Load | ArrowFiles = ArrowFiles(self._folder / "arrow", size)
        else:
            self._load = Load(self._publisher, self.exchange, size)

    def drain(self, messages: int, **options: Any) -> Drained:
        return self.side.drain(self._load.publish, messages, **options)

    def _make_queue(self, *, durable: bool) -> None:
        with open_connection(self._address) as connection:
            channel = connection.channel()
            channel.queue_declare(self._queue, durable=durable)
            channel.queue_bind(self._queue, self.exchange)

    def _remove(self) -> None:
        with open_connection(self._address) as connection:
            channel = connection.channel()
            channel.exchange_delete(self.exchange)
            if self._queue:
                channel.queue_delete(self._queue)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class Bench:
    def __init__(
        self, running: broker.Broker, plan: Plan, folder: Path, progress: Progress
    ) -> None:
        self._broker, self._plan, self._folder, self._progress = running, plan, folder, progress
        self._steps = 0

    def run(self) -> dict[str, Any]:
        return {
            "full_load": self._full_load(),
            "backlogs": self._backlogs(),
            "subscribers": {str(count): self._several(count) for count in self._plan.subscribers},
            "latency": self._latency(),
        }

    def _full_load(self) -> dict[str, Any]:
        """By size: each side drains the same backlog, round by round."""
        found = {}
        with ExitStack() as stack:
            stages = [stack.enter_context(self._stage(kind)) for kind in SIDES if kind != "socket"]
            self._warm_up(stages)
            for size in SIZES:
                some = [stage for stage in stages if size == SIZES[0] or stage.kind in FLOORS]
                for stage in some if size != SIZES[0] else ():
                    stage.send(size)
                with self._stage("socket", size=size) as socket:
                    found[str(size)] = self._rounds([socket, *some], self._plan.messages)
        return found

    def _backlogs(self) -> dict[str, Any]:
        """From named, durable queues: ours and the discarding socket."""
        name = uuid4().hex[:8]
        with (
            self._stage("socket", queue=f"bench-socket-{name}") as socket,
            self._stage("parquet", queue=f"bench-parquet-{name}") as ours,
        ):
            self._warm_up([ours])
            return {str(size): self._rounds([socket, ours], size) for size in self._plan.backlogs}

    def _warm_up(self, stages: Sequence[Stage]) -> None:
        """A JVM is faster later."""
        for stage in stages:
            stage.side.pause()
        for stage in stages:
            for _ in range(self._plan.warm_up_rounds if stage.kind in WARMED_UP else 0):
                self._drain(stage, self._plan.messages)

    def _rounds(self, stages: Sequence[Stage], messages: int) -> dict[str, Any]:
        drained: dict[str, list[Drained]] = {stage.kind: [] for stage in stages}
        for number in range(self._plan.rounds):
            for turn in range(len(stages)):
                stage = stages[(turn + number) % len(stages)]
                drained[stage.kind].append(self._drain(stage, messages))
        return {kind: [asdict(each) for each in rounds] for kind, rounds in drained.items()}

    def _drain(self, stage: Stage, messages: int, times: int = 1) -> Drained:
        found = stage.drain(messages, times=times)
        self._step(
            f"{stage.kind:16} {found.messages:9,} in {found.seconds:6.2f} s "
            f"{found.per_second:9,.0f} /s {found.cpu_us:6.2f} µs CPU each, "
            f"{found.peak_mib:6,.0f} MiB"
        )
        return found

    def _several(self, count: int) -> dict[str, Any]:
        """Queries side by side in one session: each gets all messages."""
        with self._stage("subscribers", count=count) as stage:
            memory = stage.side.memory_mib()
            drained = [
                self._drain(stage, self._plan.messages_for_each, count)
                for _ in range(2 * self._plan.rounds)
            ]
            stage.side.resume()
            stage.side.idle_share(self._plan.idle_seconds / 2)  # until all is quiet
            return {
                "rounds": [asdict(each) for each in drained[self._plan.rounds :]],  # warm by then
                "idle_share": stage.side.idle_share(self._plan.idle_seconds),
                "memory_mib": memory,
                "memory_after_load_mib": stage.side.memory_mib(),
                "start_seconds": stage.side.start_seconds,
            }

    def _latency(self) -> dict[str, Any]:
        with self._stage("rate") as stage:
            stage.side.wait_for(self._plan.triggers)
            trigger_ms = statistics.median(stage.side.trigger_ms[-self._plan.triggers // 2 :])
            self._step(f"rate-micro-batch {trigger_ms:.0f} ms a trigger")
        found: dict[str, Latencies] = {}
        with self._stage("parquet") as stage:
            self._warm_up([stage])
            stage.side.resume()
            self._latencies(stage, self._plan.latency_rates[0])  # warms up, too
            for rate in self._plan.latency_rates:
                found[str(rate)] = self._latencies(stage, rate)
                self._step(f"{rate:,} a second: {found[str(rate)].percentiles()} ms")
        return {
            "rate_micro_batch_trigger_ms": trigger_ms,
            "publish_to_committed_ms": {rate: each.percentiles() for rate, each in found.items()},
        }

    def _latencies(self, stage: Stage, per_second: int) -> Latencies:
        seconds, address = self._plan.latency_seconds, self._broker.address
        return measure_latency(address, stage.exchange, stage.side, per_second, seconds)

    def _stage(self, kind: str, **options: Any) -> Stage:
        return Stage(self._broker, kind, self._folder, **options)

    def _step(self, line: str) -> None:
        self._steps += 1
        self._progress.say(line)
        self._progress.update(self._steps)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a minute; leaves docs/ as it is")
    quick = parser.parse_args().quick
    plan = QUICK if quick else FULL
    running = broker.start()
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=broker.RUN))
    began = time.monotonic()
    try:
        with Progress("steps", _steps(plan)) as progress:
            found = Bench(running, plan, folder, progress).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found |= {"minutes": round((time.monotonic() - began) / 60, 1), "quick": quick}
    bench_report.show(found)
    if not quick:
        bench_report.write(found, Management(running).get("overview")["rabbitmq_version"])


def _steps(plan: Plan) -> int:
    sides = len(SIDES) + (len(SIZES) - 1) * len(FLOORS) + 2 * len(plan.backlogs)
    several, others = 2 * len(plan.subscribers), 1 + len(plan.latency_rates)
    return (sides + several) * plan.rounds + plan.warm_up_rounds * (len(WARMED_UP) + 2) + others


if __name__ == "__main__":
    run("bench", main)
