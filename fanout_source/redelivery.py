"""Messages that come again: a queue that stays gives back what was not acked when a connection
ended, and some of that is in the spool already.

What came back is flagged by the broker. It is recognised by its message id and its body, among the
messages that the spool took last; a broker gives back no more of those than it had sent ahead.

A sink publishes some messages again, when Spark does a task again. The broker cannot know that,
but the ids that the sink makes are made for it (`REPEATABLE_ID`): the same id is the same message.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from . import message
from .errors import SpoolDamaged
from .message import REPEATABLE_ID
from .spool import Spool, read_slice

_Key = tuple[str, str, int]
_OF_KEY = ("exchange", "message_id", "body")


class Redeliveries:
    """Sifts what a session receives. `sift` is for one thread."""

    def __init__(self, spool: Spool, window: int) -> None:
        """`window` is how many of the last messages may come again."""
        self._spool = spool
        self.window = window
        self._known: dict[_Key, None] = {}  # the latest last
        self._known_end = 0  # up to there, what is in the spool is known
        self.recognised = 0
        self.in_doubt = 0  # came again without a message id: perhaps doubled

    def sift(self, deliveries: pa.RecordBatch) -> pa.RecordBatch:
        """Without those that the spool holds."""
        redelivered = message.decode(deliveries, 0, ["redelivered"]).column(0)
        frames = pc.list_element(deliveries.column("delivery"), 1)
        repeatable = pc.match_substring(frames, REPEATABLE_ID)
        suspects = pc.indices_nonzero(pc.or_(redelivered, repeatable))
        if not len(suspects):
            return deliveries
        self._catch_up()
        known, doubled = self._known, []
        keys = _keys(message.decode(deliveries.take(suspects), 0, _OF_KEY))
        came_back = redelivered.take(suspects).to_pylist()
        before = _Before(deliveries)
        for row, key, has_come_back in zip(suspects.to_pylist(), keys, came_back, strict=True):
            if key is None:
                self.in_doubt += has_come_back
            elif key in known or (has_come_back and before.has(row, key)):
                doubled.append(row)
            else:
                known[key] = None
        if len(suspects) == deliveries.num_rows:  # all that follows in the spool is known
            self._known_end += deliveries.num_rows - len(doubled)
        if not doubled:
            return deliveries
        self.recognised += len(doubled)
        every = pa.array(range(deliveries.num_rows), pa.uint64())
        return deliveries.filter(pc.invert(pc.is_in(every, pa.array(doubled, pa.uint64()))))

    def _catch_up(self) -> None:
        """Know what the spool has taken since the last time that it was asked for."""
        spool, known = self._spool, self._known
        start = max(spool.start, spool.end - self.window, self._known_end)
        for piece in spool.slices(start, spool.end):
            try:
                taken = read_slice(spool.location, spool.id, piece)
            except SpoolDamaged:
                if piece.segment.start < spool.start:
                    continue  # somebody has let go of it just now
                raise
            keys = _keys(message.decode(taken, 0, _OF_KEY))
            known.update((key, None) for key in keys if key is not None)
        self._known_end = spool.end
        for _ in range(len(known) - 2 * self.window):
            del known[next(iter(known))]


class _Before:
    """What of a batch comes before a row of it; nothing is decoded unless somebody asks."""

    def __init__(self, deliveries: pa.RecordBatch) -> None:
        self._deliveries = deliveries
        self._first: dict[_Key | None, int] = {}  # where each key is for the first time

    def has(self, row: int, key: _Key) -> bool:
        if not self._first:
            keys = _keys(message.decode(self._deliveries, 0, _OF_KEY))
            self._first = {k: len(keys) - 1 - i for i, k in enumerate(reversed(keys))}
        return self._first[key] < row


def _keys(rows: pa.RecordBatch) -> list[_Key | None]:
    """The body, too: somebody may give one id to many messages."""
    columns = (column.to_pylist() for column in rows.columns)
    return [
        None if known is None else (exchange, known, hash(body))
        for exchange, known, body in zip(*columns, strict=True)
    ]
