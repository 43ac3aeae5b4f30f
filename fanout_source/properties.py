"""A message's AMQP properties, from the bytes of its header frame to columns.

The properties stand one behind the other without names; flags in front say which are there. So a
message is read from left to right, and what follows a broken one cannot be found. `decode` reads
many messages at once: those with the same flags are walked through together, a column at a time,
with Arrow doing the arithmetic on all positions. A message that does not come out even is read by
itself, by `decode_one`, which also says what any message must come to.

Nothing here raises for what is in a message: a property that cannot be decoded is null, and a note
says why.
"""

from __future__ import annotations

import struct
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .field_table import BrokenTable, decode_headers, readable

HEADERS = pa.map_(pa.string(), pa.string())
TIMESTAMP = pa.timestamp("us", "UTC")

TEXT, TABLE, OCTET, TIME = "text", "table", "octet", "time"
# In the order in which they are sent; the first has the highest flag.
PROPERTIES = (
    ("content_type", TEXT),
    ("content_encoding", TEXT),
    ("headers", TABLE),
    ("delivery_mode", OCTET),
    ("priority", OCTET),
    ("correlation_id", TEXT),
    ("reply_to", TEXT),
    ("expiration", TEXT),
    ("message_id", TEXT),
    ("timestamp", TIME),
    ("type", TEXT),
    ("user_id", TEXT),
    ("app_id", TEXT),
    ("cluster_id", TEXT),
)
_TYPES = {TEXT: pa.string(), TABLE: HEADERS, OCTET: pa.int32(), TIME: TIMESTAMP}
COLUMNS: dict[str, pa.DataType] = {name: _TYPES[kind] for name, kind in PROPERTIES}
del COLUMNS["cluster_id"]  # deprecated; in the bytes it has its place all the same

_KNOWN_FLAGS = 0xFFFC
_LAST_SECOND = 253_402_300_799  # of the year 9999, where the calendars of most programs end
_FEW = 16  # messages for which walking together does not pay

Notes = dict[int, list[str]]  # by row
Columns = dict[str, pa.Array]


def decode(raw: pa.BinaryArray, wanted: Collection[str]) -> tuple[Columns, Notes]:
    """The wanted columns of many messages, given the bytes of each from the flags on."""
    notes: Notes = defaultdict(list)
    parts: list[Columns] = []
    order: list[int] = []
    singles: list[int] = []
    for flags, rows in _by_flags(raw):
        if flags is None:
            singles += rows
            continue
        group = raw if len(rows) == len(raw) else raw.take(pa.array(rows))
        columns, odd = _decode_alike(group, flags, wanted, notes, rows)
        if not odd and group is raw:
            return columns, notes
        singles += odd
        left_out = set(odd)
        order += [row for row in rows if row not in left_out]
        parts.append(columns)
    if singles:
        parts.append(_decode_singly(raw, singles, wanted, notes))
        order += singles
    back = pc.sort_indices(pa.array(order, pa.int64()))
    return {
        name: pa.concat_arrays([part[name] for part in parts]).take(back) for name in wanted
    }, notes


