"""The spool: what it has taken is there, byte for byte, or a file is named."""

import errno
import fcntl
import operator
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from fanout_source import failpoints
from fanout_source.errors import OptionError, SpoolBusy, SpoolDamaged, SpoolError
from fanout_source.spool import (
    Gap,
    Segment,
    Spool,
    Unowned,
    default_location,
    find_unowned,
    read_slice,
    remove_leftovers,
)
from fanout_source.spool import spool as spool_module
from fanout_source.spool.folder import LocalFolder, RemoteFolder, open_folder


def _batch(*numbers):
    return pa.record_batch({"number": pa.array(numbers, pa.int64())})


def _rows(spool, start=None, end=None):
    start, end = spool.start if start is None else start, spool.end if end is None else end
    batches = [read_slice(spool.location, spool.id, piece) for piece in spool.slices(start, end)]
    return [n for b in batches if b.num_rows for n in b.column("number").to_pylist()]


@pytest.fixture(params=["local", "file://", "mock://"])
def location(request, tmp_path, monkeypatch):
    if request.param == "local":
        return str(tmp_path / "spool")
    if request.param == "file://":
        return f"file://{tmp_path}/spool"
    # pyarrow's in-memory file system: neither local nor an object store. The same one for all who
    # ask in this test.
    memory = pa.fs.FileSystem.from_uri("mock:///")[0]
    folders = {}

    def open_in_memory(location, name):
        path = f"{location.removeprefix('mock://')}/{name}"
        return folders.setdefault(path, RemoteFolder(memory, path))

    monkeypatch.setattr(spool_module, "open_folder", open_in_memory)
    return "mock://spool"


@pytest.fixture
def disk(tmp_path):
    return str(tmp_path / "spool")


@pytest.fixture(autouse=True)
def no_failpoints():
    yield
    failpoints.arm("")


def _files(spool, suffix=".arrow"):
    folder = open_folder(spool.location, spool.id).path
    return sorted(f"{folder}/{name}" for name in os.listdir(folder) if name.endswith(suffix))


def test_what_was_appended_is_read_by_offset(location):
    with Spool.create(location) as spool:
        assert (spool.start, spool.end, spool.bytes) == (0, 0, 0)
        spool.append(_batch(0, 1, 2))
        spool.append(_batch(3))
        spool.append(_batch(4, 5))
        assert (spool.start, spool.end) == (0, 6)
        assert _rows(spool) == [0, 1, 2, 3, 4, 5]
        assert _rows(spool, 1, 5) == [1, 2, 3, 4]
        assert _rows(spool, 2, 2) == []


def test_a_reopened_spool_goes_on_where_it_was(location):
    with Spool.create(location) as spool:
        assert not spool.was_subscribed
        spool.append(_batch(0, 1))
        size = spool.bytes
    with Spool.open(location, spool.id) as again:
        assert again.was_subscribed
        assert (again.start, again.end, again.bytes) == (0, 2, size)
        assert time.time() - again.last_active < 60
        again.append(_batch(2))
        assert _rows(again) == [0, 1, 2]


def test_only_whole_segments_are_dropped_and_never_the_last(location):
    with Spool.create(location) as spool:
        for number in range(4):
            spool.append(_batch(2 * number, 2 * number + 1))
        before = spool.bytes
        spool.drop_below(5)
        assert (spool.start, spool.end) == (4, 8)
        assert spool.bytes == before // 2
        assert _rows(spool) == [4, 5, 6, 7]
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
        spool.append(_batch(0, 1, 2, 3))
        size = spool.bytes
        spool.append(_batch(4, 5))
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
            spool.append(_batch(2 * number, 2 * number + 1))
        keep_bytes = keep_segments * spool.bytes // 4 + more_bytes
        for has_dropped in (start > 0, False):
            dropped = spool.drop_below(8, keep_rows=keep_rows, keep_bytes=keep_bytes)
            assert (dropped, spool.start) == (has_dropped, start)


def test_a_segment_that_somebody_has_deleted_can_be_dropped(disk):
    with Spool.create(disk) as spool:
        spool.append(_batch(0))
        spool.append(_batch(1))
        os.unlink(_files(spool)[0])
        assert spool.drop_below(1)
        assert _rows(spool) == [1]


