"""A segment: its name, and its bytes."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

import pyarrow as pa

from ..errors import SpoolDamaged, SpoolError

VERSION = "1"
_VERSION_KEY = b"fanout.spool"


@dataclass(frozen=True, order=True)
class Segment:
    """The messages from `start` to `end` (exclusive), in a file with this CRC."""

    start: int
    end: int
    crc32: int

    @property
    def name(self) -> str:
        return f"{self.start:020d}-{self.end:020d}-{self.crc32:08x}.arrow"

    @classmethod
    def parse(cls, name: str) -> Segment | None:
        """The segment with this file name; None when it is no segment's name."""
        found = _NAME.fullmatch(name)
        return cls(int(found[1]), int(found[2]), int(found[3], 16)) if found else None


_NAME = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9a-f]{8})\.arrow")


@dataclass(frozen=True)
class Slice:
    """Some rows of a segment: what a reader needs to find them."""

    segment: Segment
    start: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.start


def encode(batch: pa.RecordBatch, start: int) -> tuple[Segment, pa.Buffer]:
    """A batch as a segment that begins at `start`, and the bytes of its file."""
    metadata = {**(batch.schema.metadata or {}), _VERSION_KEY: VERSION.encode()}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema.with_metadata(metadata)) as writer:
        writer.write_batch(batch)
    data = sink.getvalue()
    return Segment(start, start + batch.num_rows, zlib.crc32(data)), data


def decode(segment: Segment, data: pa.Buffer, path: str) -> pa.RecordBatch:
    """The batch in a segment's file, or `SpoolDamaged` naming `path`."""
    if zlib.crc32(data) != segment.crc32:
        raise SpoolDamaged(
            f"segment {path} is damaged: its {data.size} bytes are not those that were written; "
            "restore the file"
        )
    try:
        reader = pa.ipc.open_file(data)
    except pa.ArrowInvalid as error:
        raise SpoolDamaged(f"segment {path} is no Arrow file: restore it") from error
    version = (reader.schema.metadata or {}).get(_VERSION_KEY, b"none").decode()
    if version != VERSION:
        raise SpoolError(
            f"segment {path} has format version {version}, and this program knows {VERSION}: "
            "use the version of fanout-source that wrote it"
        )
    return reader.get_batch(0)
