#!/usr/bin/env python3
"""Three subscribers for an hour, a fault every minute, and what they take of the machine.

soak.py --minutes 60 --seed 1

An exclusive, a classic and a quorum queue are bound to one exchange, each with a Spark application
of its own. Each second is noted what their processes hold in memory and how many files they have
open, how large the spools are, and what waits in the queues. The picture goes to docs/soak.png,
the rest to docs/soak.md and docs/soak.json. Ends with 1 when a message was lost or doubled, when a
gap was not recorded, or recorded and did not happen, or when a process has grown.

Faults that end processes happen to the subscriber with the quorum queue alone, so that those of
the other two have an hour in which to grow.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT / "scripts"), str(PROJECT / "tests"), str(Path(__file__).parent)]

import matplotlib as mpl  # noqa: E402

mpl.use("Agg")

from injections import FAULTS, Fault  # noqa: E402
from life import DOCS, Happening, Life, attribute  # noqa: E402
from matplotlib import pyplot  # noqa: E402
from world import Emitter, Stuck, World, own_vhost  # noqa: E402

import broker as brokers  # noqa: E402
from circumstances import circumstances, described  # noqa: E402
from machine import SetupError  # noqa: E402
from management import Management  # noqa: E402
from processes import descendants  # noqa: E402
from program import run  # noqa: E402

KINDS = ("exclusive", "classic", "quorum")
ROLES = {
    "streaming_source_runner": "planner",
    "org.apache.spark.deploy": "JVM",
    "pyspark.daemon": "workers",
    "": "driver",
}
OF_PROCESSES = ("planner_killed", "query_stopped", "driver_killed", "jvm_killed")
RUN = brokers.RUN / "soak"
MIB = 1024**2
# What a process may hold more in the last quarter of its time than in the second.
GROWTH_SHARE, GROWTH_MIB, GROWTH_FILES = 1.25, 32, 20


@dataclass
class Process:
    """What one process held, second by second."""

    role: str
    times: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def quarter(self, values: Sequence[int], number: int) -> float:
        length = len(values) // 4
        return statistics.median(values[number * length : (number + 1) * length])

    @property
    def growth(self) -> str | None:
        early, late = (self.quarter(self.memory, number) / MIB for number in (1, 3))
        if late > early * GROWTH_SHARE + GROWTH_MIB:
            return f"memory from {early:.0f} to {late:.0f} MiB"
        early, late = (self.quarter(self.files, number) for number in (1, 3))
        if late > early + GROWTH_FILES:
            return f"open files from {early:.0f} to {late:.0f}"
        return None


@dataclass
class Curves:
    """Of one subscriber."""

    times: list[float] = field(default_factory=list)
    memory: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # by role
    files: list[int] = field(default_factory=list)
    spool: list[float] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    processes: dict[int, Process] = field(default_factory=dict)

    def flaws(self, seconds: float) -> list[str]:
        """Of the processes that were there for at least half of the time."""
        old = [p for p in self.processes.values() if p.times[-1] - p.times[0] > seconds / 2]
        return [f"{p.role} has grown: {p.growth}" for p in old if p.growth]


class Watcher:
    """Notes once a second what the subscribers hold."""

    def __init__(self, worlds: Sequence[World]) -> None:
        self._worlds, self._began = worlds, time.monotonic()
        self.curves = [Curves() for _ in worlds]
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(1 - self.seconds % 1):
            waiting = self._waiting()
            for world, curves in zip(self._worlds, self.curves, strict=True):
                self._note(world, curves, waiting)

    def _waiting(self) -> dict[str, int]:
        """By queue; nothing while the broker is away."""
        with contextlib.suppress(Exception):
            queues = self._worlds[0].management.get("queues", self._worlds[0].vhost)
            return {queue["name"]: queue.get("messages", 0) for queue in queues}
        return {}

    def _note(self, world: World, curves: Curves, waiting: dict[str, int]) -> None:
        now, memory, files = self.seconds, dict.fromkeys(ROLES.values(), 0), 0
        assert world.application is not None
        found = {world.application.pid: "", **descendants(world.application.pid)}
        for pid, command in found.items():
            with contextlib.suppress(OSError, IndexError):
                resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
                opened = len(os.listdir(f"/proc/{pid}/fd"))
                role = next(role for part, role in ROLES.items() if part in command)
                process = curves.processes.setdefault(pid, Process(role))
                process.times.append(now)
                process.memory.append(resident)
                process.files.append(opened)
                memory[role] += resident
                files += opened
        curves.times.append(now / 60)
        for role, size in memory.items():
            curves.memory[role].append(size / MIB)
        curves.files.append(files)
        curves.spool.append(_size(Path(f"{world.sink}.spool")) / MIB)
        ours = (n for name, n in waiting.items() if name.startswith(world.queue or "amq.gen-"))
        curves.waiting.append(sum(ours))


def _size(folder: Path) -> int:
    size = 0
    for file in folder.glob("*/*.arrow"):
        with contextlib.suppress(OSError):
            size += file.stat().st_size
    return size


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--per-second", type=int, default=500, help="messages (default: 500)")
    parser.add_argument("--pause-seconds", type=float, default=60, help="from fault to fault")
    given = parser.parse_args()
    print(f"seed {given.seed}, {given.minutes:g} minutes, {given.per_second:,} messages a second")
    running = brokers.start(RUN, url_variable="FANOUT_TEST_URL", reap=True)
    try:
        management = Management(running)
        rabbitmq = management.get("overview")["rabbitmq_version"]
        with (
            own_vhost(running, management) as vhost,
            tempfile.TemporaryDirectory(
                prefix="soak-", dir=RUN, ignore_cleanup_errors=True
            ) as folder,
            ExitStack() as stack,
        ):
            emitter = Emitter(running, vhost, given.per_second, durable=True)
            worlds = [
                World(
                    running, management, vhost, Path(folder) / kind, emitter=emitter,
                    queue_type=None if kind == "exclusive" else kind, exchangeDurable="true",
                )
                for kind in KINDS
            ]  # fmt: skip
            for world in worlds:
                stack.enter_context(world)
            lives, curves, faults = _live(worlds, given)
    finally:
        brokers.stop(RUN)
    flaws = [flaw for life in lives for flaw in life.flaws]
    for kind, of_kind in zip(KINDS, curves, strict=True):
        flaws += [f"{kind}: {flaw}" for flaw in of_kind.flaws(60 * given.minutes)]
    DOCS.mkdir(exist_ok=True)
    _draw(curves, faults)
    _report(lives, curves, flaws, given, rabbitmq)
    for flaw in flaws:
        print(f"FLAW {flaw}")
    return 1 if flaws else 0


def _live(
    worlds: list[World], given: argparse.Namespace
) -> tuple[list[Life], list[Curves], list[tuple[float, str]]]:
    chance, watcher = random.Random(given.seed), Watcher(worlds)
    happenings: list[list[Happening]] = [[] for _ in worlds]
    faults: list[tuple[float, str]] = []
    stuck = None
    until = 60 * given.minutes
    while watcher.seconds + given.pause_seconds < until and stuck is None:
        time.sleep(given.pause_seconds - watcher.seconds % given.pause_seconds)
        [fault] = chance.choices(FAULTS, [fault.weight for fault in FAULTS])
        ends_processes = fault.name in OF_PROCESSES or "_at_" in fault.name
        others = [world for world in worlds if fault.can_happen(world)]
        chosen = worlds[-1] if ends_processes else chance.choice(others)
        faults.append((watcher.seconds / 60, fault.name))
        stuck = _happen(fault, chosen, worlds, chance, happenings)
    accounts = [world.settle() for world in worlds]
    watcher.stop()
    lives = []
    for kind, world, account, happened in zip(KINDS, worlds, accounts, happenings, strict=True):
        attribute(account, happened, world.emitter.next_number)
        subscriptions = world.witness.subscriptions
        lives.append(
            Life(kind, happened, account, subscriptions, world.gap_count, stuck or world.stuck)
        )
    return lives, watcher.curves, faults


def _happen(
    fault: Fault,
    chosen: World,
    worlds: list[World],
    chance: random.Random,
    happenings: list[list[Happening]],
) -> str | None:
    """What happens to the broker happens to all."""
    before, start = [world.gap_count for world in worlds], chosen.emitter.next_number
    try:
        seconds = fault.happen(chosen, chance)
        for world in worlds:
            world.await_recovery()
    except (Stuck, SetupError) as error:
        return f"{fault.name}: {error}"
    for kind, world, gaps, happened in zip(KINDS, worlds, before, happenings, strict=True):
        more = world.gap_count - gaps
        if world is chosen or more:
            happened.append(Happening(fault.name, kind, seconds, more, start))
            print(f"{kind:10} {fault.name:45} {seconds:6.1f} s {more:3} gaps", flush=True)
    return None


def _draw(curves: list[Curves], faults: list[tuple[float, str]]) -> None:
    figure, axes = pyplot.subplots(5, 1, figsize=(11, 13), sharex=True, layout="constrained")
    titles = ("planner, MiB", "JVM, MiB", "open files", "spool, MiB", "waiting in the queue")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, loc="left", fontsize=10)
        axis.grid(alpha=0.3)
        for moment, _ in faults:
            axis.axvline(moment, color="0.85", linewidth=1, zorder=0)
    for kind, found in zip(KINDS, curves, strict=True):
        drawn = (
            found.memory["planner"], found.memory["JVM"], found.files, found.spool, found.waiting
        )  # fmt: skip
        for axis, values in zip(axes, drawn, strict=True):
            axis.plot(found.times, values, label=kind, linewidth=1)
    for axis in axes:
        axis.set_ylim(bottom=0)
    axes[0].legend(loc="lower right", ncols=3)
    axes[-1].set_xlabel("minutes; grey: a fault")
    figure.savefig(DOCS / "soak.png", dpi=90)


def _report(
    lives: list[Life],
    curves: list[Curves],
    flaws: list[str],
    given: argparse.Namespace,
    rabbitmq: str,
) -> None:
    rows = []
    for life, found in zip(lives, curves, strict=True):
        lost, doubled = len(life.account.lost), len(life.account.doubled)
        rows.append(
            f"| {life.kind} | {life.account.messages:,} | {lost} | {doubled} | "
            f"{len(life.happenings)} | {life.gaps} | {_quarters(found, 'planner')} | "
            f"{_quarters(found, 'JVM')} | {max(found.spool):.1f} |"
        )
        print(rows[-1])
    names = sorted({happening.fault for life in lives for happening in life.happenings})
    (DOCS / "soak.md").write_text(
        _PAGE.format(
            where=described(rabbitmq), minutes=given.minutes, rate=given.per_second,
            seed=given.seed, rows="\n".join(rows), share=GROWTH_SHARE, mib=GROWTH_MIB,
            names=", ".join(name.replace("_", " ") for name in names),
            flaws="\n".join(f"- {flaw}" for flaw in flaws) or "None.",
        )
    )  # fmt: skip
    figures = {
        **circumstances(rabbitmq), "seed": given.seed, "minutes": given.minutes, "flaws": flaws,
        "rows_in_parquet": {life.kind: life.account.messages for life in lives},
        "happenings": [asdict(each) for life in lives for each in life.happenings],
    }  # fmt: skip
    (DOCS / "soak.json").write_text(json.dumps(figures, indent=1) + "\n")


def _quarters(found: Curves, role: str) -> str:
    """Of the process with this role that was there longest."""
    process = max(
        (p for p in found.processes.values() if p.role == role), key=lambda p: len(p.times)
    )
    early, late = (process.quarter(process.memory, number) / MIB for number in (1, 3))
    return f"{early:.0f} → {late:.0f}"


_PAGE = """# Under steady load, a fault every minute

`make soak` for {minutes:g} minutes with {rate:,} messages a second, seed {seed}; {where}.

Three subscribers, each a Spark application that writes Parquet every half second, had queues of
their own behind one exchange. Every minute something happened to one of them, or to the broker:
{names}. Faults that end processes happened to the subscriber with the quorum queue alone.

| queue | rows in Parquet | lost | doubled | faults | gaps recorded | planner, MiB: second quarter → last | JVM, MiB | spool at most, MiB |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
{rows}

Memory is that of the process that lived longest. The run fails when a process that was there for
half of it holds more than {share} times as much plus {mib} MiB in its last quarter as in its second.

![memory, files, spool and queue, second by second](soak.png)

Flaws:

{flaws}
"""  # noqa: E501

if __name__ == "__main__":
    run("soak", main)
