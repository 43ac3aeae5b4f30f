"""Offsets, limits and partitions: pure arithmetic on ranges of a spool."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .errors import OptionError
from .spool import Slice


@dataclass(frozen=True)
class Offset:
    """A place in a spool: that of the next message. As Spark's checkpoint holds it, the same
    place is always the same text."""

    spool: str | None
    offset: int

    def to_json(self) -> dict[str, Any]:
        return {"spool": self.spool, "offset": self.offset}

    @classmethod
    def from_json(cls, content: Any) -> Offset:
        if (
            isinstance(content, dict)
            and content.keys() == {"spool", "offset"}
            and isinstance(content["spool"], str | None)
            and isinstance(content["offset"], int)
        ):
            return cls(**content)
        raise OptionError(
            f"the checkpoint has the offset {content!r}, which is none of this source's: "
            "does it belong to another query?"
        )


_POURING_PER_SECOND = 15_000
_GATHER_SECONDS, _GATHER_ROWS = 1.0, 200_000

ORIGIN = Offset(None, 0)  # before the subscription; names no spool, so that any start may say it


def may_grow(rows: int, seconds: float) -> bool:
    """Whether a batch that has gathered so many messages, so long after the last one, waits for
    more: only while they pour in, and then not for long."""
    is_pouring = rows >= _POURING_PER_SECOND * seconds
    return is_pouring and rows < _GATHER_ROWS and seconds < _GATHER_SECONDS


def limit_end(
    slices: Sequence[Slice],
    sizes: Sequence[float],
    max_rows: int | None = None,
    max_bytes: int | None = None,
) -> int:
    """Where a batch over these slices, of so many bytes each, has to end.

    It has a message at least, whatever the limits; inside a slice, all messages count as equally
    large.
    """
    start, end = slices[0].start, slices[-1].end
    if max_rows is not None:
        end = min(end, start + max_rows)
    if max_bytes is not None:
        left = float(max_bytes)
        for piece, size in zip(slices, sizes, strict=True):
            if size > left:
                end = min(end, piece.start + int(left * piece.rows / size))
                break
            left -= size
    return max(end, start + 1)


def partition(
    slices: Sequence[Slice], sizes: Sequence[float], target_bytes: int, min_partitions: int = 1
) -> list[list[Slice]]:
    """Divide slices, of so many bytes each, into about equal parts of at most about this size.

    Slices stay whole unless `min_partitions` needs them smaller: of each, its whole segment is
    read.
    """
    total = sum(sizes)
    count = max(min_partitions, -(-int(total) // target_bytes))
    pieces = _cut(slices, sizes, min_partitions)
    bounds = [total * part / count for part in range(1, count)]
    parts: list[list[Slice]] = [[] for _ in range(count)]
    done = 0.0
    for piece, size in pieces:
        parts[bisect.bisect_right(bounds, done + size / 2)].append(piece)
        done += size
    return [part for part in parts if part]


def _cut(
    slices: Sequence[Slice], sizes: Sequence[float], min_pieces: int
) -> list[tuple[Slice, float]]:
    """No piece larger than one of `min_pieces` equal ones, as far as messages can be divided."""
    pieces: list[tuple[Slice, float]] = []
    largest = sum(sizes) / min_pieces
    for piece, size in zip(slices, sizes, strict=True):
        count = min(math.ceil(size / largest), piece.rows)
        cuts = [piece.start + piece.rows * part // count for part in range(count + 1)]
        pieces += [
            (replace(piece, start=start, end=end), size / count)
            for start, end in itertools.pairwise(cuts)
        ]
    return pieces
