"""The owner's side of a spool, and what readers need of it."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from ..errors import SpoolDamaged, SpoolError
from . import segment as segments
from .folder import TEMPORARY, LocalFolder, absolute, open_folder, siblings
from .segment import VERSION, Segment, Slice

RETENTION_SECONDS = 30 * 24 * 3600.0
_YOUNG_SECONDS = 3600.0
_STATE = "state.json"
_DAMAGED = ".damaged"
_ID = re.compile(r"[0-9a-f]{32}")
_GAPS_KEPT = 100

_NOTHING = pa.RecordBatch.from_arrays([], names=[])

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gap:
    """A time in which messages may have been missed, before the message with this offset.

    `lost` counts messages that were on disk and cannot be read any more; their offsets end at
    `offset`. It is 0 for a subscription that was interrupted.
    """

    offset: int
    since: float | None  # seconds since 1970; None when nobody knows
    until: float
    reason: str
    lost: int = 0


@dataclass
class _State:
    version: str = VERSION
    gaps: int = 0
    latest_gaps: list[Gap] = field(default_factory=list)
    lost: list[list[int]] = field(default_factory=list)  # ranges of offsets
    note: dict[str, Any] = field(default_factory=dict)  # of the owner, for the next one

    @classmethod
    def from_json(cls, content: Any) -> _State | None:
        """None for what was never written like that."""
        try:
            gaps = [Gap(**gap) for gap in content["latest_gaps"]]
            lost = [[int(start), int(end)] for start, end in content["lost"]]
            return cls(
                **{**content, "gaps": int(content["gaps"]), "latest_gaps": gaps, "lost": lost}
            )
        except (ValueError, TypeError, KeyError):
            return None


class Spool:
    """A log of record batches. For its one owner; all methods can be called from any thread.

    What `append` has returned for is on disk and stays readable, by the same offsets and byte for
    byte, until it is dropped.
    """

    def __init__(self, location: str, spool_id: str) -> None:
        """Use `create` or `open`."""
        self.location = absolute(location)
        self.id = spool_id
        self.was_subscribed = False
        self.last_active = time.time()
        self._folder = open_folder(self.location, spool_id)
        self._writing = threading.RLock()  # one change of the folder at a time
        self._changed = threading.Lock()
        self._segments: list[Segment] = []
        self._sizes: dict[Segment, int] = {}
        self._bytes = 0
        self._state = _State()
        self._failed: SpoolError | None = None

    @classmethod
    def create(cls, location: str, spool_id: str | None = None) -> Spool:
        """A new, empty one."""
        spool = cls(location, spool_id or uuid.uuid4().hex)
        spool._folder.create()
        spool._write_state()
        return spool

    @classmethod
    def open(
        cls,
        location: str,
        spool_id: str,
        *,
        needed: tuple[int, int] | None = None,
        accept_loss: bool = False,
        busy_timeout_seconds: float = 0.0,
    ) -> Spool:
        """The one with this id, recovered, in which the range `needed` can be read.

        `accept_loss` sets damaged segments aside, makes anew what is gone, and records what is
        lost; otherwise damage is `SpoolDamaged`. `SpoolBusy` when another process has not let go
        of it within the time given.
        """
        if not _ID.fullmatch(spool_id):
            raise SpoolDamaged(f"{spool_id!r} is no spool's id: is the checkpoint from elsewhere?")
        spool = cls(location, spool_id)
        if not spool._folder.exists():
            gone = f"there is no spool {spool_id} in {location}"
            if not accept_loss:
                raise SpoolDamaged(
                    f"{gone}: set spoolDir to where it was when the checkpoint was made, or "
                    "failOnDataLoss=false to go on without what it held"
                )
            return cls._make_anew(location, spool_id, needed or (0, 0), gone)
        spool.was_subscribed = True
        spool.last_active = spool._folder.last_active()
        spool._folder.claim(busy_timeout_seconds)
        try:
            spool._recover(accept_loss)
            if needed is not None:
                spool._require(*needed, accept_loss)
        except BaseException:
            spool.close()
            raise
        return spool

    @property
    def start(self) -> int:
        """The first offset that can be read, or is lost."""
        with self._changed:
            return self._segments[0].start if self._segments else 0

    @property
    def end(self) -> int:
        """The offset of the next message."""
        with self._changed:
            return self._segments[-1].end if self._segments else 0

    @property
    def bytes(self) -> int:
        """How much disk the segments take."""
        return self._bytes

    @property
    def gap_count(self) -> int:
        return self._state.gaps

    @property
    def latest_gaps(self) -> tuple[Gap, ...]:
        return tuple(self._state.latest_gaps)

    @property
    def note(self) -> dict[str, Any]:
        """What an owner has wanted the next one to know."""
        return dict(self._state.note)

    def append(self, batch: pa.RecordBatch) -> Segment:
        """Make a batch durable. After an error nothing more can be appended."""
        with self._writing:
            if self._failed is not None:
                raise self._failed
            segment, data = segments.encode(batch, self.end)
            try:
                self._folder.write(segment.name, data)
            except SpoolError as error:
                self._failed = error
                raise
            self._add(segment, data.size)
            return segment

    def slices(self, start: int, end: int) -> list[Slice]:
        """Where the messages from `start` to `end` are. What was recorded as lost is in none."""
        with self._changed:
            held = list(self._segments)
        first, last = (held[0].start, held[-1].end) if held else (0, 0)
        if end > last or (start < first and not self._is_lost(start, first)):
            raise SpoolDamaged(
                f"the spool {self._folder.path} has the offsets {first} to {last}, and {start} to "
                f"{end} are asked for: is the checkpoint older or newer than the spool?"
            )
        pieces = (Slice(s, max(start, s.start), min(end, s.end)) for s in held)
        return [piece for piece in pieces if piece.rows > 0]

    def size_of(self, piece: Slice) -> float:
        """How many bytes on disk a slice stands for, going by the average of its segment."""
        segment = piece.segment
        with self._changed:
            return self._sizes[segment] * piece.rows / (segment.end - segment.start)

    def drop_below(self, offset: int, *, keep_rows: int = 0, keep_bytes: int = 0) -> bool:
        """Delete segments of which every message is below `offset`, except the last ones: one at
        least, and as many as hold `keep_rows` messages or take `keep_bytes`. True when there were
        any."""
        with self._writing:
            with self._changed:
                droppable = self._segments[: -self._count_last(keep_rows, keep_bytes)]
                doomed = [segment for segment in droppable if segment.end <= offset]
            for segment in doomed:
                self._folder.delete(segment.name)
                with self._changed:
                    self._segments.remove(segment)
                    self._bytes -= self._sizes.pop(segment)
        return bool(doomed)

    def _count_last(self, rows: int, size: int) -> int:
        """How many of the last segments hold so many messages, or take so many bytes."""
        count = 0
        for segment in reversed(self._segments):
            count += 1
            rows -= segment.end - segment.start
            size -= self._sizes[segment]
            if rows <= 0 or size <= 0:
                break
        return max(1, count)

    def skip_to(self, offset: int) -> None:
        """Let the next message have this offset; those between are in no slice."""
        segment, data = segments.encode(_NOTHING, offset)
        self._folder.write(segment.name, data)
        self._add(segment, data.size)

    def record_gap(self, gap: Gap, note: dict[str, Any] | None = None) -> None:
        """Keep it, durably: the count of all, and the latest hundred; and with it a note."""
        with self._writing:
            self._state.note = self._state.note if note is None else note
            self._state.gaps += 1
            self._state.latest_gaps = [*self._state.latest_gaps, gap][-_GAPS_KEPT:]
            self._write_state()

    def remember(self, note: dict[str, Any]) -> None:
        """Keep a note, durably, in place of the one before."""
        with self._writing:
            if note != self._state.note:
                self._state.note = note
                self._write_state()

    def touch(self) -> None:
        """Show that the owner is alive: a gap that its end leaves begins then."""
        self._folder.touch()

    def discard(self) -> None:
        """Delete it, with all that it holds."""
        self._folder.remove()

    def close(self) -> None:
        """Let another process own it."""
        self._folder.release()

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write_state(self) -> None:
        self._folder.write(_STATE, (json.dumps(asdict(self._state), indent=1) + "\n").encode())

    def _add(self, segment: Segment, size: int) -> None:
        with self._changed:
            self._segments.append(segment)
            self._sizes[segment] = size
            self._bytes += size

    def _recover(self, accept_loss: bool) -> None:
        files = self._folder.files()
        for file in files:
            if file.base_name.endswith(TEMPORARY):
                self._folder.delete(file.base_name)
        sizes = {segment: file.size for file in files if (segment := Segment.parse(file.base_name))}
        has_state = any(file.base_name == _STATE for file in files)
        if sizes or has_state:
            self._state = self._read_state(has_state, accept_loss)
        end: int | None = None
        for segment in sorted(sizes):
            if end is not None and segment.start < end:
                raise SpoolDamaged(
                    f"segment {self._folder.path_of(segment.name)} holds offsets that "
                    "the one before it holds too: one of them does not belong here"
                )
            if end is not None and segment.start > end:
                self._lose(end, segment.start, "segments are missing", accept_loss)
            end = segment.end
            flaw = self._flaw_of(segment)
            if flaw is None:
                self._add(segment, sizes[segment])
            else:
                self._lose(segment.start, segment.end, flaw, accept_loss)
                self._folder.set_aside(segment.name, segment.name + _DAMAGED)
        if end is not None and self.end != end:
            self.skip_to(end)  # the offsets of what was lost are not used again

    def _flaw_of(self, segment: Segment) -> str | None:
        path = self._folder.path_of(segment.name)
        try:
            segments.decode(segment, self._folder.read(segment.name), path)
        except SpoolDamaged as error:
            return str(error)
        return None

    def _require(self, start: int, end: int, accept_loss: bool) -> None:
        if end > self.end:
            reason = "the checkpoint is newer than the spool"
            self._lose(self.end, end, reason, accept_loss, needed_from=start)
            self.skip_to(end)
        if start < self.start:
            self._lose(start, self.start, "the checkpoint is older than the spool", accept_loss)

    @classmethod
    def _make_anew(
        cls, location: str, spool_id: str, needed: tuple[int, int], reason: str
    ) -> Spool:
        """Empty, in place of one that is gone."""
        spool = cls.create(location, spool_id)
        spool._lose(0, needed[1], reason, True, needed_from=needed[0])
        if needed[1]:
            spool.skip_to(needed[1])
        return spool

    def _is_lost(self, start: int, end: int) -> bool:
        for lost_start, lost_end in sorted(self._state.lost):
            if lost_start <= start:
                start = max(start, lost_end)
        return start >= end

    def _lose(
        self, start: int, end: int, reason: str, accept_loss: bool, *, needed_from: int = 0
    ) -> None:
        if self._is_lost(start, end):
            return
        lost = f"the messages {start} to {end} in the spool {self._folder.path} cannot be read"
        if not accept_loss:
            raise SpoolDamaged(f"{lost}: {reason}; failOnDataLoss=false goes on without them")
        _log.warning("%s: %s", lost, reason)
        self._state.lost.append([start, end])
        since = self.last_active if self.was_subscribed else None
        lost_rows = end - max(start, needed_from)
        self.record_gap(Gap(end, since, time.time(), reason, lost=lost_rows))

    def _read_state(self, is_there: bool, accept_loss: bool) -> _State:
        path = self._folder.path_of(_STATE)
        content = _parse(self._folder.read(_STATE).to_pybytes()) if is_there else None
        version = content.get("version") if isinstance(content, dict) else None
        if isinstance(version, str) and version != VERSION:
            raise SpoolError(
                f"{path} has format version {version}, and this program knows {VERSION}: "
                "use the version of fanout-source that wrote it"
            )
        state = _State.from_json(content)
        if state is not None:
            return state
        what = "damaged" if is_there else "gone"
        if not accept_loss:
            raise SpoolDamaged(
                f"{path} is {what}, and with it the record of gaps: restore it, or set "
                "failOnDataLoss=false to go on without"
            )
        if is_there:
            self._folder.set_aside(_STATE, _STATE + _DAMAGED)
        self.record_gap(
            Gap(0, self.last_active, time.time(), f"the record of earlier gaps is {what}")
        )
        return self._state


def _parse(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


def read_slice(location: str, spool_id: str, piece: Slice) -> pa.RecordBatch:
    """The rows of a slice, checked. Needs no ownership: a segment never changes."""
    folder = open_folder(location, spool_id)
    segment = piece.segment
    batch = segments.decode(segment, folder.read(segment.name), folder.path_of(segment.name))
    return batch.slice(piece.start - segment.start, piece.end - piece.start)


def default_location() -> str:
    """Where spools are unless an option says otherwise: the user's state folder."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return os.path.join(state, "fanout", "spool")


