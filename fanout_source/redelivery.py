"""Messages that come again: a queue that stays gives back what was not acked when a connection
ended, and some of that is in the spool already.

What came back is flagged by the broker. It is recognised by its message id and its body, among the
messages that the spool took last; a broker gives back no more of those than it had sent ahead.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from . import message
from .spool import Spool, read_slice


class Redeliveries:
    """Sifts what a session receives. `sift` is for one thread."""

    def __init__(self, spool: Spool, window: int) -> None:
        """`window` is how many of the last messages may come again."""
        self._spool = spool
        self.window = window
        self._known: set[tuple[str, int]] | None = None
        self.recognised = 0
        self.in_doubt = 0  # came again without a message id: perhaps doubled

    def begin(self) -> None:
        """Deliveries begin, or begin again: what is in the spool by now may come again."""
        self._known = None

    def sift(self, deliveries: pa.RecordBatch) -> pa.RecordBatch:
        """Without those that the spool holds."""
        redelivered = message.decode(deliveries, 0, ["redelivered"]).column(0)
        if not redelivered.true_count:
            return deliveries
        rows = pc.indices_nonzero(redelivered)
        known = self._read_known()
        again = message.decode(deliveries.take(rows), 0, ["message_id", "body"])
        keys = _keys(again)
        self.in_doubt += sum(key is None for key in keys)
        doubled = [row for row, key in zip(rows.to_pylist(), keys, strict=True) if key in known]
        if not doubled:
            return deliveries
        self.recognised += len(doubled)
        every = pa.array(range(deliveries.num_rows), pa.uint64())
        return deliveries.filter(pc.invert(pc.is_in(every, pa.array(doubled, pa.uint64()))))

    def _read_known(self) -> set[tuple[str, int]]:
        if self._known is None:
            spool = self._spool
            start = max(spool.start, spool.end - self.window)
            self._known = set()
            for piece in spool.slices(start, spool.end):
                taken = read_slice(spool.location, spool.id, piece)
                rows = message.decode(taken, 0, ["message_id", "body"])
                self._known.update(key for key in _keys(rows) if key is not None)
        return self._known


def _keys(rows: pa.RecordBatch) -> list[tuple[str, int] | None]:
    """The body, too: somebody may give one id to many messages."""
    ids, bodies = (rows.column(name).to_pylist() for name in ("message_id", "body"))
    return [
        None if known is None else (known, hash(body))
        for known, body in zip(ids, bodies, strict=True)
    ]
