"""Where a spool is, who may look into it, and who owns it."""

import errno
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from fanout_source.errors import OptionError, SpoolBusy, SpoolDamaged, SpoolError
from fanout_source.spool import (
    Spool,
    default_location,
    find_unowned,
    remove_leftovers,
)
from fanout_source.spool.folder import RemoteFolder, open_folder
from spooled import age, batch, files, rows_in


def test_a_location_that_no_file_system_knows_is_refused():
    with pytest.raises(OptionError, match="spoolDir 'nonsense://x' cannot be used"):
        Spool.create("nonsense://x")


def test_a_path_and_its_uri_are_the_same_place(disk):
    with Spool.create(f"file://{disk}/") as spool:
        spool.append(batch(7))
        with pytest.raises(SpoolBusy, match=f"the spool {disk}/{spool.id} is in use"):
            Spool.open(disk, spool.id)
    with Spool.open(disk, spool.id) as again:
        assert rows_in(again) == [7]


def test_what_another_file_system_holds_is_not_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Spool.create("mock:///spool/") as spool:
        assert spool.append(batch(7)).end == 1
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
        age(spool, 31 * 86400)
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
        spool.append(batch(0))
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
            spool.append(batch(1))
    finally:
        os.umask(before)
    folder = open_folder(disk, spool.id).path
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert {stat.S_IMODE(os.stat(file).st_mode) for file in files(spool, "")} == {0o600}


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
            spool.append(batch(0))
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


def test_a_spool_that_is_about_to_be_let_go_is_waited_for(disk):
    with Spool.create(disk) as spool:
        waiting = threading.Timer(0.3, spool.close)
        waiting.start()
        with Spool.open(disk, spool.id, busy_timeout_seconds=30) as again:
            assert again.end == 0
        waiting.join()


def test_the_last_sign_of_life_is_older_than_the_reopening(disk):
    with Spool.create(disk) as spool:
        spool.append(batch(0))
    long_ago = time.time() - 1000
    for file in os.scandir(os.path.join(disk, spool.id)):
        os.utime(file.path, (long_ago, long_ago))
    with Spool.open(disk, spool.id) as again:
        assert again.last_active == pytest.approx(long_ago, abs=1)


def test_an_opening_is_no_sign_of_life(disk):
    with Spool.create(disk) as spool:
        spool.append(batch(0))
    long_ago = time.time() - 1000
    for file in os.scandir(os.path.join(disk, spool.id)):
        os.utime(file.path, (long_ago, long_ago))
    Spool.open(disk, spool.id).close()
    with Spool.open(disk, spool.id) as again:
        assert again.last_active == pytest.approx(long_ago, abs=1)


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
        spool.append(batch(7))
        monkeypatch.chdir(tmp_path / "other")
        assert rows_in(spool) == [7]


def test_a_sign_of_life_is_kept(disk):
    with Spool.create(disk) as spool:
        long_ago = time.time() - 1000
        for file in os.scandir(os.path.join(disk, spool.id)):
            os.utime(file.path, (long_ago, long_ago))
        spool.touch()
    with Spool.open(disk, spool.id) as again:
        assert again.last_active > long_ago + 900