def test_a_discarded_spool_is_gone(location):
    with Spool.create(location) as spool:
        spool.append(_batch(0))
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
        spool.append(_batch(0, 1))
        with pytest.raises(SpoolDamaged, match=r"has the offsets 0 to 2, and 0 to 3 are asked for"):
            spool.slices(0, 3)


@pytest.mark.parametrize("spool_id", ["../../etc", "", "A" * 32, "0" * 31])
def test_an_id_that_is_none_is_refused(disk, spool_id):
    with pytest.raises(SpoolDamaged, match="no spool's id"):
        Spool.open(disk, spool_id)


def test_a_spool_that_is_not_there_is_named(location):
    with pytest.raises(SpoolDamaged, match=f"there is no spool {'0' * 32} in .*set spoolDir"):
        Spool.open(location, "0" * 32)


def test_a_location_that_no_file_system_knows_is_refused():
    with pytest.raises(OptionError, match="spoolDir 'nonsense://x' cannot be used"):
        Spool.create("nonsense://x")


def test_a_path_and_its_uri_are_the_same_place(disk):
    with Spool.create(f"file://{disk}/") as spool:
        spool.append(_batch(7))
        with pytest.raises(SpoolBusy, match=f"the spool {disk}/{spool.id} is in use"):
            Spool.open(disk, spool.id)
    with Spool.open(disk, spool.id) as again:
        assert _rows(again) == [7]


def test_what_another_file_system_holds_is_not_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Spool.create("mock:///spool/") as spool:
        assert spool.append(_batch(7)).end == 1
    assert os.listdir(tmp_path) == []


def test_a_location_that_is_no_path_is_refused():
    with pytest.raises(OptionError, match=r"spoolDir 'a\\x00b' is no path"):
        Spool.create("a\0b")


def test_spools_are_in_the_users_state_folder_unless_told_otherwise(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_location() == "/state/fanout/spool"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert default_location() == "/home/me/.local/state/fanout/spool"


# ── ownership ───────────────────────────────────────────────────────────────────────────────────


def test_a_second_owner_on_a_local_disk_is_refused_with_the_name_of_the_first(disk):
    with (
        Spool.create(disk) as spool,
        pytest.raises(SpoolBusy, match=f"in use by process {os.getpid()} on .*checkpoint"),
    ):
        Spool.open(disk, spool.id)
    Spool.open(disk, spool.id).close()


@pytest.mark.parametrize(
    ("content", "owner"), [(b"", "another process"), (b"process \xff", "process \ufffd")]
)
def test_a_second_owner_is_refused_whatever_the_first_has_left_in_the_lock(disk, content, owner):
    with Spool.create(disk) as spool:
        Path(disk, spool.id, "lock").write_bytes(content)
        with pytest.raises(SpoolBusy, match=f"is in use by {owner}: "):
            Spool.open(disk, spool.id)


def test_nobody_waits_who_was_not_told_to(disk, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("somebody waits"))
    with Spool.create(disk) as spool:
        with pytest.raises(SpoolBusy):
            Spool.open(disk, spool.id)
        _age(spool, 31 * 86400)
        assert remove_leftovers(disk) == []


@pytest.mark.parametrize(
    ("put", "says"),
    [
        (lambda lock: lock.symlink_to("state.json"), "Too many levels of symbolic links"),
        (Path.mkdir, "Is a directory"),
    ],
)
def test_a_lock_that_is_no_file_is_refused(disk, put, says):
    with Spool.create(disk) as spool:
        spool.append(_batch(0))
    folder = Path(disk, spool.id)
    state = (folder / "state.json").read_bytes()
    (folder / "lock").unlink()
    put(folder / "lock")
    with pytest.raises(SpoolError, match=f"cannot open {folder}: {says}"):
        Spool.open(disk, spool.id)
    assert find_unowned(disk) == []
    assert (folder / "state.json").read_bytes() == state


def test_a_spool_that_is_removed_just_as_it_is_opened_is_missing(disk, monkeypatch):
    with Spool.create(disk) as spool:
        pass
    flock = fcntl.flock

    def flock_too_late(file, how):
        os.unlink(os.path.join(disk, spool.id, "lock"))
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", flock_too_late)
    with pytest.raises(SpoolDamaged, match=f"cannot open {disk}/{spool.id}: it does not exist"):
        Spool.open(disk, spool.id)


def test_elsewhere_the_last_owner_wins_and_the_one_before_cannot_append():
    memory = pa.fs.FileSystem.from_uri("mock:///")[0]
    first, second = RemoteFolder(memory, "a/b"), RemoteFolder(memory, "a/b")
    first.create()
    first.write("x", b"1")
    second.claim()
    with pytest.raises(SpoolBusy, match="taken over by process"):
        first.write("y", b"2")
    second.write("z", b"3")
    assert {file.base_name for file in second.files()} == {"owner", "x", "z"}


def test_nobody_else_may_look_inside(disk):
    before = os.umask(0)
    try:
        with Spool.create(disk) as spool:
            spool.append(_batch(1))
    finally:
        os.umask(before)
    folder = open_folder(disk, spool.id).path
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert {stat.S_IMODE(os.stat(file).st_mode) for file in _files(spool, "")} == {0o600}


def test_nobody_else_may_look_beside_it(disk):
    before = os.umask(0)
    try:
        Spool.create(disk).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(disk).st_mode) == 0o700


