"""The driver's side: Spark's calls, in the one planner process that a query has.

Configuration is in `FanoutStreamReader`, which does nothing until Spark asks for offsets; what
then lives, a spool and its receiver, is `_Subscriber`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from .errors import SpoolDamaged
from .offsets import ORIGIN, Offset, limit_end, may_grow, partition
from .partition_reader import PartitionReader, SpoolPartition
from .receiver import Receiver, is_of
from .schema import require_columns
from .source_options import SourceOptions
from .spool import Gap, Spool, Unowned, find_unowned, remove_leftovers
from .worker import log_to_spark, plainly

_SimpleReader: Any
try:  # no part of what Spark promises to keep
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as _SimpleReader
except ImportError:
    _SimpleReader = None

_WAIT_SECONDS = 0.25  # idle, Spark asks again at once: a hundred times a second
_GATHER_STEP_SECONDS = 0.05
_BUSY_SECONDS = 10.0  # the planner of a query that was stopped or killed ends by then
_PARTITION_BYTES = 16 * 1024**2
_FEW_ROWS, _FEW_BYTES = 1000, 1024**2  # that Spark gets with the plan
_RECENT_SECONDS = 3600.0

_log = logging.getLogger(__name__)


class FanoutStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are `{"spool": id, "offset": n}`: n counts the messages of a subscription, from 0.

    Nothing is taken from the queue before the checkpoint knows the spool: a spool that no
    checkpoint names could never be found again, nor could what was acked into it. The initial
    offset names none, and a batch over nothing follows it; when Spark then comes with an offset
    that names the spool, the checkpoint has it.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._subscriber: _Subscriber | None = None
        self._rows: list[pa.RecordBatch] = []  # on their way to Spark
        self._available_now = False
        self._frozen_end: int | None = None
        self._planned_end = 0
        self._last_batch = time.monotonic()

    def __reduce__(self) -> tuple[Any, ...]:
        """What executors get has no options, and so no credentials."""
        return PartitionReader, (self._schema.fieldNames(),)

    def initialOffset(self) -> dict[str, Any]:
        return ORIGIN.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        with plainly():
            # Spark's first call. Raised earlier, by `streamReader`, pyspark would hide the error
            # behind one of its own.
            require_columns(self._schema)
        limited = (self._options.max_rows, self._options.max_bytes, self._options.min_rows)
        if limited == (None, None, None):
            return ReadAllAvailable()
        return ReadMaxRows(self._options.max_rows or 2**31 - 1)  # stands for all that we limit

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch. Waits a moment for a first message; returns at once then."""
        with plainly():
            begin = Offset.from_json(start)
            subscriber = self._subscribed(begin, begin)
            spool_id = subscriber.spool.id
            if begin.spool is None:
                return Offset(spool_id, 0).to_json()
            end = self._available_end(subscriber, begin.offset)
            if isinstance(limit, ReadAllAvailable):
                end = self._gather(subscriber.receiver, begin.offset, end)
            else:
                end = self._limit(subscriber, begin.offset, end)
            if end > begin.offset:
                self._last_batch = time.monotonic()
            self._planned_end = end
            return Offset(spool_id, end).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What a query's progress shows as its latest offset."""
        subscriber = self._subscriber
        return None if subscriber is None else subscriber.report(self._planned_end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with plainly():
            begin, finish = Offset.from_json(start), Offset.from_json(end)
            if finish.spool is None:
                return []
            spool = self._subscribed(begin, finish).spool
            self._planned_end = finish.offset
            if begin.offset == finish.offset:
                return []
            slices = spool.slices(begin.offset, finish.offset)
            sizes = [spool.size_of(piece) for piece in slices]
            parts = partition(slices, sizes, _PARTITION_BYTES, self._options.min_partitions)
            planned: list[InputPartition] = [
                SpoolPartition(spool.location, spool.id, part) for part in parts
            ]
            is_small = finish.offset - begin.offset <= _FEW_ROWS and sum(sizes) <= _FEW_BYTES
            if is_small and len(planned) == 1 and _SPARK_TAKES_ROWS:
                self._rows = list(self.read(planned[0]))
                self.__class__ = _WithRows
            return planned

    def commit(self, end: dict[str, Any]) -> None:
        with plainly():
            offset = Offset.from_json(end)
            if self._subscriber is not None and offset.spool == self._subscriber.spool.id:
                self._subscriber.receiver.drop_below(offset.offset)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return PartitionReader(self._schema.fieldNames()).read(partition)

    def stop(self) -> None:
        if self._subscriber is not None:
            self._subscriber.close()

    def _subscribed(self, start: Offset, end: Offset) -> _Subscriber:
        """The subscriber of the spool that Spark names, or, where it names none, a new one."""
        if self._subscriber is None:
            log_to_spark()
            self._subscriber = _Subscriber.begin(self._options, start, end)
        subscriber, named = self._subscriber, end.spool
        if named is not None:
            if named != subscriber.spool.id:
                raise SpoolDamaged(
                    f"the checkpoint goes from spool {subscriber.spool.id} to {named}: "
                    "do two queries use it?"
                )
            subscriber.receiver.consume()
        return subscriber

    def _available_end(self, subscriber: _Subscriber, start: int) -> int:
        receiver = subscriber.receiver
        if not self._available_now:
            return receiver.wait_for_more(start, _WAIT_SECONDS)
        while self._frozen_end is None:
            is_drained = self._options.queue is None or receiver.is_drained()
            end = receiver.wait_for_more(start, 0.0 if is_drained else _WAIT_SECONDS)
            if is_drained:
                self._frozen_end = end
            elif end > start:
                return end
        return max(start, self._frozen_end)

    def _gather(self, receiver: Receiver, start: int, end: int) -> int:
        """While messages pour in, let a batch grow: it costs Spark the same, however large."""
        first = end
        while self._frozen_end is None and may_grow(
            end - start, time.monotonic() - self._last_batch
        ):
            time.sleep(_GATHER_STEP_SECONDS)
            end = receiver.status().next_offset
        return first if end == first else receiver.wait_for_more(start)

    def _limit(self, subscriber: _Subscriber, start: int, end: int) -> int:
        options = self._options
        if options.min_rows is not None and not self._available_now:
            due = self._last_batch + options.max_delay_seconds
            is_full = subscriber.receiver.status().paused
            if end - start < options.min_rows and time.monotonic() < due and not is_full:
                time.sleep(_WAIT_SECONDS)
                return start
        if end == start:
            return start
        slices = subscriber.spool.slices(start, end)
        if not slices:  # all of it is recorded as lost
            return end
        sizes = [subscriber.spool.size_of(piece) for piece in slices]
        return limit_end(slices, sizes, options.max_rows, options.max_bytes)


class _WithRows(FanoutStreamReader):
    """What a reader is from the planning of a small batch until Spark has its rows.

    Spark takes rows together with a plan, and then needs no Python worker for them, which would
    take longer than all else that a small batch needs. But it asks for them only what it knows as
    the wrapper of a simple reader, and such a one can neither limit its batches nor report how far
    behind it is. The partition stays good: who has lost the rows reads it.
    """

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        self.__class__ = FanoutStreamReader  # type: ignore[assignment]
        rows, self._rows = self._rows, []
        return iter(rows)


_SPARK_TAKES_ROWS = hasattr(_SimpleReader, "getCache")
if _SPARK_TAKES_ROWS:
    _SimpleReader.register(_WithRows)


class _Subscriber:
    """A spool with its receiver, in the planner process, while it lives."""

    def __init__(self, options: SourceOptions, spool: Spool) -> None:
        self.spool = spool
        self.receiver = Receiver(
            options.addresses,
            spool,
            options.subscription,
            prefetch_count=options.prefetch_count,
            max_spool_bytes=options.max_spool_bytes,
            connection_timeout_seconds=options.connection_timeout_ms / 1000,
            heartbeat_seconds=options.heartbeat_seconds,
            fail_on_gap=options.fails_at_a_gap,
        )

    @classmethod
    def begin(cls, options: SourceOptions, start: Offset, end: Offset) -> _Subscriber:
        """Subscribed, with a new spool when Spark names none yet, or the one that it names."""
        location = options.spool_location
        missed: Gap | None = None
        if end.spool is None:
            for path in remove_leftovers(location):
                _log.info("removed the leftover %s", path)
            missed = _left_with_another_checkpoint(options)
            spool = Spool.create(location)
        else:
            spool = Spool.open(
                location,
                end.spool,
                needed=(start.offset, end.offset),
                accept_loss=not options.fails_at_a_gap,
                busy_timeout_seconds=_BUSY_SECONDS,
            )
            missed = _taken_with_another_checkpoint(options, spool)
        subscriber = cls(options, spool)
        try:
            subscriber.receiver.subscribe()
            if missed is not None:
                _log.warning("a gap before offset %d: %s", missed.offset, missed.reason)
                spool.record_gap(missed)
        except BaseException:
            if end.spool is None:
                spool.discard()
            spool.close()
            raise
        return subscriber

    def report(self, planned_end: int) -> dict[str, Any]:
        status, spool = self.receiver.status(), self.spool
        waiting = spool.slices(max(planned_end, spool.start), spool.end)
        return {
            **Offset(spool.id, status.next_offset).to_json(),
            "queue": status.queue,
            "backlogRows": status.next_offset - planned_end,
            "backlogBytes": round(sum(spool.size_of(piece) for piece in waiting)),
            "spoolBytes": status.spool_bytes,
            "paused": status.paused,
            "resubscriptions": status.resubscriptions,
            "gaps": status.gaps,
            "lastGap": _describe(status.latest_gap),
            "recognised": status.recognised,
            "inDoubt": status.in_doubt,
            "lostRows": sum(gap.lost for gap in spool.latest_gaps),
        }

    def close(self) -> None:
        self.receiver.close()
        self.spool.close()


def _left_with_another_checkpoint(options: SourceOptions) -> Gap | None:
    """What a query that begins anew does not get: messages that were received for a checkpoint
    which nobody reads. Of a named queue they are missing, since it has let go of them; an
    exclusive one may have been anybody's."""
    unowned = find_unowned(options.spool_location)
    if not unowned:
        return None
    latest = max(unowned, key=lambda spool: spool.last_active)
    ours = [spool for spool in unowned if _had_the_queue(spool, options)]
    if not ours:
        if time.time() - latest.last_active < _RECENT_SECONDS:
            _log.info(
                "the spool %s has messages of a query that ended at %s: one that starts with its "
                "checkpoint gets those that were not delivered, this one does not",
                latest.path, _time(latest.last_active),
            )  # fmt: skip
        return None
    reason = (
        f"queue {options.queue!r} was read with another checkpoint, and what was received for that "
        f"one and not delivered is in {', '.join(spool.path for spool in ours)}"
    )
    return Gap(0, max(spool.last_active for spool in ours), time.time(), reason)


def _taken_with_another_checkpoint(options: SourceOptions, spool: Spool) -> Gap | None:
    """What a query does not get because another one has had its queue since it ended."""
    took = [
        other.path
        for other in find_unowned(options.spool_location)
        if _had_the_queue(other, options) and other.last_received > spool.last_active
    ]
    if not took:
        return None
    reason = (
        f"queue {options.queue!r} was read with another checkpoint meanwhile, and what was "
        f"received for that one is, or was, in {', '.join(took)}"
    )
    return Gap(spool.end, spool.last_active, time.time(), reason)


def _had_the_queue(spool: Unowned, options: SourceOptions) -> bool:
    return is_of(spool.note, options.addresses, options.subscription)


def _describe(gap: Gap | None) -> dict[str, Any] | None:
    if gap is None:
        return None
    return {
        "beforeOffset": gap.offset,
        "since": _time(gap.since),
        "until": _time(gap.until),
        "lost": gap.lost,
        "reason": gap.reason,
    }


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
