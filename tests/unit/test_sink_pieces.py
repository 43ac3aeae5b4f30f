"""How a sink divides a batch."""

import itertools

import pyarrow as pa
import pytest

from fanout_source import sink


def _sizes(bodies, most_rows=1000):
    batch = pa.record_batch({"body": pa.array(bodies, pa.binary())})
    pieces = list(sink._pieces(batch, most_rows))
    assert [start for start, _ in pieces] == [0, *(end for _, end in pieces[:-1])]
    assert pieces[-1][1] == len(bodies)
    return [end - start for start, end in pieces]


@pytest.mark.parametrize(
    ("rows", "most", "sizes"), [(5, 2, [2, 2, 1]), (3, 1000, [3]), (1, 1, [1])]
)
def test_pieces_have_as_many_rows_as_asked_for(rows, most, sizes):
    assert _sizes([b"x"] * rows, most) == sizes


def test_a_few_large_ones_among_many_small_ones_are_handed_over_by_themselves():
    mebibyte = 1024**2
    bodies = [b"x"] * 500 + [bytes(3 * mebibyte)] * 3 + [b"x"] * 500 + [bytes(9 * mebibyte)]
    sizes = _sizes(bodies)
    assert sum(sizes) == len(bodies)
    ends = itertools.accumulate(sizes)
    for size, end in zip(sizes, ends, strict=True):
        assert size == 1 or sum(map(len, bodies[end - size : end])) <= 4 * mebibyte