def test_a_link_in_place_of_a_temporary_file_is_not_followed(disk, tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    with Spool.create(disk) as spool:
        os.symlink(mine, os.path.join(disk, spool.id, "state.json.tmp"))
        with pytest.raises(SpoolError, match=r"cannot write .*/state.json: .* symbolic links"):
            spool.remember({"queue": "a"})
    assert mine.read_text() == "mine"


def test_a_spool_behind_a_symbolic_link_is_refused(disk, tmp_path):
    with Spool.create(disk) as spool:
        pass
    os.rename(os.path.join(disk, spool.id), tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", os.path.join(disk, spool.id))
    with pytest.raises(SpoolError, match="is a symbolic link"):
        Spool.open(disk, spool.id)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match=r"cannot create .*/file/.*Not a directory|File exists"):
        Spool.create(str(tmp_path / "file"))


def test_a_folder_that_goes_away_is_named(disk):
    with Spool.create(disk) as spool:
        shutil.rmtree(disk)
        with pytest.raises(SpoolDamaged, match=r"cannot write .*\.arrow: it does not exist"):
            spool.append(_batch(0))
    Path(disk).touch()
    with pytest.raises(SpoolError, match=f"cannot create {disk}/.*: File exists"):
        Spool.create(disk)


class _Refusing:
    """A file system that allows nothing."""

    type_name = "refusing"

    def __getattr__(self, name):
        raise PermissionError(errno.EACCES, "no")


@pytest.mark.parametrize(
    ("work", "says"),
    [
        (RemoteFolder.files, "list a/b"),
        (RemoteFolder.exists, "look for a/b"),
        (RemoteFolder.create, "create a/b"),
        (RemoteFolder.remove, "remove a/b"),
        (RemoteFolder.claim, "write a/b/owner"),
        (lambda folder: folder.read("x"), "read a/b/x"),
        (lambda folder: folder.delete("x"), "delete a/b/x"),
        (lambda folder: folder.set_aside("x", "y"), "rename a/b/x"),
    ],
)
def test_what_is_not_allowed_is_said_with_the_file(work, says):
    with pytest.raises(SpoolError, match=f"^cannot {says}: Permission denied$"):
        work(RemoteFolder(_Refusing(), "a/b"))


class _Noting:
    """A file system in memory that notes what is written and moved."""

    def __init__(self, type_name):
        self.type_name = type_name
        self.steps = []
        self._memory = pa.fs.FileSystem.from_uri("mock:///")[0]

    def open_output_stream(self, path):
        self.steps.append(("write", path))
        return self._memory.open_output_stream(path)

    def move(self, old, new):
        self.steps.append(("move", new))
        self._memory.move(old, new)

    def __getattr__(self, name):
        return getattr(self._memory, name)


@pytest.mark.parametrize(
    ("type_name", "steps"),
    [("s3", [("write", "a/b/x")]), ("hdfs", [("write", "a/b/x.tmp"), ("move", "a/b/x")])],
)
def test_an_object_store_takes_one_request_and_others_a_temporary_file(type_name, steps):
    system = _Noting(type_name)
    folder = RemoteFolder(system, "a/b")
    folder.create()
    system.steps.clear()
    folder.write("x", b"1")
    assert system.steps == steps
    assert folder.read("x").to_pybytes() == b"1"


# ── recovery: one body, many corruptions ────────────────────────────────────────────────────────


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
            spool.append(_batch(2 * number, 2 * number + 1))
    path = _files(spool)[which]
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
        assert _rows(survivor, 0 if which else 2, 6) == [n for n in range(6) if n not in lost]
        gap = survivor.latest_gaps[-1]
        assert (gap.offset, gap.lost) == (lost[-1] + 1, 2)
        assert survivor.append(_batch(6)).start == 6
    assert [Path(p).read_bytes() for p in _files(spool, ".damaged")] == [changed]
    with Spool.open(disk, spool.id) as again:  # the loss is known by now
        assert again.gap_count == 1
        assert again.end == 7


def test_a_loss_says_since_when_and_why(disk, caplog):
    with Spool.create(disk) as spool:
        spool.append(_batch(0, 1))
        spool.append(_batch(2))
    path = _files(spool)[1]
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
            spool.append(_batch(number))
    os.unlink(_files(spool)[1])
    os.unlink(_files(spool)[1])
    with pytest.raises(SpoolDamaged, match=r"messages 1 to 3 in the spool .*segments are missing"):
        Spool.open(disk, spool.id)
    with Spool.open(disk, spool.id, accept_loss=True) as survivor:
        assert _rows(survivor) == [0, 3]
        assert (survivor.latest_gaps[-1].offset, survivor.latest_gaps[-1].lost) == (3, 2)


def test_segments_that_overlap_are_damage(disk):
    with Spool.create(disk) as spool:
        spool.append(_batch(0, 1))
        data = Path(_files(spool)[0]).read_bytes()
        stray = Segment(1, 3, zlib.crc32(data)).name
        with open(os.path.join(os.path.dirname(_files(spool)[0]), stray), "wb") as file:
            file.write(data)
    with pytest.raises(SpoolDamaged, match=f"{stray} holds offsets that the one before it holds"):
        Spool.open(disk, spool.id, accept_loss=True)


def test_temporary_files_are_removed_and_strange_ones_left_alone(disk):
    with Spool.create(disk) as spool:
        spool.append(_batch(0))
    folder = os.path.dirname(_files(spool)[0])
    for name in ("00000000000000000001-x.arrow.tmp", "notes.txt", "1-2-3.arrow"):
        with open(os.path.join(folder, name), "w") as file:
            file.write("?")
    with Spool.open(disk, spool.id) as again:
        assert _rows(again) == [0]
    assert not _files(spool, ".tmp")
    assert _files(spool, "notes.txt")
    assert _files(spool, "1-2-3.arrow")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": "1"}'])
def test_a_damaged_state_is_named(disk, content):
    with Spool.create(disk) as spool:
        spool.append(_batch(0))
    [path] = _files(spool, "state.json")
    with open(path, "wb") as file:
        file.write(content)
    with pytest.raises(SpoolDamaged, match=r"state.json is damaged"):
        Spool.open(disk, spool.id)


@pytest.mark.parametrize(("content", "what"), [(b"{", "damaged"), (None, "gone")])
def test_a_state_that_cannot_be_read_is_kept_and_its_loss_is_a_gap(disk, content, what):
    with Spool.create(disk) as spool:
        spool.append(_batch(0))
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
    assert [Path(path).read_bytes() for path in _files(spool, ".damaged")] == (
        [content] if content else []
    )


@pytest.mark.parametrize(("metadata", "version"), [({"fanout.spool": "2"}, "2"), (None, "none")])
def test_a_segment_of_another_format_is_refused_and_not_taken_for_damage(disk, metadata, version):
    with Spool.create(disk) as spool:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, _batch(0).schema.with_metadata(metadata)) as writer:
            writer.write_batch(_batch(0))
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
        spool.append(_batch(0))
    [path] = _files(spool, "state.json")
    text = Path(path).read_text().replace('"version": "1"', '"version": "2"')
    with open(path, "w") as file:
        file.write(text)
    with pytest.raises(
        SpoolError, match="format version 2, and this program knows 1: use the version"
    ):
        Spool.open(disk, spool.id)


