"""`writeStream.format("fanout")`: rows become messages, confirmed before their task ends.

A task that fails is done again by Spark, and a batch by a restarted query: rows can be published
more than once. A message without a `message_id` therefore gets one that is the same each time.
"""

from __future__ import annotations

import bisect
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from . import outgoing
from .connection import with_any
from .errors import BrokerError, BrokerUnreachable, ConnectionLost, NotFound, PublishFailed
from .message import REPEATABLE_ID
from .publisher import Publisher
from .sink_options import SinkOptions
from .worker import log_to_spark, plainly

_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.1, 2.0
_HANDED_OVER_BYTES = 4 * 1024**2  # at a time, unless a single message is larger
_UNCONFIRMED_BYTES = 32 * 1024**2

_log = logging.getLogger(__name__)


@dataclass
class Published(WriterCommitMessage):
    """What a task reports: so many messages, all of them confirmed."""

    messages: int


class _Sink(ABC):
    """What streaming and batch have in common. Goes to the tasks, account included."""

    def __init__(self, options: SinkOptions, columns: Mapping[str, str]) -> None:
        """`columns` are those to publish, and what they are of a message."""
        self._options = options.for_tasks()
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        log_to_spark()
        with plainly():
            return Published(_publish(self._options, self._chunks(iterator)))

    def _chunks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Prepared messages, so many that they can be handed over at a time."""
        context = TaskContext.get()
        assert context is not None
        prefix = f"{REPEATABLE_ID}{self._origin(context)}-{context.partitionId()}"
        for number, batch in enumerate(batches):
            ids = outgoing.Ids(f"{prefix}-{number}")
            chosen = batch.select([*self._columns]).rename_columns([*self._columns.values()])
            for start, end in _pieces(chosen, self._options.batch_size):
                yield outgoing.prepare(chosen.slice(start, end - start), ids)

    @abstractmethod
    def _origin(self, context: TaskContext) -> str:
        """What makes the ids of messages those of this write: the same when Spark does it again,
        and no other's."""


class BatchSink(_Sink, DataSourceArrowWriter):
    """`df.write.format("fanout").mode("append")`."""

    def __init__(self, options: SinkOptions, columns: Mapping[str, str]) -> None:
        super().__init__(options, columns)
        self._job = uuid.uuid4().hex

    def _origin(self, context: TaskContext) -> str:
        # Not of a query and batch, in `foreachBatch`: two writes there are different writes.
        return self._job


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """`writeStream.format("fanout")`."""

    def _origin(self, context: TaskContext) -> str:
        query = context.getLocalProperty("sql.streaming.queryId")
        return f"{query}-{context.getLocalProperty('streaming.sql.batchId')}"


def _pieces(rows: pa.RecordBatch, most_rows: int) -> Iterator[tuple[int, int]]:
    """Where to cut, for pieces of at most so many rows, and bytes, unless a row has more."""
    start, total = 0, rows.num_rows
    ends = None
    if rows.nbytes > _HANDED_OVER_BYTES:
        others = (rows.nbytes - rows.column("body").nbytes) // max(1, total)
        sizes = pc.add(pc.fill_null(pc.binary_length(rows.column("body")), 0).cast("int64"), others)
        ends = pc.cumulative_sum(sizes).to_pylist()
    while start < total:
        end = min(start + most_rows, total)
        if ends is not None:
            before = ends[start - 1] if start else 0
            end = min(end, max(start + 1, bisect.bisect_right(ends, before + _HANDED_OVER_BYTES)))
        yield start, end
        start = end


def _publish(options: SinkOptions, chunks: Iterator[pa.RecordBatch]) -> int:
    """Publish prepared messages; how many there were, when the broker has confirmed all."""
    delivery, count = None, 0
    try:
        for chunk in chunks:
            delivery = delivery or _Delivery(options)
            delivery.hand_over(chunk)
            count += chunk.num_rows
        if delivery is not None:
            delivery.finish()
    except BaseException:
        _disconnect()  # what is under way there belongs to nobody any more
        raise
    return count


