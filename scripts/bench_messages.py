"""What `make bench` sends: the same messages to every side, as frames that are made beforehand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa
from pika import frame, spec

from fanout_source import outgoing
from fanout_source.log_record import Message
from fanout_source.message import COLUMNS
from fanout_source.publisher import Publisher
from sample_logs import sample_logs

CHUNK = 1024
DISTINCT = 16 * CHUNK
CONSUMER_TAG = "fanout"


def messages(size: int) -> list[Message]:
    """Log records in JSON with bodies of `size` bytes (cut off, where those are too few), with the
    headers and properties of the emitter."""
    made = list(sample_logs(DISTINCT, size=size, seed=1))
    for number, (_, properties) in enumerate(made):
        properties.message_id = f"{number:032d}"  # as long in every process
    return [Message(body if len(body) == size else body[:size], rest) for body, rest in made]


def as_rows(sent: list[Message]) -> pa.RecordBatch:
    """Messages as columns of the sink."""
    properties = [properties for _, properties in sent]
    columns = {"body": [body for body, _ in sent]}
    for name in ("content_type", "delivery_mode", "message_id", "app_id"):
        columns[name] = [getattr(each, name) for each in properties]
    columns["headers"] = [list(each.headers.items()) for each in properties]
    columns["timestamp"] = [each.timestamp * 1_000_000 for each in properties]
    arrays = [pa.array(cells, COLUMNS[name]) for name, cells in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


class Load:
    """Publishes any number of messages, a thousand at a time, at next to no cost of its own."""

    def __init__(self, publisher: Publisher, exchange: str, size: int) -> None:
        self._publisher = publisher
        rows = as_rows(messages(size))
        self._chunks = itertools.cycle(
            outgoing.to_frames(
                outgoing.prepare(rows.slice(start, CHUNK), outgoing.Ids("")),
                channel=publisher.channel_number, exchange=exchange,
                body_max=publisher.body_max, mandatory=False,
            )
            for start in range(0, DISTINCT, CHUNK)
        )  # fmt: skip

    def publish(self, count: int) -> None:
        """The next ones of them; confirmed when it returns."""
        for _ in range(count // CHUNK):
            self._publisher.publish_frames(next(self._chunks), CHUNK)
        self._publisher.flush()


def ends_on_the_wire(size: int, exchange: str, every: int) -> Iterator[int]:
    """Where in the stream of bytes each so-manieth of the messages ends that somebody consumes."""
    deliver = spec.Basic.Deliver(CONSUMER_TAG, 1, False, exchange, "")
    method = len(frame.Method(1, deliver).marshal())
    sizes = [
        method
        + len(frame.Header(1, len(body), properties).marshal())
        + len(frame.Body(1, body).marshal())
        for body, properties in messages(size)
    ]
    sums = [sum(sizes[start : start + every]) for start in range(0, DISTINCT, every)]
    return itertools.accumulate(itertools.cycle(sums))
