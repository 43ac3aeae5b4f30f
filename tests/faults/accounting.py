"""What became of each message: lost, doubled, or missed in a gap that is recorded."""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

Row = tuple[int, int]  # offset, number of the message


@dataclass(frozen=True)
class Account:
    """Numbers of messages, and offsets."""

    messages: int
    lost: list[int]  # acked, and not in the sink
    doubled: list[int]
    unexplained: list[int]  # offsets before which messages are missing, without a recorded gap
    disordered: int  # how often a message came before one that was published earlier

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.unexplained or self.disordered)


def settle(
    published: Iterable[range], acked: bytes, rows: Sequence[Row], gaps: Collection[int]
) -> Account:
    """`published` are numbers that the broker has confirmed, in their order; `acked` has a byte
    for each number; `gaps` are the offsets before which the source says that something is
    missing."""
    counted = Counter(number for _, number in rows)
    ordered = sorted(rows)
    present = set(counted)
    confirmed = [number for numbers in published for number in numbers]
    place = {number: position for position, number in enumerate(confirmed)}
    missing = [0, *itertools.accumulate(number not in present for number in confirmed)]
    unexplained = [
        offset
        for (_, before), (offset, number) in itertools.pairwise(ordered)
        if offset not in gaps
        and before in place
        and number in place
        and missing[place[number]] > missing[place[before]]
    ]
    return Account(
        messages=len(rows),
        lost=[number for number, count in enumerate(acked) if count and number not in present],
        doubled=[number for number, count in counted.items() if count > 1],
        unexplained=unexplained,
        disordered=sum(a > b for (_, a), (_, b) in itertools.pairwise(ordered)),
    )


def written(folder: Path) -> list[Row]:
    """The rows of a Parquet sink, by the log that makes it exactly once."""
    names: dict[int, list[str]] = {}
    for entry in (folder / "_spark_metadata").glob("[0-9]*"):
        lines = entry.read_text().splitlines()[1:]
        files = [json.loads(line)["path"] for line in lines]
        if entry.name.endswith(".compact"):
            names[int(entry.stem)] = files
        elif int(entry.name) not in names:
            names[int(entry.name)] = files
    compacted = max((int(e.stem) for e in folder.glob("_spark_metadata/*.compact")), default=-1)
    paths = dict.fromkeys(p for n, files in names.items() if n >= compacted for p in files)
    return [row for path in paths for row in _rows(folder / path.rpartition("/")[2])]


@functools.cache
def _rows(file: Path) -> list[Row]:
    table = pq.read_table(file, columns=["offset", "body"])
    numbers = (int(body[:12]) for body in table["body"].to_pylist())
    return list(zip(table["offset"].to_pylist(), numbers, strict=True))


def recorded_gaps(spools: Path) -> tuple[int, dict[int, str]]:
    """How many gaps the spools know of, and the latest ones: before which offset, and why."""
    count, latest = 0, {}
    for state in spools.glob("*/state.json"):
        content = json.loads(state.read_text())
        count += content["gaps"]
        latest.update({gap["offset"]: gap["reason"] for gap in content["latest_gaps"]})
    return count, latest