class _Delivery:
    """The messages of a task, on their way. Those that are not confirmed are kept, and published
    again over a new connection when one is lost."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._publisher: Publisher | None = None
        self._waiting: deque[pa.RecordBatch] = deque()
        self._sent: deque[tuple[int, pa.RecordBatch]] = deque()  # with the publisher's count then
        self._sent_bytes = 0
        self._passing_errors: tuple[type[BrokerError], ...] = (ConnectionLost, BrokerUnreachable)
        if options.declare == "auto":  # it is declared again with the next connection
            self._passing_errors += (NotFound,)
        self._deadline: float | None = None  # to have a broker again that confirms something

    def hand_over(self, chunk: pa.RecordBatch) -> None:
        self._waiting.append(chunk)
        self._persist(self._send)

    def finish(self) -> None:
        self._persist(self._send_and_flush)

    def _persist(self, step: Callable[[], None]) -> None:
        """Do it, over as many connections as it takes, for as long as the options allow."""
        pause_seconds, said = _FIRST_RETRY_SECONDS, ""
        while True:
            try:
                return step()
            except BrokerError as error:
                cause = error.__cause__ if isinstance(error, PublishFailed) else error
                now = time.monotonic()
                if self._deadline is None:
                    self._deadline = now + self._options.confirm_timeout_ms / 1000
                is_over = now + pause_seconds > self._deadline
                if is_over or not isinstance(cause, self._passing_errors):
                    raise
                if str(cause) != said:
                    said = str(cause)
                    _log.warning("%s; trying again", error)
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LAST_RETRY_SECONDS)
            self._forget_confirmed()
            if self._publisher is not None:
                self._publisher.require_routed()
                self._publisher = None
            self._waiting.extendleft(chunk for _, chunk in reversed(self._sent))
            self._sent.clear()
            self._sent_bytes = 0

    def _send(self) -> None:
        """Publish what waits; wait while much is unconfirmed."""
        publisher = self._publisher = self._publisher or _connected(self._options)
        while self._waiting:
            chunk = self._waiting[0]
            frames = outgoing.to_frames(
                chunk,
                channel=publisher.channel_number,
                exchange=self._options.exchanges[0],
                body_max=publisher.body_max,
                mandatory=self._options.mandatory,
            )
            publisher.publish_frames(frames, chunk.num_rows)
            self._sent.append((publisher.published, self._waiting.popleft()))
            self._sent_bytes += chunk.nbytes
            self._forget_confirmed()
            while self._sent_bytes > _UNCONFIRMED_BYTES:
                publisher.flush(self._sent[0][0])
                self._forget_confirmed()

    def _send_and_flush(self) -> None:
        self._send()
        assert self._publisher is not None
        self._publisher.flush()

    def _forget_confirmed(self) -> None:
        confirmed = 0 if self._publisher is None else self._publisher.confirmed_without_hole
        while self._sent and self._sent[0][0] <= confirmed:
            _, chunk = self._sent.popleft()
            self._sent_bytes -= chunk.nbytes
            self._deadline = None


def _connected(options: SinkOptions) -> Publisher:
    """The connection of this process, which the tasks that it does one after the other share."""
    publisher = _kept.get(options)
    if publisher is None or publisher.has_failed:
        _disconnect()
        publisher = _kept[options] = with_any(
            options.addresses,
            lambda address: Publisher(
                address,
                options.exchanges[0],
                exchange_type=options.kind_of_exchange,
                exchange_durable=options.exchange_durable,
                declare=options.declare,
                confirm_timeout_seconds=options.confirm_timeout_ms / 1000,
                connection_timeout_seconds=options.connection_timeout_ms / 1000,
                heartbeat_seconds=options.heartbeat_seconds,
            ),
        )
    return publisher


def _disconnect() -> None:
    while _kept:
        _, publisher = _kept.popitem()
        publisher.close()


_kept: dict[SinkOptions, Publisher] = {}
