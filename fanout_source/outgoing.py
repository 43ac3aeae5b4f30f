"""Rows, as the frames that publish them: the opposite of `message`.

Many rows at once: each part of a message is a column of bytes, and one join of the columns gives
the frames of all messages, one behind the other, as they go to the socket. Only what is rare is
done row by row: bodies of more than one frame, and ids for rows that bring none.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .delivery_tap import BODY, FRAME_END, HEADER, METHOD
from .errors import OptionError
from .properties import OCTET, PROPERTIES, TABLE, TEXT, flag

_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
_UNSIGNED = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}
_PERSISTENT = 2
_BASIC, _PUBLISH = 60, 40
_LONGEST_TEXT = 255
# What does not depend on the connection that a message goes through.
PREPARED = pa.schema(
    [("routing_key", pa.binary()), ("properties", pa.binary()), ("body", pa.binary())]
)


def prepare(rows: pa.RecordBatch, ids: Ids) -> pa.RecordBatch:
    """Rows as their routing keys, properties and bodies in AMQP's bytes (`PREPARED`).

    A row without a `message_id` gets one of `ids`. A value that AMQP cannot carry is an
    `OptionError`.
    """
    columns = {name: rows.column(name) for name in rows.schema.names}
    body = columns["body"]
    if body.null_count:
        raise OptionError(
            f"{body.null_count} rows have no body: leave them out, or give them an empty one"
        )
    count = len(body)
    if "delivery_mode" not in columns:
        columns["delivery_mode"] = pa.repeat(pa.scalar(_PERSISTENT, pa.uint8()), count)
    keys = columns.get("routing_key", pa.nulls(count, pa.string())).cast(pa.string())
    prepared = [_prefixed("routing_key", pc.fill_null(keys, "")), _as_bytes(body)]
    cells = {name: _cell(name, kind, columns[name]) for name, kind in PROPERTIES if name in columns}
    given = columns.get("message_id", pa.nulls(count, pa.string())).cast(pa.string())
    if given.null_count:
        made = ids.make(_join(prepared[0], _properties(cells), prepared[1]))
        cells["message_id"] = _prefixed("message_id", pc.coalesce(given, made))
    prepared.insert(1, _properties(cells))
    return pa.RecordBatch.from_arrays(prepared, schema=PREPARED)


def to_frames(
    prepared: pa.RecordBatch, *, channel: int, exchange: str, body_max: int, mandatory: bool
) -> memoryview:
    """The frames that publish these messages, all in one piece."""
    keys, properties, body = prepared.columns
    name = exchange.encode()
    method = _BASIC.to_bytes(2, "big") + _PUBLISH.to_bytes(2, "big") + bytes(2)
    method += bytes([len(name)]) + name
    header = _BASIC.to_bytes(2, "big") + bytes(2)
    method_sizes = pc.add(pc.binary_length(keys), len(method) + 1)
    header_sizes = pc.add(pc.binary_length(properties), len(header) + 8)
    largest = pc.max(header_sizes).as_py()
    if largest > body_max:
        raise OptionError(f"the headers take {largest} bytes; the broker's limit is {body_max}")
    head = channel.to_bytes(2, "big")
    frames = _join(
        bytes([METHOD]) + head,
        _numbers(method_sizes, 4),
        method,
        keys,
        bytes([mandatory, FRAME_END, HEADER]) + head,
        _numbers(header_sizes, 4),
        header,
        _numbers(pc.binary_length(body), 8),
        properties,
        bytes([FRAME_END]),
        _body_frames(body, head, body_max),
    )
    return _contents(frames)


class Ids:
    """The same rows get the same ids, in whatever order they come; of several that are alike, each
    one of its own. For a bounded number of rows: it remembers them."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._seen: Counter[bytes] = Counter()

    def make(self, content: pa.BinaryArray) -> pa.StringArray:
        """Ids for rows, given all that is in each of them."""
        digests = [blake2b(row, digest_size=8).digest() for row in content.to_pylist()]
        if len(set(digests)) == len(digests) and self._seen.keys().isdisjoint(digests):
            self._seen.update(digests)
            names = pa.Array.from_buffers(
                pa.binary(16),
                len(digests),
                [None, pa.py_buffer(b"".join(digests).hex().encode())],
            ).cast(pa.binary())
        else:
            names = pa.array(map(self._name, digests), pa.binary())
        return _join(f"{self._prefix}-".encode(), names).cast(pa.string())

    def _name(self, digest: bytes) -> bytes:
        self._seen[digest] += 1
        count = self._seen[digest]
        return digest.hex().encode() + (b"-%d" % count if count > 1 else b"")


def _properties(cells: dict[str, pa.BinaryArray]) -> pa.BinaryArray:
    """The flags that say which properties there are, and then those, in AMQP's order."""
    flags: Any = 0
    for index, (name, _) in enumerate(PROPERTIES):
        if name in cells:
            present = pc.is_valid(cells[name]).cast(pa.uint16())
            flags = pc.add(flags, pc.multiply(present, pa.scalar(flag(index), pa.uint16())))
    in_order = (_fill(cells[name]) for name, _ in PROPERTIES if name in cells)
    return _join(_numbers(flags, 2), *in_order)


