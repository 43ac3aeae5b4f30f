"""What one side of a benchmark took, round by round: its process, and those that it started."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from processes import cpu_seconds, descendants


class Measured:
    """Seconds and CPU seconds of one side, of each round."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []

    @contextmanager
    def time(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), _cpu_seconds()
        yield
        self.seconds.append(time.perf_counter() - wall)
        self.cpu_seconds.append(_cpu_seconds() - cpu)

    def forget(self) -> None:
        """The rounds so far were to warm up."""
        self.seconds.clear()
        self.cpu_seconds.clear()

    def rate(self, count: int) -> float:
        return count / statistics.median(self.seconds)

    def cpu_us(self, count: int) -> float:
        return statistics.median(self.cpu_seconds) / count * 1e6

    def figures(self, count: int) -> dict[str, float]:
        return {"per_second": round(self.rate(count)), "cpu_us": round(self.cpu_us(count), 2)}


def _cpu_seconds() -> float:
    """Finer than the kernel's ticks for this process itself, which is all that most have."""
    return time.process_time() + cpu_seconds(descendants(os.getpid()))
