#!/usr/bin/env python3
"""Injects faults at random for as long as it is told, accounts for every message, draws a table.

run.py --minutes 30 --seed 1

A subscriber with a queue of each kind, each a Spark application with a broker of its own, all at
the same time. A witness between subscriber and broker knows of each message whether it was acked.
The table goes to docs/reliability.md, the figures behind it to docs/reliability.json. Ends with 1
when a message was lost or doubled, or a gap was not recorded, or recorded and did not happen.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT / "scripts"), str(PROJECT / "tests"), str(Path(__file__).parent)]

from injections import FAULTS, Fault  # noqa: E402
from life import DOCS, Happening, Life, attribute  # noqa: E402
from world import Stuck, World, own_vhost  # noqa: E402

import broker as brokers  # noqa: E402
from circumstances import circumstances, described  # noqa: E402
from machine import SetupError  # noqa: E402
from management import Management  # noqa: E402
from program import run  # noqa: E402

KINDS = ("exclusive", "classic", "quorum")
RUN = brokers.RUN / "faults"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--per-second", type=int, default=6000, help="messages (default: 6000)")
    given = parser.parse_args()
    print(f"seed {given.seed}, {given.minutes:g} minutes, {given.per_second:,} messages a second")
    began = time.monotonic()
    try:
        running = [brokers.start(RUN / kind, url_variable="", reap=True) for kind in KINDS]
        rabbitmq = Management(running[0]).get("overview")["rabbitmq_version"]
        with ThreadPoolExecutor(len(KINDS)) as threads:
            lives = list(
                threads.map(
                    lambda broker, kind: _live(
                        broker, kind, random.Random(f"{given.seed} {kind}"),
                        began + 60 * given.minutes, given.per_second // len(KINDS),
                    ),
                    running, KINDS,
                )
            )  # fmt: skip
    finally:
        for kind in KINDS:
            brokers.stop(RUN / kind)
    DOCS.mkdir(exist_ok=True)
    _report(lives, given.seed, rabbitmq, time.monotonic() - began)
    flaws = [flaw for life in lives for flaw in life.flaws]
    for flaw in flaws:
        print(f"FLAW {flaw}")
    return 1 if flaws else 0


def _live(
    running: brokers.Broker, kind: str, chance: random.Random, until: float, per_second: int
) -> Life:
    happenings: list[Happening] = []
    stuck = None
    management = Management(running)
    queue_type = None if kind == "exclusive" else kind
    with (
        own_vhost(running, management) as vhost,
        tempfile.TemporaryDirectory(dir=RUN / kind, ignore_cleanup_errors=True) as folder,
        World(
            running, management, vhost, Path(folder), queue_type=queue_type, per_second=per_second
        ) as world,
    ):
        faults = [fault for fault in FAULTS if fault.can_happen(world)]
        weights = [fault.weight for fault in faults]
        once = chance.sample(faults, len(faults))  # each of them, whatever else
        while time.monotonic() < until and stuck is None:
            fault = once.pop() if once else chance.choices(faults, weights)[0]
            stuck = _happen(world, fault, kind, chance, happenings)
        account = world.settle()
        attribute(account, happenings, world.emitter.next_number)
        return Life(
            kind,
            happenings,
            account,
            world.witness.subscriptions,
            world.gap_count,
            stuck or world.stuck,
        )


def _happen(
    world: World, fault: Fault, kind: str, chance: random.Random, happenings: list[Happening]
) -> str | None:
    start, gaps = world.emitter.next_number, world.gap_count
    try:
        seconds = fault.happen(world, chance)
    except (Stuck, SetupError) as error:
        return f"{kind}, {fault.name}: {error}"
    happenings.append(Happening(fault.name, kind, seconds, world.gap_count - gaps, start))
    print(f"{kind:10} {fault.name:45} {seconds:6.1f} s {world.gap_count - gaps:3} gaps", flush=True)
    return None


def _report(lives: list[Life], seed: int, rabbitmq: str, seconds: float) -> None:
    every = [happening for life in lives for happening in life.happenings]
    by_fault = defaultdict(list)
    for happening in every:
        by_fault[happening.fault].append(happening)
    lines = [
        "| fault | times | messages | lost | doubled | gaps recorded | seconds to recover: median, "
        "most |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, found in sorted(by_fault.items()):
        lines.append(_row(name.replace("_", " "), found))
    lines.append(_row("**all**", every))
    table = "\n".join(lines)
    print(f"\n{table}")
    totals = {life.kind: life.account.messages for life in lives}
    (DOCS / "reliability.md").write_text(
        _PAGE.format(
            where=described(rabbitmq), seed=seed, minutes=seconds / 60, table=table,
            disordered=sum(life.account.disordered for life in lives),
            totals=", ".join(f"{count:,} ({kind})" for kind, count in totals.items()),
        )
    )  # fmt: skip
    figures = {
        **circumstances(rabbitmq), "seed": seed, "seconds": round(seconds),
        "rows_in_parquet": totals, "flaws": [flaw for life in lives for flaw in life.flaws],
        "happenings": [asdict(happening) for happening in every],
    }  # fmt: skip
    (DOCS / "reliability.json").write_text(json.dumps(figures, indent=1) + "\n")


def _row(name: str, found: list[Happening]) -> str:
    seconds = [happening.seconds for happening in found] or [0.0]
    messages = sum(happening.end - happening.start for happening in found)
    sums = [sum(getattr(h, what) for h in found) for what in ("lost", "doubled", "gaps")]
    lost, doubled, gaps = (f"{each:,}" for each in sums)
    median, most = statistics.median(seconds), max(seconds)
    return (
        f"| {name} | {len(found):,} | {messages:,} | {lost} | {doubled} | {gaps} "
        f"| {median:.1f}, {most:.1f} |"
    )


_PAGE = """# Faults that were injected, and what became of the messages

`make faults` for {minutes:.0f} minutes, seed {seed}; {where}.

Three subscribers, on an exclusive, a classic and a quorum queue, each a Spark application that
writes Parquet, with a broker of its own, all on one machine at the same time, while messages were
published at a steady rate. The witness between subscriber and broker counted what was acked.

- **lost**: acked, and not in Parquet. **doubled**: in Parquet more than once. Both by the number
  that each message carries, and shown at the last fault before it was published.
- **gaps recorded**: by the source. Each place in Parquet where published messages are missing has
  one. On the exclusive queue there is one for each time that the subscription was interrupted; on
  named queues only where the queue or the exchange was deleted.
- **seconds to recover**: from the end of the injection until a message that was published after it
  was received, synced and acked.

In Parquet at the end: {totals}; out of order: {disordered}.
A quorum queue does not keep the order of what it gives back a second time (rabbitmq-server issue
10499), all others do.

{table}
"""

if __name__ == "__main__":
    run("faults", main)
