"""A progress bar on a terminal; nothing elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Progress:
    """`with Progress("sent", 1000) as progress: progress.update(17)`"""

    def __init__(self, label: str, total: int, stream: TextIO = sys.stderr) -> None:
        self._label, self._total, self._stream = label, total, stream
        self._shown = stream.isatty() and total > 0
        self._started = self._drawn = time.monotonic()

    def update(self, done: int) -> None:
        now = time.monotonic()
        if self._shown and (now - self._drawn >= 0.1 or done == self._total):
            self._drawn = now
            self._draw(done, now - self._started)

    def _draw(self, done: int, seconds: float) -> None:
        filled = 30 * done // self._total
        rate = done / seconds if seconds > 0 else 0
        bar = "█" * filled + "░" * (30 - filled)
        self._stream.write(f"\r{self._label} {bar} {done:,}/{self._total:,}  {rate:,.0f}/s \x1b[K")
        self._stream.flush()

    def say(self, line: str) -> None:
        """Above the bar; it stays."""
        if self._shown:
            self._stream.write("\r\x1b[K")
        self._stream.write(line + "\n")
        self._stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._stream.write("\n")
