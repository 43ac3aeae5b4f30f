"""Whole deliveries out of the bytes of an AMQP connection, without decoding them.

A delivery is three kinds of frames on one channel: `Basic.Deliver`, a content header, and as
many body frames as the body needs. The tap finds where each begins and ends, keeps the bytes as
they came, and hands every frame that is not part of a delivery on. Decoding is left to whoever
reads the message (`message.py`), for the columns that were asked for.
"""

from __future__ import annotations

import struct
import time
from array import array

import pyarrow as pa
import pyarrow.compute as pc

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
_KINDS = (METHOD, HEADER, BODY, HEARTBEAT)
FRAME_END = 0xCE
FRAME_OVERHEAD = 8  # type, channel and size before the payload, one end byte after it
BASIC_DELIVER = 60 << 16 | 60
_SHORTEST_DELIVER = FRAME_OVERHEAD + 4 + 1 + 8 + 1 + 1 + 1
_SHORTEST_HEADER = FRAME_OVERHEAD + 2 + 2 + 8

# One row is one delivery: its method frame, its header frame and its body frame as they were on
# the wire. A body that came in several frames is stored as one; an empty body has none.
DELIVERY = pa.list_(pa.field("frame", pa.binary(), nullable=False), 3)
DELIVERIES = pa.schema(
    [
        pa.field("delivery", DELIVERY, nullable=False),
        pa.field("received_at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)

_frame_head = struct.Struct(">BHI").unpack_from
_method_head = struct.Struct(">BHII").unpack_from
_header_head = struct.Struct(">BBHIIQ").unpack_from  # from the end byte of the frame before
_body_head = struct.Struct(">BBHI").unpack_from  # likewise
_body_size = struct.Struct(">Q").unpack_from
_delivery_tag = struct.Struct(">Q").unpack_from
_pack_frame_head = struct.Struct(">BHI").pack


class BrokenFrame(Exception):
    """The bytes are not AMQP frames, or promise more than a connection may send."""


class Deliveries:
    """Deliveries in the order in which they came, gathered until someone stores them."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self.last_tag = 0
        self.oldest = 0.0  # time.monotonic() of the first
        self._pieces: list[bytes] = []
        self._bounds: list[array[int]] = []  # three a delivery, counted from the piece's start
        self._received = array("q")

    def add(self, piece: bytes, bounds: list[int], last_tag: int) -> None:
        """Take deliveries that lie one behind the other in `piece`."""
        rows = len(bounds) // 3
        if not self.rows:
            self.oldest = time.monotonic()
        self._pieces.append(piece)
        self._bounds.append(array("i", bounds))
        self._received.extend(array("q", [time.time_ns() // 1000]) * rows)
        self.rows += rows
        self.bytes += len(piece)
        self.last_tag = last_tag

    def to_batch(self) -> pa.RecordBatch:
        """All of them as one record batch with the schema `DELIVERIES`."""
        offsets, start = array("i"), 0
        for piece, bounds in zip(self._pieces, self._bounds, strict=True):
            shifted = pc.add(pa.array(bounds, pa.int32()), pa.scalar(start, pa.int32()))
            offsets.frombytes(memoryview(shifted.buffers()[1])[: 4 * len(bounds)])
            start += len(piece)
        offsets.append(start)
        data = b"".join(self._pieces)
        frames = pa.Array.from_buffers(
            pa.binary(), 3 * self.rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )
        return pa.RecordBatch.from_arrays(
            [
                pa.FixedSizeListArray.from_arrays(frames, type=DELIVERY),
                pa.Array.from_buffers(
                    pa.timestamp("us", "UTC"), self.rows, [None, pa.py_buffer(self._received)]
                ),
            ],
            schema=DELIVERIES,
        )


class DeliveryTap:
    """Separates the deliveries on one channel from all else that a connection receives.

    The deliveries go into `into`; with `into = None` they are dropped. Memory: one unfinished
    frame, and the frames so far of one unfinished delivery.
    """

    def __init__(
        self, channel: int, *, max_frame_bytes: int, max_body_bytes: int = 1 << 30
    ) -> None:
        self.into: Deliveries | None = None
        self._channel = channel
        self._max_frame_bytes = max_frame_bytes
        self._max_body_bytes = max_body_bytes
        self._held: list[bytes] = []  # the beginning of a frame that has not come whole
        self._held_bytes = 0
        self._needed_bytes = 0
        self._content: _Content | None = None

    def feed(self, data: bytes) -> bytes:
        """Take the deliveries out of what was received; return all other frames, whole ones."""
        if self._held:
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._needed_bytes:
                return b""
            data = b"".join(self._held)
            self._held, self._held_bytes = [], 0
        others: list[bytes] = []
        position, size = 0, len(data)
        while position < size:
            if self._content is None:
                position = self._take_whole_deliveries(data, position)
            end = self._end_of_frame(data, position)
            if end is None:
                break
            if not self._take_frame(data[position:end]):
                others.append(data[position:end])
            position = end
        return b"".join(others)

    def _take_whole_deliveries(self, data: bytes, position: int) -> int:
        """Take deliveries of three frames for as long as one follows the other.

        The path of nearly all messages, so written for speed: three unpackings a delivery, which
        fail at the end of the data. Whatever looks different is left to `_take_frame`.
        """
        mine, start, tag_at = self._channel, position, position
        bounds: list[int] = []
        add = bounds.append
        try:
            while True:
                kind, channel, size, method = _method_head(data, position)
                if kind != METHOD or channel != mine or method != BASIC_DELIVER:
                    break
                header = position + FRAME_OVERHEAD + size
                end, kind, channel, size, _, body_bytes = _header_head(data, header - 1)
                if end != FRAME_END or kind != HEADER or channel != mine:
                    break
                body = header + FRAME_OVERHEAD + size
                end, kind, channel, size = _body_head(data, body - 1)
                if end != FRAME_END or kind != BODY or channel != mine or size != body_bytes:
                    break
                following = body + FRAME_OVERHEAD + size
                if data[following - 1] != FRAME_END:
                    break
                add(position - start)
                add(header - start)
                add(body - start)
                tag_at, position = position, following
        except (struct.error, IndexError):
            pass
        if bounds:
            self._keep(data[start:position], bounds, _tag_of(data, tag_at))
        return position

    def _end_of_frame(self, data: bytes, position: int) -> int | None:
        """Where the frame ends; None when it has not come whole, and then it is held."""
        have = len(data) - position
        needed = FRAME_OVERHEAD
        if have >= FRAME_OVERHEAD:
            kind, _, size = _frame_head(data, position)
            needed += int(size)
            if needed > self._max_frame_bytes or kind not in _KINDS:
                raise BrokenFrame(f"a frame of type {kind} and {needed} bytes")
            if have >= needed:
                if data[position + needed - 1] != FRAME_END:
                    raise BrokenFrame("a frame without its end byte")
                return position + needed
        if have:
            self._held, self._held_bytes, self._needed_bytes = [data[position:]], have, needed
        return None

    def _take_frame(self, frame: bytes) -> bool:
        """Take one frame, when it is part of a delivery. A delivery ends with its last frame."""
        kind, channel, _ = _frame_head(frame)
        if channel != self._channel:
            return False
        if kind == METHOD:
            # Anything but a delivery that comes in the middle of one ends it: a channel's close.
            self._content = None
            if len(frame) < _SHORTEST_DELIVER or _method_head(frame)[3] != BASIC_DELIVER:
                return False
            self._content = _Content(frame)
            return True
        if self._content is None:  # the content of something else that was asked for
            return False
        if kind == HEADER:
            size = _body_size(frame, 11)[0] if len(frame) >= _SHORTEST_HEADER else 1 << 64
            if size > self._max_body_bytes:
                raise BrokenFrame(f"a message of {size} bytes, or a header without its size")
            self._content.header, self._content.missing_bytes = frame, size
        elif kind == BODY:
            self._content.body.append(frame[7:-1])
            self._content.missing_bytes -= len(frame) - FRAME_OVERHEAD
        if not self._content.missing_bytes:
            content, self._content = self._content, None
            self._keep(*content.whole())
        return True

    def _keep(self, piece: bytes, bounds: list[int], last_tag: int) -> None:
        if self.into is not None:
            self.into.add(piece, bounds, last_tag)


class _Content:
    """A delivery of which not all frames have come."""

    def __init__(self, method: bytes) -> None:
        self.method = method
        self.header = b""
        self.body: list[bytes] = []
        self.missing_bytes = -1

    def whole(self) -> tuple[bytes, list[int], int]:
        channel = _frame_head(self.method)[1]
        pieces = [self.method, self.header]
        if self.body:
            size = sum(map(len, self.body))
            pieces += [_pack_frame_head(BODY, channel, size), *self.body, bytes([FRAME_END])]
        header = len(self.method)
        return b"".join(pieces), [0, header, header + len(self.header)], _tag_of(self.method, 0)


def _tag_of(data: bytes, method_frame: int) -> int:
    """The delivery tag: behind the class, the method, and the consumer tag with its length."""
    try:
        tag: int = _delivery_tag(data, method_frame + 12 + data[method_frame + 11])[0]
    except struct.error:
        raise BrokenFrame("a delivery without its tag") from None
    return tag
