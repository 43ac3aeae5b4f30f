"""How long a message takes from where it is published until Parquet shows it."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from bench_messages import messages
from bench_side import Side
from fanout_source.address import BrokerAddress
from fanout_source.publisher import Publisher

_PAUSE_SECONDS = 0.01
_BODY_BYTES = 200


@dataclass
class Latencies:
    """In seconds, of each message."""

    seconds: list[float]

    def percentiles(self) -> dict[str, float]:
        """In milliseconds, without the first quarter, in which all gets into step."""
        warm = self.seconds[len(self.seconds) // 4 :]
        hundredths = statistics.quantiles(warm, n=100, method="inclusive")
        return {f"p{at}": round(1000 * hundredths[at - 1], 1) for at in (50, 95, 99)}


def measure_latency(
    address: BrokerAddress, exchange: str, side: Side, per_second: int, seconds: float
) -> Latencies:
    """Publish at a steady rate to a side that writes Parquet and has nothing else to do."""
    base, count = side.done, round(per_second * seconds)
    sent = messages(_BODY_BYTES)
    published: list[float] = []
    with Publisher(address, exchange) as publisher:
        began = time.monotonic()
        while len(published) < count:
            due = min(count, int((time.monotonic() - began) * per_second) + 1)
            for number in range(len(published), due):
                published.append(time.time())
                publisher.publish(*sent[number % len(sent)])
            time.sleep(max(_PAUSE_SECONDS, 1 / per_second))
    side.wait_for(base + count)
    committed = _committed(side.folder / "out-0", base)
    return Latencies([committed[base + n] - at for n, at in enumerate(published)])


def _committed(folder: Path, first_offset: int) -> dict[int, float]:
    """When the sink has shown each message from this offset on: its log is what readers go by."""
    found: dict[int, float] = {}
    shown: dict[str, float] = {}
    for entry in (folder / "_spark_metadata").iterdir():
        if entry.name.isdigit():
            for line in entry.read_text().splitlines()[1:]:
                name = line.partition('"path":"')[2].partition('"')[0].rpartition("/")[2]
                shown[name] = entry.stat().st_mtime
    for name, moment in shown.items():
        offsets = pq.read_table(folder / name, columns=["offset"])["offset"]
        if len(offsets) and offsets[-1].as_py() >= first_offset:
            found |= dict.fromkeys(offsets.to_pylist(), moment)
    return found
