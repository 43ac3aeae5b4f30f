"""AMQP field tables (a message's headers) as text.

A value that is text is itself; numbers, booleans and decimals are what JSON would write, with
`NaN`, `Infinity` and `-Infinity` for what it would not; a timestamp is the number of seconds that
was sent; void is null; tables and arrays are JSON. Every type that RabbitMQ knows is known here,
and to any depth: what cannot be decoded raises `BrokenTable` and nothing else.

Text that is not UTF-8 is shown escaped (`escape`), from which `unescape` gives the bytes back.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple


class BrokenTable(ValueError):
    """The bytes are not a field table; the message says what is wrong."""


class Headers(NamedTuple):
    entries: list[tuple[str, str | None]]
    notes: list[str]  # what was not shown as it was sent, and why


def decode_headers(table: bytes) -> Headers:
    """The entries of a field table, without its length, in the order in which they were sent."""
    entries: dict[str, str | None] = {}
    notes: list[str] = []
    position, end = 0, len(table)
    while position < end:
        key, position = _take_key(table, position)
        kind = table[position : position + 1]
        value, position = _take_value(table, position)
        if key in entries:
            notes.append(f"{key!r} is there more than once, and the last one is shown")
            del entries[key]
        if isinstance(value, bytes):
            entries[key], is_text = readable(value)
            if not is_text:
                notes.append(f"{key!r} is not UTF-8, and shown escaped")
        elif kind in _CONTAINERS:
            entries[key] = _to_json(table, *value)
        else:
            entries[key] = value
    return Headers(list(entries.items()), notes)


def readable(raw: bytes) -> tuple[str, bool]:
    """As text, and whether it is text: otherwise it is escaped."""
    try:
        return raw.decode(), True
    except UnicodeDecodeError:
        return escape(raw), False


def escape(raw: bytes) -> str:
    r"""Bytes that are not UTF-8, readable: `\xff` for each that is not text, `\\` for `\`."""
    return raw.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def unescape(text: str) -> bytes:
    """The bytes that `escape` was given."""
    return _ESCAPED.sub(
        lambda found: bytes.fromhex(found[1].decode()) if found[1] else b"\\", text.encode()
    )


_ESCAPED = re.compile(rb"\\(?:\\|x([0-9a-f]{2}))")
_CONTAINERS = (b"F", b"A")
_size = struct.Struct(">I").unpack_from


def _take_key(table: bytes, position: int) -> tuple[str, int]:
    start = position + 1
    end = start + table[position]
    if end >= len(table):
        raise BrokenTable("a header's name ends early")
    return readable(table[start:end])[0], end


def _take_value(table: bytes, position: int) -> tuple[Any, int]:
    """A value and where it ends: bytes for text, (start, end, kind) of a container's contents,
    otherwise what is shown."""
    kind = table[position : position + 1]
    position += 1
    if kind in (b"S", b"x", *_CONTAINERS):
        if position + 4 > len(table):
            raise BrokenTable("a value ends early")
        start = position + 4
        end = start + _size(table, position)[0]
        if end > len(table):
            raise BrokenTable("a value ends early")
        return ((start, end, kind) if kind in _CONTAINERS else table[start:end]), end
    try:
        unpack, size, show = _SCALARS[kind]
    except KeyError:
        raise BrokenTable(f"a value has the unknown type {escape(kind)!r}") from None
    if position + size > len(table):
        raise BrokenTable("a value ends early")
    return show(*unpack(table, position)), position + size


def _to_json(table: bytes, start: int, end: int, kind: bytes) -> str:
    """A table or array with all that is in it. A loop, since there is no limit to their depth."""
    pieces: list[str] = []
    open_ones: list[tuple[int, bytes]] = []  # where each ends, and what it is
    position = start
    value: Any = (start, end, kind)
    while True:
        if isinstance(value, tuple):
            position, end, kind = value
            open_ones.append((end, kind))
            pieces.append("{" if kind == b"F" else "[")
        else:
            pieces += (_as_json(value), ",")
        while position == open_ones[-1][0]:
            _, kind = open_ones.pop()
            if pieces[-1] == ",":
                pieces.pop()
            pieces += ("}" if kind == b"F" else "]", ",")
            if not open_ones:
                return "".join(pieces[:-1])
        end, kind = open_ones[-1]
        if kind == b"F":
            key, position = _take_key(table, position)
            pieces += (_quote(key), ":")
        value, after = _take_value(table, position)
        if after > end or position >= end:
            raise BrokenTable("a value is longer than the table or array around it")
        position = value[0] if isinstance(value, tuple) else after


def _as_json(value: bytes | str | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return _quote(readable(value)[0])
    return _quote(value) if value in _NOT_IN_JSON else value


_quote = json.JSONEncoder(ensure_ascii=False).encode
_NOT_IN_JSON = ("NaN", "Infinity", "-Infinity")


def _show_float(value: float) -> str:
    return json.dumps(value)


def _show_decimal(scale: int, digits: int) -> str:
    return str(Decimal(digits).scaleb(-scale))


def _show_void() -> None:
    return None


def _scalar(
    layout: str, show: Callable[..., str | None]
) -> tuple[Callable[[bytes, int], tuple[Any, ...]], int, Callable[..., str | None]]:
    packed = struct.Struct(layout)
    return packed.unpack_from, packed.size, show


_SCALARS = {
    b"t": _scalar(">?", lambda value: "true" if value else "false"),
    b"b": _scalar(">b", str),
    b"B": _scalar(">B", str),
    b"s": _scalar(">h", str),
    b"U": _scalar(">h", str),
    b"u": _scalar(">H", str),
    b"I": _scalar(">i", str),
    b"i": _scalar(">I", str),
    b"l": _scalar(">q", str),  # signed, both of them, as RabbitMQ has it
    b"L": _scalar(">q", str),
    b"f": _scalar(">f", _show_float),
    b"d": _scalar(">d", _show_float),
    b"D": _scalar(">Bi", _show_decimal),
    b"T": _scalar(">Q", str),
    b"V": _scalar("", _show_void),
}