def test_a_reader_checks_what_it_reads(disk):
    with Spool.create(disk) as spool:
        spool.append(_batch(0))
        [piece] = spool.slices(0, 1)
        path = _files(spool)[0]
        with open(path, "r+b") as file:
            file.write(b"x")
        with pytest.raises(SpoolDamaged, match=r"is damaged: its .* bytes are not those"):
            read_slice(disk, spool.id, piece)
        os.unlink(path)
        with pytest.raises(SpoolDamaged, match="does not exist; the option spoolDir"):
            read_slice(disk, spool.id, piece)


def test_a_reader_names_the_file_that_it_cannot_read(disk):
    with Spool.create(disk) as spool:
        spool.append(_batch(0))
        [piece] = spool.slices(0, 1)
    [path] = _files(spool)
    Path(path).write_bytes(b"x")
    with pytest.raises(SpoolDamaged, match=f"segment {path} is damaged: .*; restore the file"):
        read_slice(disk, spool.id, piece)
    os.unlink(path)
    with pytest.raises(SpoolDamaged, match=f"cannot read {path}: it does not exist"):
        read_slice(disk, spool.id, piece)


# ── a disk that fails ───────────────────────────────────────────────────────────────────────────

STEPS = ["spool.write", "spool.fsync", "spool.rename", "spool.sync_folder", "spool.published"]