def _cell(name: str, kind: str, column: pa.Array) -> pa.BinaryArray:
    """A property's bytes; null where it is null."""
    if kind is TEXT:
        return _prefixed(name, column)
    if kind is TABLE:
        return _tables(column)
    if kind is OCTET:
        return _numbers(_require_range(name, column, 0, 255), 1)
    micros = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    _require_range(name, micros, 0, None, "before 1970")
    return _numbers(pc.divide(micros, 1_000_000), 8)


def _tables(column: pa.MapArray) -> pa.BinaryArray:
    """Headers as field tables. The entries of all rows lie behind each other: a row's are those
    between two offsets."""
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    keys = _prefixed("headers", column.keys.slice(first, last - first))
    values = _as_bytes(column.items.slice(first, last - first))
    text = _join(b"S", _numbers(pc.binary_length(values), 4), values)
    entries = _join(keys, pc.coalesce(text, pa.scalar(b"V", pa.binary())))
    offsets = pa.Array.from_buffers(
        pa.int32(), len(entries) + 1, [None, entries.buffers()[1]], offset=entries.offset
    )
    bounds = offsets.take(pc.subtract(column.offsets, first))
    data = entries.buffers()[2] or pa.py_buffer(b"")
    tables = pa.Array.from_buffers(
        pa.binary(), len(column), [None, bounds.buffers()[1], data], offset=bounds.offset
    )
    sized = _join(_numbers(pc.binary_length(tables), 4), tables)
    return pc.if_else(pc.is_valid(column), sized, pa.scalar(None, pa.binary()))


def _prefixed(name: str, column: pa.Array) -> pa.BinaryArray:
    """Texts, each behind its length."""
    raw = _as_bytes(column)
    sizes = pc.binary_length(raw)
    longest = pc.max(sizes).as_py()
    if longest is not None and longest > _LONGEST_TEXT:
        raise OptionError(
            f"a value in column {name} has {longest} bytes; AMQP allows {_LONGEST_TEXT}"
        )
    return _join(_numbers(sizes, 1), raw)


def _body_frames(body: pa.BinaryArray, head: bytes, body_max: int) -> pa.BinaryArray:
    """None for an empty body, several for a large one."""
    sizes = pc.binary_length(body)
    if pc.max(sizes).as_py() > body_max:
        return pa.array([_cut(b, head, body_max) for b in body.to_pylist()], pa.binary())
    frames = _join(bytes([BODY]) + head, _numbers(sizes, 4), body, bytes([FRAME_END]))
    if pc.min(sizes).as_py():
        return frames
    return pc.if_else(pc.equal(sizes, 0), pa.scalar(b"", pa.binary()), frames)


def _cut(body: bytes, head: bytes, body_max: int) -> bytes:
    pieces = [body[start : start + body_max] for start in range(0, len(body), body_max)]
    ends = (bytes([BODY]) + head, bytes([FRAME_END]))
    return b"".join(ends[0] + len(p).to_bytes(4, "big") + p + ends[1] for p in pieces)


def _require_range(
    name: str, column: pa.Array, least: int, most: int | None, wrong: str | None = None
) -> pa.Array:
    bounds = pc.min_max(column).as_py()
    low, high = bounds["min"], bounds["max"]
    if low is not None and (low < least or (most is not None and high > most)):
        value = low if low < least else high
        raise OptionError(
            f"a value in column {name} is {wrong or f'{value}: it must be from {least} to {most}'}"
        )
    return column


def _numbers(values: pa.Array, size: int) -> pa.BinaryArray:
    """Big-endian numbers of so many bytes; null where they are null."""
    plain = pc.fill_null(values, 0).cast(_UNSIGNED[size])
    numbers = array(_CODES[size])
    data = memoryview(plain.buffers()[1])
    numbers.frombytes(data[plain.offset * size : (plain.offset + len(plain)) * size])
    if sys.byteorder == "little":
        numbers.byteswap()
    fixed = pa.Array.from_buffers(pa.binary(size), len(plain), [None, pa.py_buffer(numbers)])
    cells = fixed.cast(pa.binary())
    if not values.null_count:
        return cells
    return pc.if_else(pc.is_valid(values), cells, pa.scalar(None, pa.binary()))


def _join(*parts: pa.Array | bytes) -> pa.BinaryArray:
    """Row by row one behind the other; null where one of them is."""
    cells = [pa.scalar(p, pa.binary()) if isinstance(p, bytes) else p for p in parts]
    return pc.binary_join_element_wise(*cells, pa.scalar(b"", pa.binary()))


def _fill(column: pa.BinaryArray) -> pa.BinaryArray:
    """Nothing in place of null."""
    return pc.fill_null(column, b"") if column.null_count else column


def _as_bytes(column: pa.Array) -> pa.BinaryArray:
    return column.cast(pa.binary())


def _contents(cells: pa.BinaryArray) -> memoryview:
    """All bytes of an array, without what separates them."""
    _, offsets, data = cells.buffers()
    bounds = memoryview(offsets).cast("i")
    return memoryview(data)[bounds[cells.offset] : bounds[cells.offset + len(cells)]]