def decode_one(raw: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """The properties of one message that are there, and for those with a flaw, which it is."""
    values: dict[str, Any] = {}
    notes: dict[str, str] = {}
    if len(raw) < 2:
        return values, {"properties": "they end before the flags"}
    flags, position, more = int.from_bytes(raw[:2], "big"), 2, raw[1] & 1
    while more:
        more = raw[position + 1] & 1 if position + 2 <= len(raw) else 0
        position += 2
    for index, (name, kind) in enumerate(PROPERTIES):
        if not _has(flags, index):
            continue
        head = 4 if kind is TABLE else 1 if kind is TEXT else 0
        size = int.from_bytes(raw[position : position + head], "big") if head else _SIZES[kind]
        start, end = position + head, position + head + size
        if position + head > len(raw) or end > len(raw):
            rest = (n for i, (n, _) in enumerate(PROPERTIES) if i >= index and _has(flags, i))
            notes |= dict.fromkeys(rest, "the properties end before it")
            return values, notes
        values[name], note = _READERS[kind](raw[start:end])
        if note:
            notes[name] = note
        position = end
    if position != len(raw) or flags & ~_KNOWN_FLAGS:
        notes["properties"] = f"{len(raw) - position} bytes are left over after the last of them"
    return values, notes


def flag(index: int) -> int:
    """The bit that says that the property at this place is there."""
    return 0x8000 >> index


def _has(flags: int, index: int) -> bool:
    return bool(flags & flag(index))


def _by_flags(raw: pa.BinaryArray) -> Iterator[tuple[int | None, Sequence[int]]]:
    """Rows with the same flags; together under None those that are better read one by one."""
    encoded = pc.binary_slice(raw, 0, 2).dictionary_encode()
    kinds = encoded.dictionary.to_pylist()
    if len(kinds) == 1 and len(raw) >= _FEW and _is_known(kinds[0]):
        yield int.from_bytes(kinds[0], "big"), range(len(raw))
        return
    rows_of: list[list[int]] = [[] for _ in kinds]
    for row, kind in enumerate(encoded.indices.to_pylist()):
        rows_of[kind].append(row)
    singles: list[int] = []
    for flags, rows in zip(kinds, rows_of, strict=True):
        if len(rows) >= _FEW and _is_known(flags):
            yield int.from_bytes(flags, "big"), rows
        else:
            singles += rows
    if singles:
        yield None, singles


def _is_known(flags: bytes) -> bool:
    return len(flags) == 2 and not int.from_bytes(flags, "big") & ~_KNOWN_FLAGS


def _decode_alike(
    raw: pa.BinaryArray, flags: int, wanted: Collection[str], notes: Notes, rows: Sequence[int]
) -> tuple[Columns, list[int]]:
    """Columns of messages that have the same flags, and the rows that did not come out even."""
    cells = _Cells(raw)
    cursor = pc.add(cells.starts, 2)
    spans: dict[str, tuple[Any, Any]] = {}
    for index, (name, kind) in enumerate(PROPERTIES):
        if not _has(flags, index):
            continue
        begin = cursor
        if kind is TEXT:
            begin = pc.add(cursor, 1)
            cursor = pc.add(begin, cells.number_at(cursor, 1))
        elif kind is TABLE:
            begin = pc.add(cursor, 4)
            cursor = pc.add(begin, cells.number_at(cursor, 4))
        else:
            cursor = pc.add(cursor, _SIZES[kind])
        spans[name] = begin, cursor
    even = pc.equal(cursor, cells.ends)
    if not pc.all(even).as_py():
        fates = list(zip(rows, even.to_pylist(), strict=True))
        uneven = [row for row, is_even in fates if not is_even]
        good = [row for row, is_even in fates if is_even]
        if not good:
            return {name: pa.array([], COLUMNS[name]) for name in wanted}, uneven
        columns, _ = _decode_alike(raw.filter(even), flags, wanted, notes, good)
        return columns, uneven
    kinds = dict(PROPERTIES)
    columns = {}
    for name in wanted:
        if name not in spans:
            columns[name] = pa.nulls(len(raw), COLUMNS[name])
        elif kinds[name] is OCTET:
            columns[name] = cells.number_at(spans[name][0], 1).cast(pa.int32())
        else:
            columns[name] = _convert(name, kinds[name], cells.cut(*spans[name]), notes, rows)
    return columns, []


def _convert(
    name: str, kind: str, raw: pa.BinaryArray, notes: Notes, rows: Sequence[int]
) -> pa.Array:
    if kind is TEXT:
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:  # one of them is not UTF-8
            pass
    return decode_distinct(name, raw, _READERS[kind], COLUMNS[name], notes, rows)


def decode_distinct(
    name: str,
    raw: pa.BinaryArray,
    read: Callable[[bytes], tuple[Any, str | None]],
    kind: pa.DataType,
    notes: Notes,
    rows: Sequence[int],
) -> pa.Array:
    """Decode each distinct value once; log messages repeat theirs much."""
    encoded = raw.dictionary_encode()
    values, flaws = [], {}
    for index, distinct in enumerate(encoded.dictionary.to_pylist()):
        value, note = read(distinct)
        values.append(value)
        if note:
            flaws[index] = note
    if flaws:
        for row, index in zip(rows, encoded.indices.to_pylist(), strict=True):
            if index in flaws:
                notes[row].append(f"{name}: {flaws[index]}")
    return pa.array(values, kind).take(encoded.indices)


def _decode_singly(
    raw: pa.BinaryArray, rows: list[int], wanted: Collection[str], notes: Notes
) -> Columns:
    found = []
    for row, single in zip(rows, raw.take(pa.array(rows)).to_pylist(), strict=True):
        values, flaws = decode_one(single)
        found.append(values)
        for name, note in flaws.items():
            if name in wanted or name == "properties":
                notes[row].append(f"{name}: {note}")
    return {name: pa.array([one.get(name) for one in found], COLUMNS[name]) for name in wanted}


class _Cells:
    """Many byte strings in one buffer, addressed by positions in it, for all of them at once."""

    def __init__(self, raw: pa.BinaryArray) -> None:
        rows = len(raw)
        _, offsets, data = raw.buffers()
        bounds = pa.Array.from_buffers(pa.int32(), rows + 1, [None, offsets], offset=raw.offset)
        bounds = bounds.cast(pa.int64())
        self.starts, self.ends = bounds.slice(0, rows), bounds.slice(1, rows)
        self._data = data
        self._bytes = pa.Array.from_buffers(pa.uint8(), data.size, [None, data])
        self._last = pa.scalar(data.size - 1, pa.int64())

    def number_at(self, positions: pa.Array, size: int) -> pa.Array:
        """The big-endian number at each position. Where that is out of bounds, any number: such a
        message does not come out even."""
        total = None
        for index in range(size):
            where = pc.min_element_wise(pc.add(positions, index), self._last)
            digit = self._bytes.take(where).cast(pa.int64())
            total = digit if total is None else pc.add(pc.multiply(total, 256), digit)
        return total

    def cut(self, begins: pa.Array, ends: pa.Array) -> pa.BinaryArray:
        """The bytes between each begin and end.

        Seen as offsets, begins and ends in turn bound the values and what lies between them. Two
        such 32-bit offsets are one 64-bit number.
        """
        rows = len(begins)
        low, high = (begins, ends) if sys.byteorder == "little" else (ends, begins)
        pairs = pc.add(low, pc.shift_left(high, pa.scalar(32, pa.int64())))
        offsets = pa.Array.from_buffers(pa.int32(), 2 * rows, [None, pairs.buffers()[1]])
        closed = pa.concat_arrays([offsets, ends.slice(rows - 1).cast(pa.int32())])
        pieces = pa.Array.from_buffers(
            pa.binary(), 2 * rows, [None, closed.buffers()[1], self._data]
        )
        return pc.list_element(pa.FixedSizeListArray.from_arrays(pieces, 2), 0)


def read_text(raw: bytes) -> tuple[str, str | None]:
    text, is_text = readable(raw)
    return text, None if is_text else "it is not UTF-8, and shown escaped"


def _read_headers(raw: bytes) -> tuple[list[tuple[str, str | None]] | None, str | None]:
    try:
        headers = decode_headers(raw)
    except BrokenTable as error:
        return None, str(error)
    return headers.entries, "; ".join(headers.notes) or None


def _read_octet(raw: bytes) -> tuple[int, None]:
    return raw[0], None


def _read_time(raw: bytes) -> tuple[int | None, str | None]:
    (seconds,) = struct.unpack(">Q", raw)
    if seconds > _LAST_SECOND:
        return None, f"{seconds} is after the year 9999; the unit is seconds"
    return seconds * 1_000_000, None


_SIZES = {OCTET: 1, TIME: 8}
_READERS: dict[str, Callable[[bytes], tuple[Any, str | None]]] = {
    TEXT: read_text,
    TABLE: _read_headers,
    OCTET: _read_octet,
    TIME: _read_time,
}
