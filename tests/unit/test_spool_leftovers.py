"""Spools that nobody has open: what a start removes, and what it finds."""

import operator
import os
import shutil
from pathlib import Path

import pytest

from fanout_source.spool import (
    Spool,
    Unowned,
    find_unowned,
    remove_leftovers,
)
from fanout_source.spool.folder import LocalFolder
from spooled import age, batch, files, rows_in


def test_a_start_removes_empty_and_forgotten_spools_and_no_others(disk):
    def make(age_seconds, rows, owned=False):
        spool = Spool.create(disk)
        if rows:
            spool.append(batch(*range(rows)))
        if not owned:
            spool.close()
        age(spool, age_seconds)
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
        spool.append(batch(0))
    age(spool, 31 * 86400)
    path = f"{disk}/{spool.id}"
    assert remove_leftovers(f"file://{disk}") == [path]
    assert caplog.messages == [f"removing the spool {path} with 1 segments: unused for 31 days"]


def test_a_leftover_that_cannot_be_removed_stays_and_is_said(disk, caplog):
    stuck, other = Spool.create(disk), Spool.create(disk)
    os.mkdir(os.path.join(disk, stuck.id, "a folder"))
    for spool in (stuck, other):
        spool.close()
        age(spool, 2 * 3600)
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
    filled.append(batch(0))
    os.mkdir(os.path.join(disk, stuck.id, "a folder"))
    os.mkdir(os.path.join(disk, "!"))
    for spool in (filled, owned, stuck, empty):
        age(spool, 2 * 3600)
    for spool in (young, filled, stuck, empty):
        spool.close()
    assert remove_leftovers(disk) == [f"{disk}/{empty.id}"]
    owned.close()


def test_messages_that_come_while_leftovers_are_removed_stay(disk, by_name, monkeypatch):
    spool, empty = (Spool.create(disk, digit * 32) for digit in "01")
    for made in (spool, empty):
        made.close()
        age(made, 2 * 3600)
    claim = LocalFolder.claim

    def claim_late(folder):
        monkeypatch.setattr(LocalFolder, "claim", claim)
        with Spool.open(disk, spool.id) as another:
            another.append(batch(7))
        claim(folder)

    monkeypatch.setattr(LocalFolder, "claim", claim_late)
    assert remove_leftovers(disk) == [f"{disk}/{empty.id}"]
    with Spool.open(disk, spool.id) as again:
        assert rows_in(again) == [7]


def test_spools_with_messages_that_nobody_has_open_are_found(disk, by_name):
    def make(spool_id, rows=1):
        spool = Spool.create(disk, spool_id)
        if rows:
            spool.append(batch(*range(rows)))
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
    latest = pytest.approx(max(times), abs=1e-3)
    [segment] = files(unread)
    received = pytest.approx(os.stat(segment).st_mtime, abs=1e-3)
    assert found == Unowned(f"{disk}/{unread.id}", latest, received, {"queue": "a"})
    assert [e.stat().st_mtime for e in os.scandir(os.path.join(disk, unread.id))] == times
    owned.close()


def test_there_are_no_leftovers_where_there_is_nothing(tmp_path):
    assert remove_leftovers(str(tmp_path / "nowhere")) == []
    assert remove_leftovers("s3://bucket/spool") == []


def test_a_spool_that_goes_away_while_it_is_looked_at_is_not_found(disk, monkeypatch):
    with Spool.create(disk) as spool:
        spool.append(batch(0))
    read = LocalFolder.read

    def read_and_remove(folder, name):
        content = read(folder, name)
        shutil.rmtree(folder.path)
        return content

    monkeypatch.setattr(LocalFolder, "read", read_and_remove)
    assert find_unowned(disk) == []
