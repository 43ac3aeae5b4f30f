from __future__ import annotations

import pyarrow as pa
import pytest

from fanout_source import failpoints
from fanout_source.spool import spool as spool_module
from fanout_source.spool.folder import RemoteFolder


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
