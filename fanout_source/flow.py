"""How much a receiver takes: pure arithmetic on what it holds, in memory and on disk.

Below half of the spool's limit a consumer may start; at three quarters it is stopped, and the last
quarter is for what is on its way by then. Memory is bounded in the same way. What would still go
beyond is refused: it is not acked and goes back to the queue.

A spool can be full of messages that its reader has all seen, and that it lets go of only when it
gets more (Spark commits a batch after planning the next). So a reader that has seen everything is
allowed a sip beyond the limit, one each time that it has let go of something.
"""

from __future__ import annotations

MAX_BUFFERED_BYTES = 64 * 1024**2


class Flow:
    def __init__(
        self,
        prefetch_count: int,
        max_spool_bytes: int,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
    ) -> None:
        self.window = self._prefetch_count = prefetch_count
        self.max_spool_bytes = max_spool_bytes
        self._max_buffered_bytes = max_buffered_bytes
        self._window_bytes = min(max_buffered_bytes // 2, max_spool_bytes // 8)
        self._stop_at = self._refuse_at = 0
        self._rows = self._bytes = 0  # taken since the consumer started
        self._sip_allowed, self._sip_wanted = True, False

    def start(self, spool_bytes: int) -> int | None:
        """The prefetch count with which a consumer may start now; None when there is no room."""
        limit = self.max_spool_bytes
        if spool_bytes < limit // 2:
            self._stop_at, self._refuse_at = limit * 3 // 4, limit
        elif self._sip_wanted:
            self._sip_allowed = self._sip_wanted = False
            self._stop_at, self._refuse_at = spool_bytes + 1, max(limit, spool_bytes + limit // 4)
        else:
            return None
        self.window = self._fitting_window()
        self._rows = self._bytes = 0
        return self.window

    def take(self, rows: int, size: int) -> None:
        """Count what has come."""
        self._rows += rows
        self._bytes += size

    def should_stop(self, spool_bytes: int, buffered_bytes: int) -> bool:
        """Whether the consumer is to be stopped: for lack of room, or to start it again with a
        larger window, when messages have become small."""
        return (
            spool_bytes + buffered_bytes >= self._stop_at
            or buffered_bytes >= self._max_buffered_bytes // 2
            or (
                self.window < self._prefetch_count
                and self._rows >= 4 * self.window
                and self._fitting_window() >= 4 * self.window
            )
        )

    def must_refuse(self, spool_bytes: int, buffered_bytes: int) -> bool:
        """Whether not a single message more may be held."""
        return (
            spool_bytes + buffered_bytes >= self._refuse_at
            or buffered_bytes >= self._max_buffered_bytes
        )

    def want_sip(self) -> bool:
        """A reader has seen all there is. True when that makes a difference."""
        self._sip_wanted = self._sip_allowed
        return self._sip_wanted

    def let_go(self) -> None:
        """The reader needs some messages no longer."""
        self._sip_allowed = True

    def _fitting_window(self) -> int:
        """As many messages as fit into the window's bytes, going by those that came last."""
        if not self._rows:
            return self.window
        return max(1, min(self._prefetch_count, self._window_bytes * self._rows // self._bytes))
