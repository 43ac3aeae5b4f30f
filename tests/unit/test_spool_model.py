"""The spool and the offsets against a model: a list, of which the first part may be forgotten."""

import tempfile

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from fanout_source import failpoints
from fanout_source.errors import SpoolError
from fanout_source.offsets import limit_end, partition
from fanout_source.spool import Spool, read_slice

BEFORE_RENAME = ("spool.write", "spool.fsync", "spool.rename")
AFTER_RENAME = ("spool.sync_folder", "spool.published")


class Model(RuleBasedStateMachine):
    """Appending, failing, crashing, planning, replaying and committing, in any order."""

    plans = Bundle("plans")

    def __init__(self):
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.spool = Spool.create(self._folder.name)
        self.rows = []  # the model: every message that was ever taken
        self.committed = self.planned = 0

    def teardown(self):
        failpoints.arm("")
        self.spool.close()
        self._folder.cleanup()

    def _next(self, count):
        numbers = range(len(self.rows), len(self.rows) + count)
        return pa.record_batch({"number": pa.array(numbers, pa.int64())}), list(numbers)

    def _read(self, slices):
        batches = (read_slice(self.spool.location, self.spool.id, piece) for piece in slices)
        return [n for b in batches if b.num_rows for n in b.column("number").to_pylist()]

    @rule(count=st.integers(1, 5))
    def append(self, count):
        batch, numbers = self._next(count)
        segment = self.spool.append(batch)
        self.rows += numbers
        assert (segment.start, segment.end) == (numbers[0], len(self.rows))

    @rule(count=st.integers(1, 5), step=st.sampled_from(BEFORE_RENAME + AFTER_RENAME))
    def fail_and_recover(self, count, step):
        """What did not return is there whole, or not at all; and nothing follows it."""
        batch, numbers = self._next(count)
        failpoints.arm(f"{step}=EIO")
        with pytest.raises(SpoolError, match="Input/output error"):
            self.spool.append(batch)
        failpoints.arm("")
        with pytest.raises(SpoolError):
            self.spool.append(batch)
        self.rows += numbers if step in AFTER_RENAME else []
        self.crash()

    @rule()
    def crash(self):
        self.spool.close()  # writes nothing
        needed = (self.committed, self.planned)
        self.spool = Spool.open(self._folder.name, self.spool.id, needed=needed)

    @rule(
        target=plans,
        max_rows=st.none() | st.integers(1, 7),
        max_bytes=st.none() | st.integers(1, 3000),
        parts=st.integers(1, 4),
    )
    def plan(self, max_rows, max_bytes, parts):
        start = self.planned
        slices = self.spool.slices(start, self.spool.end)
        if not slices:
            return multiple()
        sizes = [self.spool.size_of(piece) for piece in slices]
        end = limit_end(slices, sizes, max_rows, max_bytes)
        assert start < end <= start + (max_rows or len(self.rows))
        slices = self.spool.slices(start, end)
        sizes = [self.spool.size_of(piece) for piece in slices]
        divided = partition(slices, sizes, 1000, parts)
        assert [n for part in divided for n in self._read(part)] == self.rows[start:end]
        self.planned = end
        return (start, end)

    @rule(plan=plans)
    def replay(self, plan):
        start, end = plan
        if start >= self.committed:
            assert self._read(self.spool.slices(start, end)) == self.rows[start:end]

    @rule(plan=plans)
    def commit(self, plan):
        """Also of one that has been committed long ago."""
        self.spool.drop_below(plan[1])
        self.committed = max(self.committed, plan[1])

    @rule(plan=plans, keep_rows=st.integers(0, 10))
    def commit_and_keep(self, plan, keep_rows):
        before = self.spool.start
        self.spool.drop_below(plan[1], keep_rows=keep_rows, keep_bytes=1 << 30)
        self.committed = max(self.committed, plan[1])
        assert self.spool.start in (before, *range(len(self.rows) - keep_rows + 1))

    @invariant()
    def all_that_may_be_asked_for_is_there(self):
        assert self.spool.end == len(self.rows)
        assert self.spool.start <= self.committed
        found = self._read(self.spool.slices(self.committed, self.spool.end))
        assert found == self.rows[self.committed :]


TestModel = Model.TestCase
TestModel.settings = settings(stateful_step_count=30, max_examples=settings().max_examples // 4)
