"""What one side of a benchmark took, round by round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Measured:
    """Seconds and CPU seconds of one side, of each round."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []

    @contextmanager
    def time(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.seconds.append(time.perf_counter() - wall)
        self.cpu_seconds.append(time.process_time() - cpu)

    def rate(self, count: int) -> float:
        return count / statistics.median(self.seconds)

    def cpu_us(self, count: int) -> float:
        return statistics.median(self.cpu_seconds) / count * 1e6

    def figures(self, count: int) -> dict[str, float]:
        return {"per_second": round(self.rate(count)), "cpu_us": round(self.cpu_us(count), 2)}
