"""The spool: what it has taken is there, byte for byte, by offset."""

import os
import time

import pytest

from fanout_source.errors import SpoolDamaged
from fanout_source.spool import (
    Gap,
    Segment,
    Spool,
)
from spooled import batch, files, rows_in


def test_what_was_appended_is_read_by_offset(location):
    with Spool.create(location) as spool:
        assert (spool.start, spool.end, spool.bytes) == (0, 0, 0)
        spool.append(batch(0, 1, 2))
        spool.append(batch(3))
        spool.append(batch(4, 5))
        assert (spool.start, spool.end) == (0, 6)
        assert rows_in(spool) == [0, 1, 2, 3, 4, 5]
        assert rows_in(spool, 1, 5) == [1, 2, 3, 4]
        assert rows_in(spool, 2, 2) == []


def test_a_reopened_spool_goes_on_where_it_was(location):
    with Spool.create(location) as spool:
        assert not spool.was_subscribed
        spool.append(batch(0, 1))
        size = spool.bytes
    with Spool.open(location, spool.id) as again:
        assert again.was_subscribed
        assert (again.start, again.end, again.bytes) == (0, 2, size)
        assert time.time() - again.last_active < 60
        again.append(batch(2))
        assert rows_in(again) == [0, 1, 2]


def test_only_whole_segments_are_dropped_and_never_the_last(location):
    with Spool.create(location) as spool:
        for number in range(4):
            spool.append(batch(2 * number, 2 * number + 1))
        before = spool.bytes
        spool.drop_below(5)
        assert (spool.start, spool.end) == (4, 8)
        assert spool.bytes == before // 2
        assert rows_in(spool) == [4, 5, 6, 7]
        spool.drop_below(100)
        assert (spool.start, spool.end) == (6, 8)
    with Spool.open(location, spool.id) as again:
        assert (again.start, again.end) == (6, 8)


def test_an_empty_spool_has_nothing_to_read(location):
    with Spool.create(location) as spool:
        assert time.time() - spool.last_active < 60
        assert spool.slices(0, 0) == []
        with pytest.raises(SpoolDamaged, match="has the offsets 0 to 0, and 0 to 1 are asked for"):
            spool.slices(0, 1)


def test_a_slice_counts_for_its_share_of_its_segment(location):
    with Spool.create(location) as spool:
        spool.append(batch(0, 1, 2, 3))
        size = spool.bytes
        spool.append(batch(4, 5))
        assert sum(map(spool.size_of, spool.slices(0, 6))) == spool.bytes
        [piece] = spool.slices(1, 2)
        assert spool.size_of(piece) == size / 4


@pytest.mark.parametrize(
    ("keep_rows", "keep_segments", "more_bytes", "start"),
    [
        (0, 0, 0, 6),
        (3, 9, 0, 4),
        (4, 9, 0, 4),
        (5, 9, 0, 2),
        (9, 2, 0, 4),
        (9, 2, 1, 2),
        (9, 9, 0, 0),
    ],
)
def test_the_last_segments_stay_until_they_hold_the_rows_or_the_bytes(
    disk, keep_rows, keep_segments, more_bytes, start
):
    with Spool.create(disk) as spool:
        for number in range(4):
            spool.append(batch(2 * number, 2 * number + 1))
        keep_bytes = keep_segments * spool.bytes // 4 + more_bytes
        for has_dropped in (start > 0, False):
            dropped = spool.drop_below(8, keep_rows=keep_rows, keep_bytes=keep_bytes)
            assert (dropped, spool.start) == (has_dropped, start)


def test_a_segment_that_somebody_has_deleted_can_be_dropped(disk):
    with Spool.create(disk) as spool:
        spool.append(batch(0))
        spool.append(batch(1))
        os.unlink(files(spool)[0])
        assert spool.drop_below(1)
        assert rows_in(spool) == [1]


def test_a_discarded_spool_is_gone(location):
    with Spool.create(location) as spool:
        spool.append(batch(0))
        spool.discard()
    with pytest.raises(SpoolDamaged, match="there is no spool"):
        Spool.open(location, spool.id)


def test_a_note_is_for_the_next_owner(location):
    with Spool.create(location) as spool:
        assert spool.note == {}
        spool.remember({"queue": "a"})
        spool.record_gap(Gap(0, None, 2.5, "it rained"))
    with Spool.open(location, spool.id) as again:
        assert again.note == {"queue": "a"}
        again.record_gap(Gap(0, None, 3.5, "again"), {"queue": "b"})
    with Spool.open(location, spool.id) as again:
        assert again.note == {"queue": "b"}


def test_gaps_are_kept_through_a_restart_and_their_number_is_bounded(location):
    with Spool.create(location) as spool:
        for number in range(150):
            spool.record_gap(Gap(number, 1.5, 2.5, "it rained"))
    with Spool.open(location, spool.id) as again:
        assert again.gap_count == 150
        assert [gap.offset for gap in again.latest_gaps] == list(range(50, 150))
        assert again.latest_gaps[-1] == Gap(149, 1.5, 2.5, "it rained")


def test_an_offset_outside_of_it_is_refused(location):
    with Spool.create(location) as spool:
        spool.append(batch(0, 1))
        with pytest.raises(SpoolDamaged, match=r"has the offsets 0 to 2, and 0 to 3 are asked for"):
            spool.slices(0, 3)


@pytest.mark.parametrize("spool_id", ["../../etc", "", "A" * 32, "0" * 31])
def test_an_id_that_is_none_is_refused(disk, spool_id):
    with pytest.raises(SpoolDamaged, match="no spool's id"):
        Spool.open(disk, spool_id)


def test_a_spool_that_is_not_there_is_named(location):
    with pytest.raises(SpoolDamaged, match=f"there is no spool {'0' * 32} in .*set spoolDir"):
        Spool.open(location, "0" * 32)


def test_names_sort_as_offsets_do_and_are_read_back():
    segments = [Segment(0, 9, 1), Segment(9, 10**12, 0xFFFFFFFF), Segment(10**12, 2**63 - 1, 0)]
    assert sorted(s.name for s in segments) == [s.name for s in segments]
    assert [Segment.parse(s.name) for s in segments] == segments
    assert segments[1].name == "00000000000000000009-00000001000000000000-ffffffff.arrow"
    assert Segment.parse("00000000000000000009-x.arrow") is None