@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EROFS"])
@pytest.mark.parametrize("step", STEPS)
def test_an_error_at_any_step_is_named_and_ends_all_appending(disk, step, error):
    with Spool.create(disk) as spool:
        spool.append(_batch(0))
        failpoints.arm(f"{step}={error}")
        with pytest.raises(SpoolError) as caught:
            spool.append(_batch(1))
        assert os.strerror(getattr(errno, error)) in str(caught.value)
        assert spool.id in str(caught.value)
        assert spool.end == 1
        failpoints.arm("")
        with pytest.raises(SpoolError):  # what is on disk is not known: no ack may follow
            spool.append(_batch(1))
    assert not _files(spool, ".tmp")
    with Spool.open(disk, spool.id) as again:
        assert _rows(again) in ([0], [0, 1])


@pytest.mark.parametrize("step", ["spool.write", "spool.published"])
def test_an_error_ends_all_appending_wherever_the_spool_is(location, step):
    with Spool.create(location) as spool:
        failpoints.arm(f"{step}=EIO")
        with pytest.raises(SpoolError, match=r"cannot write .*\.arrow: Input/output error"):
            spool.append(_batch(0))
        failpoints.arm("")
        with pytest.raises(SpoolError):
            spool.append(_batch(0))


def test_a_file_that_is_cut_short_by_the_system_is_an_error(disk):
    """A real one: the kernel refuses the rest of the file."""
    with Spool.create(disk) as spool:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
        try:
            with pytest.raises(SpoolError, match="File too large"):
                spool.append(_batch(*range(100)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)
    assert not _files(spool)
    assert not _files(spool, ".tmp")


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_leaves_a_spool_that_recovers(disk, step):
    with Spool.create(disk) as spool:
        spool.append(_batch(0, 1))
    program = f"""
import pyarrow as pa
from fanout_source.spool import Spool
with Spool.open({disk!r}, {spool.id!r}) as spool:
    spool.append(pa.record_batch({{"number": pa.array([2, 3], pa.int64())}}))
"""
    killed = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "FANOUT_FAILPOINTS": f"{step}=kill"}
    )
    assert killed.returncode == -signal.SIGKILL
    with Spool.open(disk, spool.id) as again:
        published = step in ("spool.sync_folder", "spool.published")
        assert _rows(again) == ([0, 1, 2, 3] if published else [0, 1])
        again.append(_batch(9))
        assert _rows(again)[-1] == 9
    assert not _files(spool, ".tmp")


