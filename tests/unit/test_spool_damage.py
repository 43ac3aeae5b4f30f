"""A spool that is damaged: what is provably whole is there, and a file is named."""

import os
import time
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from fanout_source.errors import SpoolDamaged, SpoolError
from fanout_source.spool import (
    Gap,
    Segment,
    Spool,
    read_slice,
)
from spooled import batch, files, rows_in


def _cut(path, data):
    for length in range(len(data)):
        yield f"cut at {length}", data[:length]


def _zero_tail(path, data):
    for length in range(0, len(data), 64):
        yield f"zero from {length}", data[:length] + bytes(len(data) - length)


def _flip(path, data):
    for bit in range(0, 8 * len(data), 7):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit}", bytes(flipped)


def _grow(path, data):
    yield "a byte more", data + b"\0"
    yield "twice", data + data


@pytest.mark.parametrize("which", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("corrupt", [_cut, _zero_tail, _flip, _grow])
def test_a_changed_segment_is_named_and_nothing_else_is_lost(disk, corrupt, which):
    with Spool.create(disk) as spool:
        for number in range(3):
            spool.append(batch(2 * number, 2 * number + 1))
    path = files(spool)[which]
    data = Path(path).read_bytes()
    corruptions = 0
    for what, changed in corrupt(path, data):
        if changed == data:
            continue
        corruptions += 1
        with open(path, "wb") as file:
            file.write(changed)
        with pytest.raises(SpoolDamaged) as caught:
            Spool.open(disk, spool.id)
        assert path in str(caught.value), what
        assert "\n" not in str(caught.value)
    assert corruptions
    lost = [2 * which, 2 * which + 1]
    with Spool.open(disk, spool.id, accept_loss=True) as survivor:
        assert survivor.end == 6
        assert rows_in(survivor, 0 if which else 2, 6) == [n for n in range(6) if n not in lost]
        gap = survivor.latest_gaps[-1]
        assert (gap.offset, gap.lost) == (lost[-1] + 1, 2)
        assert survivor.append(batch(6)).start == 6
    assert [Path(p).read_bytes() for p in files(spool, ".damaged")] == [changed]
    with Spool.open(disk, spool.id) as again:  # the loss is known by now
        assert again.gap_count == 1
        assert again.end == 7


def test_a_loss_says_since_when_and_why(disk, caplog):
    with Spool.create(disk) as spool:
        spool.append(batch(0, 1))
        spool.append(batch(2))
    path = files(spool)[1]
    Path(path).write_bytes(b"x")
    opened = time.time()
    with Spool.open(disk, spool.id, accept_loss=True) as survivor:
        [gap] = survivor.latest_gaps
        assert gap.since == survivor.last_active
        assert opened <= gap.until <= time.time()
        assert gap.reason.startswith(f"segment {path} is damaged")
    lost = f"the messages 2 to 3 in the spool {disk}/{spool.id} cannot be read"
    assert caplog.messages == [f"{lost}: {gap.reason}"]


def test_a_hole_between_segments_is_damage(disk):
    with Spool.create(disk) as spool:
        for number in range(4):
            spool.append(batch(number))
    os.unlink(files(spool)[1])
    os.unlink(files(spool)[1])
    with pytest.raises(SpoolDamaged, match=r"messages 1 to 3 in the spool .*segments are missing"):
        Spool.open(disk, spool.id)
    with Spool.open(disk, spool.id, accept_loss=True) as survivor:
        assert rows_in(survivor) == [0, 3]
        assert (survivor.latest_gaps[-1].offset, survivor.latest_gaps[-1].lost) == (3, 2)


def test_segments_that_overlap_are_damage(disk):
    with Spool.create(disk) as spool:
        spool.append(batch(0, 1))
        data = Path(files(spool)[0]).read_bytes()
        stray = Segment(1, 3, zlib.crc32(data)).name
        with open(os.path.join(os.path.dirname(files(spool)[0]), stray), "wb") as file:
            file.write(data)
    with pytest.raises(SpoolDamaged, match=f"{stray} holds offsets that the one before it holds"):
        Spool.open(disk, spool.id, accept_loss=True)


def test_temporary_files_are_removed_and_strange_ones_left_alone(disk):
    with Spool.create(disk) as spool:
        spool.append(batch(0))
    folder = os.path.dirname(files(spool)[0])
    for name in ("00000000000000000001-x.arrow.tmp", "notes.txt", "1-2-3.arrow"):
        with open(os.path.join(folder, name), "w") as file:
            file.write("?")
    with Spool.open(disk, spool.id) as again:
        assert rows_in(again) == [0]
    assert not files(spool, ".tmp")
    assert files(spool, "notes.txt")
    assert files(spool, "1-2-3.arrow")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": "1"}'])
def test_a_damaged_state_is_named(disk, content):
    with Spool.create(disk) as spool:
        spool.append(batch(0))
    [path] = files(spool, "state.json")
    with open(path, "wb") as file:
        file.write(content)
    with pytest.raises(SpoolDamaged, match=r"state.json is damaged"):
        Spool.open(disk, spool.id)


@pytest.mark.parametrize(("content", "what"), [(b"{", "damaged"), (None, "gone")])
def test_a_state_that_cannot_be_read_is_kept_and_its_loss_is_a_gap(disk, content, what):
    with Spool.create(disk) as spool:
        spool.append(batch(0))
    state = Path(disk, spool.id, "state.json")
    state.unlink()
    if content is not None:
        state.write_bytes(content)
    with pytest.raises(SpoolDamaged, match=f"{state} is {what}, .* failOnDataLoss=false to go on"):
        Spool.open(disk, spool.id)
    opened = time.time()
    with Spool.open(disk, spool.id, accept_loss=True) as survivor:
        [gap] = survivor.latest_gaps
        assert (gap.offset, gap.since, gap.lost) == (0, survivor.last_active, 0)
        assert opened <= gap.until <= time.time()
        assert gap.reason == f"the record of earlier gaps is {what}"
    assert [Path(path).read_bytes() for path in files(spool, ".damaged")] == (
        [content] if content else []
    )
    with Spool.open(disk, spool.id) as accepted:
        assert accepted.latest_gaps == (gap,)


@pytest.mark.parametrize(("metadata", "version"), [({"fanout.spool": "2"}, "2"), (None, "none")])
def test_a_segment_of_another_format_is_refused_and_not_taken_for_damage(disk, metadata, version):
    with Spool.create(disk) as spool:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch(0).schema.with_metadata(metadata)) as writer:
            writer.write_batch(batch(0))
        data = sink.getvalue()
        path = Path(disk, spool.id, Segment(0, 1, zlib.crc32(data)).name)
        path.write_bytes(data)
    says = f"segment {path} has format version {version}, .* use the version of fanout-source that"
    with pytest.raises(SpoolError, match=says):
        Spool.open(disk, spool.id, accept_loss=True)
    assert path.exists()


