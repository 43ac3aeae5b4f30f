"""Processes, as Linux lists them."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable


def descendants(pid: int) -> dict[int, str]:
    """The processes that descend from this one, with their command lines."""
    children = defaultdict(list)
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{entry}/stat") as stat:
            children[int(stat.read().rpartition(")")[2].split()[1])].append(int(entry))
    found, waiting = {}, [pid]
    while waiting:
        for child in children[waiting.pop()]:
            waiting.append(child)
            with contextlib.suppress(OSError), open(f"/proc/{child}/cmdline") as command:
                found[child] = command.read().replace("\0", " ")
    return found


def planners(pid: int) -> list[int]:
    """The processes in which Spark plans the batches of Python sources."""
    return [p for p, command in descendants(pid).items() if "streaming_source_runner" in command]


def cpu_seconds(pids: Iterable[int], *, children: bool = True) -> float:
    """How much CPU these processes have used so far, with their children that have ended."""
    ticks, end = 0, 15 if children else 13
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat:
            ticks += sum(map(int, stat.read().rpartition(")")[2].split()[11:end]))
    return ticks / os.sysconf("SC_CLK_TCK")
