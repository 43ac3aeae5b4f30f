"""A disk that fails and processes that are killed, at every step of an append."""

import errno
import os
import resource
import signal
import subprocess
import sys
import threading

import pytest

from fanout_source import failpoints
from fanout_source.errors import SpoolError
from fanout_source.spool import (
    Spool,
)
from fanout_source.spool import folder as folder_module
from spooled import batch, files, rows_in

STEPS = ["spool.write", "spool.fsync", "spool.rename", "spool.sync_folder", "spool.published"]


@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EROFS"])
@pytest.mark.parametrize("step", STEPS)
def test_an_error_at_any_step_is_named_and_ends_all_appending(disk, step, error):
    with Spool.create(disk) as spool:
        spool.append(batch(0))
        failpoints.arm(f"{step}={error}")
        with pytest.raises(SpoolError) as caught:
            spool.append(batch(1))
        assert os.strerror(getattr(errno, error)) in str(caught.value)
        assert spool.id in str(caught.value)
        assert spool.end == 1
        failpoints.arm("")
        with pytest.raises(SpoolError):  # what is on disk is not known: no ack may follow
            spool.append(batch(1))
    assert not files(spool, ".tmp")
    with Spool.open(disk, spool.id) as again:
        assert rows_in(again) in ([0], [0, 1])


@pytest.mark.parametrize("step", ["spool.write", "spool.published"])
def test_an_error_ends_all_appending_wherever_the_spool_is(location, step):
    with Spool.create(location) as spool:
        failpoints.arm(f"{step}=EIO")
        with pytest.raises(SpoolError, match=r"cannot write .*\.arrow: Input/output error"):
            spool.append(batch(0))
        failpoints.arm("")
        with pytest.raises(SpoolError):
            spool.append(batch(0))


def test_a_file_that_is_cut_short_by_the_system_is_an_error(disk):
    """A real one: the kernel refuses the rest of the file."""
    with Spool.create(disk) as spool:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
        try:
            with pytest.raises(SpoolError, match="File too large"):
                spool.append(batch(*range(100)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)
    assert not files(spool)
    assert not files(spool, ".tmp")


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_leaves_a_spool_that_recovers(disk, step):
    with Spool.create(disk) as spool:
        spool.append(batch(0, 1))
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
        assert rows_in(again) == ([0, 1, 2, 3] if published else [0, 1])
        again.append(batch(9))
        assert rows_in(again)[-1] == 9
    assert not files(spool, ".tmp")


def test_a_failpoint_waits_for_its_turn(disk):
    failpoints.arm("spool.fsync=EIO@4")
    with Spool.create(disk) as spool:  # the first turn is for the state
        spool.append(batch(0))
        spool.append(batch(1))
        with pytest.raises(SpoolError, match="Input/output error"):
            spool.append(batch(2))


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
        segment = spool.append(batch(0))
    path = os.path.join(disk, spool.id, segment.name)
    folder = os.path.dirname(path)
    assert steps == [("sync", path + ".tmp"), ("rename", path), ("sync", folder)]


def test_threads_may_append_and_drop_at_the_same_time(disk):
    with Spool.create(disk) as spool:
        failures = []

        def work(number):
            try:
                for _ in range(30):
                    spool.append(batch(number))
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


def test_an_append_that_waits_while_another_fails_is_refused(disk, monkeypatch):
    outcomes = []

    def second():
        try:
            outcomes.append(spool.append(batch(1)))
        except SpoolError as error:
            outcomes.append(error)

    waiting = threading.Thread(target=second)

    def failing(_path):
        monkeypatch.undo()
        waiting.start()
        waiting.join(0.5)  # it waits for us
        raise OSError(errno.EIO, "no")

    with Spool.create(disk) as spool:
        monkeypatch.setattr(folder_module, "_sync_folder", failing)
        with pytest.raises(SpoolError):
            spool.append(batch(0))
        waiting.join()
    Spool.open(disk, spool.id).close()
    assert isinstance(outcomes[0], SpoolError)