def test_a_spool_that_was_not_made_to_the_end_is_empty(disk):
    os.makedirs(os.path.join(disk, "0" * 32))
    with Spool.open(disk, "0" * 32) as spool:
        assert (spool.end, spool.last_active) == (0, 0.0)


def test_a_newer_format_is_refused(disk):
    with Spool.create(disk) as spool:
        spool.append(batch(0))
    [path] = files(spool, "state.json")
    text = Path(path).read_text().replace('"version": "1"', '"version": "2"')
    with open(path, "w") as file:
        file.write(text)
    with pytest.raises(
        SpoolError, match="format version 2, and this program knows 1: use the version"
    ):
        Spool.open(disk, spool.id)


def test_a_reader_checks_what_it_reads(disk):
    with Spool.create(disk) as spool:
        spool.append(batch(0))
        [piece] = spool.slices(0, 1)
        path = files(spool)[0]
        with open(path, "r+b") as file:
            file.write(b"x")
        with pytest.raises(SpoolDamaged, match=r"is damaged: its .* bytes are not those"):
            read_slice(disk, spool.id, piece)
        os.unlink(path)
        with pytest.raises(SpoolDamaged, match="does not exist; the option spoolDir"):
            read_slice(disk, spool.id, piece)


def test_a_reader_names_the_file_that_it_cannot_read(disk):
    with Spool.create(disk) as spool:
        spool.append(batch(0))
        [piece] = spool.slices(0, 1)
    [path] = files(spool)
    Path(path).write_bytes(b"x")
    with pytest.raises(SpoolDamaged, match=f"segment {path} is damaged: .*; restore the file"):
        read_slice(disk, spool.id, piece)
    os.unlink(path)
    with pytest.raises(SpoolDamaged, match=f"cannot read {path}: it does not exist"):
        read_slice(disk, spool.id, piece)