def test_a_failpoint_waits_for_its_turn(disk):
    failpoints.arm("spool.fsync=EIO@4")
    with Spool.create(disk) as spool:  # the first turn is for the state
        spool.append(_batch(0))
        spool.append(_batch(1))
        with pytest.raises(SpoolError, match="Input/output error"):
            spool.append(_batch(2))


# ── leftovers ───────────────────────────────────────────────────────────────────────────────────


def _age(spool, seconds):
    folder = open_folder(spool.location, spool.id).path
    moment = time.time() - seconds
    os.utime(folder, (moment, moment))


def test_a_start_removes_empty_and_forgotten_spools_and_no_others(disk):
    def make(age_seconds, rows, owned=False):
        spool = Spool.create(disk)
        if rows:
            spool.append(_batch(*range(rows)))
        if not owned:
            spool.close()
        _age(spool, age_seconds)
        return spool

    day = 86400
    empty, young, filled, forgotten, owned = (
        make(2 * 3600, 0),
        make(10, 0),
        make(29 * day, 1),
        make(31 * day, 1),
        make(31 * day, 1, owned=True),
    )
    os.mkdir(os.path.join(disk, "something else"))
    removed = remove_leftovers(disk)
    assert {os.path.basename(path) for path in removed} == {empty.id, forgotten.id}
    assert set(os.listdir(disk)) == {young.id, filled.id, owned.id, "something else"}
    owned.close()


def test_a_forgotten_spool_that_held_messages_is_said_in_the_log(disk, caplog):
    with Spool.create(disk) as spool:
        spool.append(_batch(0))
    _age(spool, 31 * 86400)
    path = f"{disk}/{spool.id}"
    assert remove_leftovers(f"file://{disk}") == [path]
    assert caplog.messages == [f"removing the spool {path} with 1 segments: unused for 31 days"]


def test_a_leftover_that_cannot_be_removed_stays_and_is_said(disk, caplog):
    stuck, other = Spool.create(disk), Spool.create(disk)
    os.mkdir(os.path.join(disk, stuck.id, "a folder"))
    for spool in (stuck, other):
        spool.close()
        _age(spool, 2 * 3600)
    assert remove_leftovers(disk) == [f"{disk}/{other.id}"]
    says = f"a leftover stays: cannot remove {disk}/{stuck.id}: Is a directory"
    assert caplog.messages == [says]


@pytest.fixture
def by_name(monkeypatch):
    """Folders are listed in the order of their names."""
    scandir, name = os.scandir, operator.attrgetter("name")
    monkeypatch.setattr(os, "scandir", lambda path: sorted(scandir(path), key=name))


def test_what_stays_does_not_hide_the_leftovers_behind_it(disk, by_name):
    spools = [Spool.create(disk, digit * 32) for digit in "01234"]
    young, filled, owned, stuck, empty = spools
    filled.append(_batch(0))
    os.mkdir(os.path.join(disk, stuck.id, "a folder"))
    os.mkdir(os.path.join(disk, "!"))
    for spool in (filled, owned, stuck, empty):
        _age(spool, 2 * 3600)
    for spool in (young, filled, stuck, empty):
        spool.close()
    assert remove_leftovers(disk) == [f"{disk}/{empty.id}"]
    owned.close()


def test_messages_that_come_while_leftovers_are_removed_stay(disk, by_name, monkeypatch):
    spool, empty = (Spool.create(disk, digit * 32) for digit in "01")
    for made in (spool, empty):
        made.close()
        _age(made, 2 * 3600)
    claim = LocalFolder.claim

    def claim_late(folder):
        monkeypatch.setattr(LocalFolder, "claim", claim)
        with Spool.open(disk, spool.id) as another:
            another.append(_batch(7))
        claim(folder)

    monkeypatch.setattr(LocalFolder, "claim", claim_late)
    assert remove_leftovers(disk) == [f"{disk}/{empty.id}"]
    with Spool.open(disk, spool.id) as again:
        assert _rows(again) == [7]


