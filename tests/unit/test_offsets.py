"""Arithmetic on offsets, limits and partitions."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout_source.errors import OptionError
from fanout_source.offsets import ORIGIN, Offset, limit_end, may_grow, partition
from fanout_source.spool import Segment, Slice


def _slices(*rows, start=0):
    """Slices of whole segments, one after the other."""
    slices = []
    for count in rows:
        slices.append(Slice(Segment(start, start + count, 0), start, start + count))
        start += count
    return slices


some_slices = st.lists(st.tuples(st.integers(1, 50), st.floats(1, 1e6)), min_size=1, max_size=20)


def test_an_offset_is_always_the_same_text():
    text = '{"spool": "ab", "offset": 7}'
    assert json.dumps(Offset.from_json(json.loads(text)).to_json()) == text
    swapped = json.loads('{"offset": 7, "spool": "ab"}')
    assert json.dumps(Offset.from_json(swapped).to_json()) == text
    assert json.dumps(ORIGIN.to_json()) == '{"spool": null, "offset": 0}'


@pytest.mark.parametrize(
    "text", ['{"logs": {"0": 23}}', "23", "null", '{"spool": 1, "offset": 2}', '{"spool": "a"}']
)
def test_an_offset_of_another_source_is_refused(text):
    with pytest.raises(OptionError, match="another query"):
        Offset.from_json(json.loads(text))


def test_without_limits_a_batch_takes_all():
    assert limit_end(_slices(10, 10), [100.0, 100.0]) == 20


def test_a_batch_can_end_inside_a_segment():
    slices, sizes = _slices(10, 10, start=5), [100.0, 1000.0]
    assert limit_end(slices, sizes, max_rows=12) == 17
    assert limit_end(slices, sizes, max_bytes=50) == 10
    assert limit_end(slices, sizes, max_bytes=300) == 17


def test_the_tighter_of_two_limits_counts():
    slices, sizes = _slices(10, 10), [100.0, 100.0]
    assert limit_end(slices, sizes, max_rows=3, max_bytes=150) == 3
    assert limit_end(slices, sizes, max_rows=18, max_bytes=150) == 15


@given(some_slices, st.integers(1, 2000), st.integers(1, 10**7))
def test_a_limited_batch_keeps_its_limits_or_is_a_single_message(made, max_rows, max_bytes):
    slices, sizes = _slices(*(rows for rows, _ in made)), [size for _, size in made]
    end = limit_end(slices, sizes, max_rows, max_bytes)
    assert 1 <= end <= slices[-1].end
    held = sum(
        size * max(0, min(end, piece.end) - piece.start) / piece.rows
        for piece, size in zip(slices, sizes, strict=True)
    )
    assert end == 1 or (end <= max_rows and held <= max_bytes * (1 + 1e-9))


def test_a_small_batch_is_one_partition_whatever_it_is_made_of():
    assert partition(_slices(1, 1, 1), [10.0, 10.0, 10.0], 1000) == [_slices(1, 1, 1)]


def test_a_large_batch_is_split_between_segments():
    slices = _slices(10, 10, 10, 10)
    parts = partition(slices, [100.0] * 4, 200)
    assert parts == [slices[:2], slices[2:]]


def test_a_segment_goes_to_the_part_that_its_middle_is_in():
    slices = _slices(10, 10, 10)
    assert partition(slices, [5.0, 8.0, 3.0], 8) == [slices[:1], slices[1:]]
    assert partition(slices, [3.0, 8.0, 5.0], 8) == [slices[:2], slices[2:]]


def test_a_batch_of_nothing_has_no_partition():
    assert partition([], [], 1000, 4) == []


@given(some_slices, st.integers(10_000, 10**7), st.integers(1, 30))
def test_partitions_hold_every_message_once_in_order(made, target_bytes, min_partitions):
    slices, sizes = _slices(*(rows for rows, _ in made)), [size for _, size in made]
    parts = partition(slices, sizes, target_bytes, min_partitions)
    pieces = [piece for part in parts for piece in part]
    edges = [0, *(piece.end for piece in pieces)]
    assert [piece.start for piece in pieces] == edges[:-1]
    assert edges[-1] == slices[-1].end
    assert all(p.segment.start <= p.start < p.end <= p.segment.end for p in pieces)
    assert all(parts)


def test_as_many_partitions_as_asked_for_as_far_as_there_are_messages():
    assert len(partition(_slices(1000), [5000.0], 10**9, 7)) == 7
    assert len(partition(_slices(10, 10, 1000), [1.0, 1.0, 9000.0], 10**9, 4)) == 4
    assert len(partition(_slices(3), [5000.0], 10**9, 7)) == 3


@pytest.mark.parametrize(
    ("rows", "seconds", "waits"),
    [(1, 0.3, False), (4_000, 0.3, False), (5_000, 0.3, True), (30_000, 1.0, False),
     (199_999, 0.9, True), (200_000, 0.9, False)],
)  # fmt: skip
def test_a_batch_grows_only_while_messages_pour_in_and_not_for_long(rows, seconds, waits):
    assert may_grow(rows, seconds) == waits