def test_a_spool_that_is_gone_is_an_error_that_says_what_to_do(disk):
    with pytest.raises(SpoolDamaged, match=r"spoolDir.*failOnDataLoss=false"):
        Spool.open(disk, "0" * 32, needed=(3, 5))
    assert not os.path.exists(os.path.join(disk, "0" * 32))


def test_a_spool_that_is_gone_is_made_anew_with_one_recorded_gap(disk):
    with Spool.open(disk, "0" * 32, needed=(3, 5), accept_loss=True) as spool:
        [gap] = spool.latest_gaps
        assert (gap.offset, gap.since, gap.lost) == (5, None, 2)
        assert spool.slices(3, 5) == []
        assert spool.append(batch(5, 6)).start == 5
    with Spool.open(disk, "0" * 32, needed=(3, 5)) as spool:  # the loss is known by now
        assert spool.gap_count == 1
        assert rows_in(spool, 3, 7) == [5, 6]


def test_a_spool_that_is_gone_with_all_it_held_is_made_anew(disk):
    with Spool.open(disk, "0" * 32, needed=(0, 5), accept_loss=True) as spool:
        [gap] = spool.latest_gaps
        assert gap.lost == 5
        assert gap.reason == f"there is no spool {'0' * 32} in {disk}"
    with Spool.open(disk, "0" * 32, needed=(0, 5)) as spool:  # the loss is known by now
        assert spool.slices(0, 5) == []


def test_a_spool_that_is_gone_and_was_not_needed_is_made_anew_without_a_gap(disk):
    with Spool.open(disk, "0" * 32, accept_loss=True) as spool:
        assert (spool.end, spool.gap_count) == (0, 0)


@pytest.mark.parametrize(("needed", "which"), [((1, 4), "older"), ((5, 8), "newer")])
def test_a_checkpoint_that_does_not_fit_is_said_to_be_older_or_newer(disk, needed, which):
    with Spool.create(disk) as spool:
        spool.append(batch(0, 1, 2, 3))
        spool.append(batch(4, 5))
        spool.drop_below(4)
    reason = f"the checkpoint is {which} than the spool"
    with pytest.raises(SpoolDamaged, match=f"cannot be read: {reason};"):
        Spool.open(disk, spool.id, needed=needed)
    with Spool.open(disk, spool.id, needed=needed, accept_loss=True) as spool:
        assert [gap.reason for gap in spool.latest_gaps] == [reason]


@pytest.mark.parametrize(
    ("needed", "lost", "readable"),
    [((1, 4), 3, [4]), ((9, 9), 0, []), ((8, 12), 4, []), ((4, 9), 3, [4, 5])],
)
def test_what_the_checkpoint_names_and_the_spool_does_not_hold_is_lost(
    disk, needed, lost, readable
):
    with Spool.create(disk) as spool:
        spool.append(batch(0, 1, 2, 3))
        spool.append(batch(4, 5))
        spool.drop_below(4)
    with pytest.raises(SpoolDamaged, match=r"failOnDataLoss=false"):
        Spool.open(disk, spool.id, needed=needed)
    end = max(6, needed[1])
    for accept_loss in (True, False):
        with Spool.open(disk, spool.id, needed=needed, accept_loss=accept_loss) as spool:
            [gap] = spool.latest_gaps
            assert gap.lost == lost
            assert spool.end == end
            assert rows_in(spool, needed[0], max(needed[1], 5)) == readable


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"version":"1","gaps":null,"latest_gaps":[],"lost":null}', None]
)
def test_a_state_that_is_damaged_or_gone_is_named_or_counts_as_a_gap(disk, content):
    with Spool.create(disk) as spool:
        spool.append(batch(0, 1))
    state = Path(disk, spool.id, "state.json")
    if content is None:
        state.unlink()
    else:
        state.write_bytes(content)
    with pytest.raises(SpoolDamaged, match=r"state\.json is (damaged|gone)"):
        Spool.open(disk, spool.id)
    with Spool.open(disk, spool.id, accept_loss=True) as again:
        assert again.gap_count == 1
        again.record_gap(Gap(2, None, 0.0, "another"))
        assert rows_in(again) == [0, 1]
    with Spool.open(disk, spool.id) as again:
        assert again.gap_count == 2


def test_an_empty_segment_with_a_matching_name_is_damaged(disk):
    with Spool.create(disk) as spool:
        pass
    Path(disk, spool.id, Segment(0, 1, 0).name).touch()
    with pytest.raises(SpoolDamaged, match="no Arrow file"):
        Spool.open(disk, spool.id)