def test_spools_with_messages_that_nobody_has_open_are_found(disk, by_name):
    def make(spool_id, rows=1):
        spool = Spool.create(disk, spool_id)
        if rows:
            spool.append(_batch(*range(rows)))
        return spool

    owned, *others = make("0" * 32), make("1" * 32), make("2" * 32), make("3" * 32, rows=0)
    unread, renamed = make("4" * 32), make("6" * 32)
    unread.remember({"queue": "a"})
    for spool in (*others, unread, renamed):
        spool.close()
    Path(disk, "1" * 32, "state.json").unlink()
    Path(disk, "2" * 32, "state.json").write_bytes(b"{")
    os.rename(os.path.join(disk, renamed.id), os.path.join(disk, "another"))
    os.symlink(unread.id, os.path.join(disk, "5" * 32))
    times = [entry.stat().st_mtime for entry in os.scandir(os.path.join(disk, unread.id))]

    [found] = find_unowned(disk)
    assert found == Unowned(
        f"{disk}/{unread.id}", pytest.approx(max(times), abs=1e-3), {"queue": "a"}
    )
    assert [e.stat().st_mtime for e in os.scandir(os.path.join(disk, unread.id))] == times
    owned.close()


def test_there_are_no_leftovers_where_there_is_nothing(tmp_path):
    assert remove_leftovers(str(tmp_path / "nowhere")) == []
    assert remove_leftovers("s3://bucket/spool") == []


# ── names ───────────────────────────────────────────────────────────────────────────────────────


def test_names_sort_as_offsets_do_and_are_read_back():
    segments = [Segment(0, 9, 1), Segment(9, 10**12, 0xFFFFFFFF), Segment(10**12, 2**63 - 1, 0)]
    assert sorted(s.name for s in segments) == [s.name for s in segments]
    assert [Segment.parse(s.name) for s in segments] == segments
    assert segments[1].name == "00000000000000000009-00000001000000000000-ffffffff.arrow"
    assert Segment.parse("00000000000000000009-x.arrow") is None


# ── a checkpoint and a spool that do not belong together ────────────────────────────────────────


def test_a_spool_that_is_gone_is_an_error_that_says_what_to_do(disk):
    with pytest.raises(SpoolDamaged, match=r"spoolDir.*failOnDataLoss=false"):
        Spool.open(disk, "0" * 32, needed=(3, 5))
    assert not os.path.exists(os.path.join(disk, "0" * 32))


def test_a_spool_that_is_gone_is_made_anew_with_one_recorded_gap(disk):
    with Spool.open(disk, "0" * 32, needed=(3, 5), accept_loss=True) as spool:
        [gap] = spool.latest_gaps
        assert (gap.offset, gap.since, gap.lost) == (5, None, 2)
        assert spool.slices(3, 5) == []
        assert spool.append(_batch(5, 6)).start == 5
    with Spool.open(disk, "0" * 32, needed=(3, 5)) as spool:  # the loss is known by now
        assert spool.gap_count == 1
        assert _rows(spool, 3, 7) == [5, 6]


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
        spool.append(_batch(0, 1, 2, 3))
        spool.append(_batch(4, 5))
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
        spool.append(_batch(0, 1, 2, 3))
        spool.append(_batch(4, 5))
        spool.drop_below(4)
    with pytest.raises(SpoolDamaged, match=r"failOnDataLoss=false"):
        Spool.open(disk, spool.id, needed=needed)
    end = max(6, needed[1])
    for accept_loss in (True, False):
        with Spool.open(disk, spool.id, needed=needed, accept_loss=accept_loss) as spool:
            [gap] = spool.latest_gaps
            assert gap.lost == lost
            assert spool.end == end
            assert _rows(spool, needed[0], max(needed[1], 5)) == readable


def test_a_spool_that_is_about_to_be_let_go_is_waited_for(disk):
    with Spool.create(disk) as spool:
        waiting = threading.Timer(0.3, spool.close)
        waiting.start()
        with Spool.open(disk, spool.id, busy_timeout_seconds=30) as again:
            assert again.end == 0
        waiting.join()


