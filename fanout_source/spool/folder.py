"""Where a spool's files are: a folder on a local disk, or one that a `pyarrow.fs` URI names."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import secrets
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from ..errors import OptionError, SpoolBusy, SpoolDamaged, SpoolError
from ..failpoints import reach

TEMPORARY = ".tmp"
_LOCK, _OWNER = "lock", "owner"
_OBJECT_STORES = ("s3", "gcs", "abfs")


def open_folder(location: str, name: str) -> Folder:
    """The folder `name` in a location: a path, or a URI. Nothing is touched yet."""
    location = absolute(location)
    if "://" not in location:
        return LocalFolder(os.path.join(location, name))
    try:
        system, path = fs.FileSystem.from_uri(location)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise OptionError(f"spoolDir {location!r} cannot be used: {error}") from error
    path = f"{path.rstrip('/')}/{name}"
    return (
        LocalFolder(path) if isinstance(system, fs.LocalFileSystem) else RemoteFolder(system, path)
    )


def absolute(location: str | os.PathLike[str]) -> str:
    """A location that means the same in any process, whatever folder that is in."""
    location = os.fspath(location)
    if "\0" in location:
        raise OptionError(f"spoolDir {location!r} is no path")
    return location if "://" in location else os.path.abspath(os.path.expanduser(location))


class Folder(ABC):
    """A flat folder of files that appear whole or not at all. Every failure is a `SpoolError`."""

    def __init__(self, system: fs.FileSystem, path: str) -> None:
        self._system = system
        self.path = path

    def path_of(self, name: str) -> str:
        return f"{self.path}/{name}"

    def files(self) -> list[fs.FileInfo]:
        with self._explained("list"):
            listing = self._system.get_file_info(fs.FileSelector(self.path))
        return [info for info in listing if info.type == fs.FileType.File]

    def read(self, name: str) -> pa.Buffer:
        with (
            self._explained("read", name),
            self._system.open_input_file(self.path_of(name)) as file,
        ):
            return file.read_buffer()

    def delete(self, name: str) -> None:
        with self._explained("delete", name), contextlib.suppress(FileNotFoundError):
            self._system.delete_file(self.path_of(name))

    def set_aside(self, name: str, as_name: str) -> None:
        with self._explained("rename", name):
            self._system.move(self.path_of(name), self.path_of(as_name))

    def exists(self) -> bool:
        with self._explained("look for"):
            return bool(self._system.get_file_info(self.path).type == fs.FileType.Directory)

    @abstractmethod
    def create(self) -> None:
        """Make it, and own it."""

    @abstractmethod
    def claim(self, busy_timeout_seconds: float = 0.0) -> None:
        """Own it from now on, or raise `SpoolBusy`. That is no sign of life yet."""

    def last_active(self) -> float:
        """When an owner has last left a sign of life, in seconds since 1970."""
        return max(
            (f.mtime.timestamp() for f in self.files() if f.base_name != _OWNER), default=0.0
        )

    @abstractmethod
    def release(self) -> None:
        """Own it no longer."""

    @abstractmethod
    def touch(self) -> None:
        """Leave a sign of life, where that is cheap."""

    @abstractmethod
    def remove(self) -> None:
        """Delete it with all that is in it. Only for its owner."""

    @abstractmethod
    def write(self, name: str, data: Any) -> None:
        """Durable under this name when it returns; raises when it is owned by another by now."""

    @contextlib.contextmanager
    def _explained(self, action: str, name: str = "") -> Iterator[None]:
        path = self.path_of(name) if name else self.path
        try:
            yield
        except FileNotFoundError as error:
            if action == "create":
                raise SpoolError(f"cannot create {path}: no such folder can be made") from error
            raise SpoolDamaged(
                f"cannot {action} {path}: it does not exist; the option spoolDir must name the "
                "same place as when the checkpoint was made, visible to driver and executors"
            ) from error
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise SpoolError(f"cannot {action} {path}: {reason}") from error


class LocalFolder(Folder):
    """On a local disk: synced to it before a file appears, for its owner's eyes only."""

    def __init__(self, path: str) -> None:
        super().__init__(fs.LocalFileSystem(), path)
        self._lock: int | None = None

    def create(self) -> None:
        with self._explained("create"):
            parent = os.path.dirname(self.path)
            os.makedirs(parent, mode=0o700, exist_ok=True)
            os.mkdir(self.path, mode=0o700)
            _sync_folder(parent)
        self.claim()

    def claim(self, busy_timeout_seconds: float = 0.0) -> None:
        deadline = time.monotonic() + busy_timeout_seconds
        while True:
            try:
                return self._claim()
            except SpoolBusy:  # noqa: PERF203
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)

    def _claim(self) -> None:
        with self._explained("open"):
            if os.path.islink(self.path):
                raise SpoolError(f"{self.path} is a symbolic link: a spool is never behind one")
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            lock = os.open(self.path_of(_LOCK), flags, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(lock, 200, 0).decode(errors="replace").strip() or "another process"
                os.close(lock)
                raise SpoolBusy(
                    f"the spool {self.path} is in use by {owner}: does another query run on the "
                    "same checkpoint?"
                ) from None
            if os.fstat(lock).st_nlink == 0:  # removed as a leftover just before we had it
                os.close(lock)
                raise FileNotFoundError
            last = os.fstat(lock)
            os.ftruncate(lock, 0)
            os.pwrite(lock, _whoami().encode(), 0)
            os.utime(lock, ns=(last.st_atime_ns, last.st_mtime_ns))
        self._lock = lock
        _claimed.add(self)

    def is_free(self) -> bool:
        """Whether nobody owns it just now; asking leaves no trace in it."""
        try:
            lock = os.open(self.path_of(_LOCK), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
        return True

    def release(self) -> None:
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            self.forget()

    def touch(self) -> None:
        lock = self._lock
        if lock is not None:
            with contextlib.suppress(OSError):
                os.utime(lock)

    def forget(self) -> None:
        """Do without the lock, which stays with whoever else has it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write(self, name: str, data: Any) -> None:
        temporary = self.path_of(name + TEMPORARY)
        with self._explained("write", name):
            try:
                self._write_synced(temporary, data)
                reach("spool.rename")
                os.rename(temporary, self.path_of(name))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
            reach("spool.sync_folder")
            _sync_folder(self.path)
            reach("spool.published")

    def remove(self) -> None:
        with self._explained("remove"):
            for entry in os.scandir(self.path):
                if entry.name != _LOCK:
                    os.unlink(entry.path)
            os.unlink(self.path_of(_LOCK))
            os.rmdir(self.path)

    @staticmethod
    def _write_synced(path: str, data: Any) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        try:
            reach("spool.write")
            left = memoryview(data)
            while left:
                left = left[os.write(file, left) :]
            reach("spool.fsync")
            os.fsync(file)
        finally:
            os.close(file)


class RemoteFolder(Folder):
    """On a file system that `pyarrow.fs` knows. Who wrote the owner mark last owns it."""

    def __init__(self, system: fs.FileSystem, path: str) -> None:
        super().__init__(system, path)
        self._token = ""

    def create(self) -> None:
        with self._explained("create"):
            self._system.create_dir(self.path, recursive=True)
        self.claim()

    def claim(self, busy_timeout_seconds: float = 0.0) -> None:
        self._token = json.dumps({"owner": _whoami(), "token": secrets.token_hex(16)})
        self._put(_OWNER, self._token.encode())

    def release(self) -> None:
        self._token = ""

    def touch(self) -> None:
        """Not here: a request each time."""

    def write(self, name: str, data: Any) -> None:
        with self._explained("write", name):
            reach("spool.write")
            self._require_owned()
            self._put(name, data)
            reach("spool.published")

    def remove(self) -> None:
        with self._explained("remove"):
            self._system.delete_dir(self.path)

    def _put(self, name: str, data: Any) -> None:
        """One PUT on an object store, which shows a file whole or not at all; elsewhere a
        temporary file that is renamed."""
        atomic = self._system.type_name in _OBJECT_STORES
        target = self.path_of(name) if atomic else self.path_of(name + TEMPORARY)
        with self._explained("write", name):
            with self._system.open_output_stream(target) as stream:
                stream.write(data)
            if not atomic:
                self._system.move(target, self.path_of(name))

    def _require_owned(self) -> None:
        mark = self.read(_OWNER).to_pybytes().decode()
        if mark != self._token:
            owner = json.loads(mark).get("owner", "another process")
            raise SpoolBusy(f"the spool {self.path} has been taken over by {owner}")


def _sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _whoami() -> str:
    return f"process {os.getpid()} on {platform.node()}"


def siblings(location: str) -> Iterator[LocalFolder]:
    """The folders beside each other in a local location, in no order."""
    if "://" in location and not location.startswith("file://"):
        return
    base = Path(open_folder(location, "x").path).parent
    with contextlib.suppress(OSError):
        for entry in os.scandir(base):
            if entry.is_dir(follow_symlinks=False):
                yield LocalFolder(entry.path)


def _forget_in_child() -> None:
    for folder in list(_claimed):
        folder.forget()


# A child would keep the lock of a parent that has died.
_claimed: weakref.WeakSet[LocalFolder] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forget_in_child)