@dataclass(frozen=True)
class Unowned:
    """A spool that holds messages, and that nobody has open."""

    path: str
    last_active: float  # seconds since 1970
    last_received: float
    note: dict[str, Any]


def find_unowned(location: str) -> list[Unowned]:
    """Those in a location, as far as they can be read. Only on local disks: elsewhere it is not
    known whether somebody has one open."""
    found = []
    for folder in siblings(location):
        if not _ID.fullmatch(os.path.basename(folder.path)) or not folder.is_free():
            continue
        try:
            files = folder.files()
            state = _State.from_json(_parse(folder.read(_STATE).to_pybytes()))
            last_active = folder.last_active()
        except SpoolError:
            continue
        received = [f.mtime.timestamp() for f in files if Segment.parse(f.base_name)]
        if state is not None and received:
            found.append(Unowned(folder.path, last_active, max(received), state.note))
    return found


def remove_leftovers(location: str, retention_seconds: float = RETENTION_SECONDS) -> list[str]:
    """Remove spools that nobody owns and that are empty, or were not touched for so long.

    Only on local disks, where it can be known that nobody owns them. Returns what was removed;
    one that held messages is also said in the log. A spool that cannot be removed is left.
    """
    removed = []
    for folder in siblings(location):
        if not _ID.fullmatch(os.path.basename(folder.path)):
            continue
        try:
            age = time.time() - os.stat(folder.path).st_mtime
            if age < min(_YOUNG_SECONDS, retention_seconds):
                continue
            if age < retention_seconds and _held_in(folder):
                continue  # untouched: its owner goes by when it was last written to
            folder.claim()
        except (SpoolError, OSError):
            continue
        try:
            held = _held_in(folder)
            if held and age < retention_seconds:
                continue
            if held:
                _log.warning(
                    "removing the spool %s with %d segments: unused for %d days",
                    folder.path,
                    len(held),
                    age // 86400,
                )
            folder.remove()
            removed.append(folder.path)
        except SpoolError as error:
            _log.warning("a leftover stays: %s", error)
        finally:
            folder.release()
    return removed


def _held_in(folder: LocalFolder) -> list[str]:
    return [file.base_name for file in folder.files() if Segment.parse(file.base_name)]
