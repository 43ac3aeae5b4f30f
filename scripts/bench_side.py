"""A contender as `make bench` sees it: a process tree that takes messages, CPU and memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import SetupError
from processes import cpu_seconds, descendants

_CONTENDER = Path(__file__).with_name("bench_contender.py")
_SAMPLE_SECONDS = 0.5


@dataclass
class Drained:
    """What one round took."""

    messages: int
    seconds: float
    cpu_seconds: float
    peak_mib: float

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu_seconds / self.messages * 1e6


class Side:
    """`with Side("parquet", url, folder, exchange="x") as side:` has it ready to take messages."""

    def __init__(self, name: str, url: str, folder: Path, **options: Any) -> None:
        self.name, self.folder = name, folder
        folder.mkdir(parents=True)
        command = [sys.executable, str(_CONTENDER), name, url, str(folder)]
        self._log = open(folder / "log", "w")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*command, *(f"{key}={value}" for key, value in options.items())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            start_new_session=True, cwd=folder,
        )  # fmt: skip
        self._changed = threading.Condition()
        self.done = 0
        self.trigger_ms: list[float] = []
        self.start_seconds: list[float] = []
        self._is_ready = self._has_ended = False
        self._cpu_seconds: dict[int, float] = {}  # of each process that has been seen
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError), self._changed:
                said = json.loads(line)
                if said.get("done", 0) > self.done and said.get("ms") is not None:
                    self.trigger_ms.append(said["ms"])
                self.done = said.get("done", self.done)
                self._is_ready |= "ready" in said
                if "started" in said:
                    self.start_seconds.append(said["started"])
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def wait_until_ready(self, seconds: float = 120) -> None:
        self._wait(lambda: self._is_ready, seconds)

    def wait_for(self, done: int, seconds: float = 300) -> None:
        self._wait(lambda: self.done >= done, seconds)

    def _wait(self, condition: Any, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._has_ended, seconds)
            if not condition():
                raise SetupError(f"{self.name} does not get on: see {self.folder / 'log'}")

    @property
    def processes(self) -> list[int]:
        return [self._process.pid, *descendants(self._process.pid)]

    def cpu_seconds(self) -> float:
        """So far. A Python worker that has ended counts as it was last seen, which a `_Peak` does
        twice a second; what a JVM starts for a moment (`chmod`, for each file) counts there."""
        found = {self._process.pid: "", **descendants(self._process.pid)}
        for pid, command in found.items():
            used = cpu_seconds([pid], children="/java " in command)
            self._cpu_seconds[pid] = max(used, self._cpu_seconds.get(pid, 0.0))
        return sum(self._cpu_seconds.copy().values())

    def memory_mib(self) -> float:
        """What its processes hold; what several share is counted once."""
        return sum(map(_proportional_kib, self.processes)) / 1024

    def pause(self) -> None:
        """Let it stand still, while others run or a backlog is made for it."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for pid in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def drain(self, publish: Callable[[int], None], messages: int, *, times: int = 1) -> Drained:
        """Publish so many while it stands still; what it then takes until it is done with them,
        each as often as it gets them. It stands still again after that."""
        self.pause()
        publish(messages)
        target = self.done + times * messages
        with _Peak(self) as peak:
            cpu, began = self.cpu_seconds(), time.perf_counter()
            self.resume()
            self.wait_for(target)
            seconds = time.perf_counter() - began
            self.pause()
        return Drained(times * messages, seconds, self.cpu_seconds() - cpu, peak.mib)

    def idle_share(self, seconds: float) -> float:
        """Which part of a core it takes while nothing comes."""
        before = self.cpu_seconds()
        time.sleep(seconds)
        return (self.cpu_seconds() - before) / seconds

    def __enter__(self) -> Side:
        try:
            self.wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.resume()
        pids = self.processes
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        for pid in pids:  # those that do not notice by themselves that all is over
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


class _Peak:
    """The most memory that a side holds inside a `with` block."""

    def __init__(self, side: Side) -> None:
        self._side, self.mib = side, side.memory_mib()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._ending.wait(_SAMPLE_SECONDS):
            self.mib = max(self.mib, self._side.memory_mib())
            self._side.cpu_seconds()

    def __enter__(self) -> _Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()


def _proportional_kib(pid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as rollup:
        for line in rollup:
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