def test_a_file_is_synced_before_it_appears_and_its_folder_after(disk, monkeypatch):
    steps = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(file):
        steps.append(("sync", os.readlink(f"/proc/self/fd/{file}")))
        fsync(file)

    def noted_rename(old, new):
        steps.append(("rename", new))
        rename(old, new)

    with Spool.create(disk) as spool:
        monkeypatch.setattr(os, "fsync", noted_fsync)
        monkeypatch.setattr(os, "rename", noted_rename)
        segment = spool.append(_batch(0))
    path = os.path.join(disk, spool.id, segment.name)
    folder = os.path.dirname(path)
    assert steps == [("sync", path + ".tmp"), ("rename", path), ("sync", folder)]


def test_the_last_sign_of_life_is_older_than_the_reopening(disk):
    with Spool.create(disk) as spool:
        spool.append(_batch(0))
    long_ago = time.time() - 1000
    for file in os.scandir(os.path.join(disk, spool.id)):
        os.utime(file.path, (long_ago, long_ago))
    with Spool.open(disk, spool.id) as again:
        assert again.last_active == pytest.approx(long_ago, abs=1)


def test_an_opening_is_no_sign_of_life(disk):
    with Spool.create(disk) as spool:
        spool.append(_batch(0))
    long_ago = time.time() - 1000
    for file in os.scandir(os.path.join(disk, spool.id)):
        os.utime(file.path, (long_ago, long_ago))
    Spool.open(disk, spool.id).close()
    with Spool.open(disk, spool.id) as again:
        assert again.last_active == pytest.approx(long_ago, abs=1)


def test_threads_may_append_and_drop_at_the_same_time(disk):
    with Spool.create(disk) as spool:
        failures = []

        def work(number):
            try:
                for _ in range(30):
                    spool.append(_batch(number))
                    spool.drop_below(spool.end)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert spool.end == 120
    with Spool.open(disk, spool.id) as again:
        assert again.end == 120


def test_a_forked_child_does_not_keep_the_spool(disk):
    spool = Spool.create(disk)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read_end, 1)
        os._exit(0)
    try:
        spool.close()
        Spool.open(disk, spool.id).close()
    finally:
        os.write(write_end, b"x")
        os.waitpid(child, 0)
        os.close(read_end)
        os.close(write_end)


def test_a_child_that_outlives_its_parent_does_not_keep_the_spool(disk):
    with Spool.create(disk) as spool:
        pass
    program = f"""
import os, signal
from fanout_source.spool import Spool
spool = Spool.open({disk!r}, {spool.id!r})
if os.fork() == 0:
    os.read(0, 1)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as parent:
        try:
            assert parent.wait() == -signal.SIGKILL
            Spool.open(disk, spool.id, busy_timeout_seconds=10).close()
        finally:
            parent.stdin.close()


def test_a_relative_location_means_the_folder_it_was_given_in(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with Spool.create("spool") as spool:
        spool.append(_batch(7))
        monkeypatch.chdir(tmp_path / "other")
        assert _rows(spool) == [7]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"version":"1","gaps":null,"latest_gaps":[],"lost":null}', None]
)
def test_a_state_that_is_damaged_or_gone_is_named_or_counts_as_a_gap(disk, content):
    with Spool.create(disk) as spool:
        spool.append(_batch(0, 1))
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
        assert _rows(again) == [0, 1]
    with Spool.open(disk, spool.id) as again:
        assert again.gap_count == 2


def test_an_empty_segment_with_a_matching_name_is_damaged(disk):
    with Spool.create(disk) as spool:
        pass
    Path(disk, spool.id, Segment(0, 1, 0).name).touch()
    with pytest.raises(SpoolDamaged, match="no Arrow file"):
        Spool.open(disk, spool.id)


def test_a_sign_of_life_is_kept(disk):
    with Spool.create(disk) as spool:
        long_ago = time.time() - 1000
        for file in os.scandir(os.path.join(disk, spool.id)):
            os.utime(file.path, (long_ago, long_ago))
        spool.touch()
    with Spool.open(disk, spool.id) as again:
        assert again.last_active > long_ago + 900
