"""The row: what of a message is a column, and how deliveries become rows.

Reads what `delivery_tap` has kept: the frames of each delivery as they were on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from . import properties
from .properties import HEADERS, TIMESTAMP, Notes, decode_distinct, read_text

COLUMNS: dict[str, pa.DataType] = {
    "body": pa.binary(),
    "exchange": pa.string(),
    "routing_key": pa.string(),
    "headers": HEADERS,
    "content_type": pa.string(),
    "content_encoding": pa.string(),
    "delivery_mode": pa.int32(),
    "priority": pa.int32(),
    "correlation_id": pa.string(),
    "reply_to": pa.string(),
    "expiration": pa.string(),
    "message_id": pa.string(),
    "timestamp": TIMESTAMP,
    "type": pa.string(),
    "user_id": pa.string(),
    "app_id": pa.string(),
    "redelivered": pa.bool_(),
    "received_at": TIMESTAMP,
    "offset": pa.int64(),
    "decode_error": pa.string(),
}

# How the ids begin that the sink gives to messages: publishing one again makes the same id.
REPEATABLE_ID = "fanout-row-"

_HEAD = 7  # bytes of a frame before its payload
_BEFORE_PROPERTIES = _HEAD + 12  # class, weight, size of the body
_METHOD = pa.struct(
    [("exchange", pa.string()), ("routing_key", pa.string()), ("redelivered", pa.bool_())]
)
_METHOD_COLUMNS = set(_METHOD.names)


def decode(
    deliveries: pa.RecordBatch, first_offset: int, columns: Sequence[str] = tuple(COLUMNS)
) -> pa.RecordBatch:
    """Deliveries as rows with these columns, in this order; the others are not decoded.

    `decode_error` names every column that is null or escaped because of what was sent, whether
    it was asked for or not: asking for it decodes all.
    """
    rows = deliveries.num_rows
    if not rows:
        return pa.RecordBatch.from_arrays([pa.array([], COLUMNS[n]) for n in columns], columns)
    asked = COLUMNS.keys() if "decode_error" in columns else set(columns)
    frames = deliveries.column("delivery")
    found: dict[str, pa.Array] = {"received_at": deliveries.column("received_at")}
    notes: Notes = {}
    if wanted := asked & properties.COLUMNS.keys():
        raw = pc.binary_slice(pc.list_element(frames, 1), _BEFORE_PROPERTIES, -1)
        decoded, notes = properties.decode(raw, wanted)
        found |= decoded
    if asked & _METHOD_COLUMNS:
        found |= _decode_methods(pc.list_element(frames, 0), notes)
    if "body" in asked:
        found["body"] = pc.binary_slice(pc.list_element(frames, 2), _HEAD, -1)
    if "offset" in asked:
        ones = pa.repeat(pa.scalar(1, pa.int64()), rows)
        found["offset"] = pc.cumulative_sum(ones, pa.scalar(first_offset - 1, pa.int64()))
    if "decode_error" in asked:
        lines = ["; ".join(notes[row]) if row in notes else None for row in range(rows)]
        found["decode_error"] = pa.array(lines, pa.string())
    return pa.RecordBatch.from_arrays([found[name] for name in columns], names=list(columns))


def _decode_methods(frames: pa.BinaryArray, notes: Notes) -> dict[str, pa.Array]:
    """What `Basic.Deliver` says behind its delivery tag, the same for most messages."""
    tag_sizes = pc.unique(pc.binary_slice(frames, _HEAD + 4, _HEAD + 5))
    if len(tag_sizes) == 1:
        rest = pc.binary_slice(frames, _HEAD + 5 + tag_sizes[0].as_py()[0] + 8, -1)
    else:
        rest = pa.array([f[_HEAD + 5 + f[_HEAD + 4] + 8 : -1] for f in frames.to_pylist()])
    decoded = decode_distinct("delivery", rest, _read_method, _METHOD, notes, range(len(frames)))
    return dict(zip(_METHOD.names, decoded.flatten(), strict=True))


def _read_method(raw: bytes) -> tuple[dict[str, Any], str | None]:
    exchange_end = 2 + raw[1]
    exchange, flaw = read_text(raw[2:exchange_end])
    routing_key, other_flaw = read_text(raw[exchange_end + 1 :])
    values = {"exchange": exchange, "routing_key": routing_key, "redelivered": bool(raw[0] & 1)}
    return values, flaw or other_flaw
