"""What tests of the receiver have in common."""

from __future__ import annotations

import time

import pytest

from fanout_source import message
from fanout_source.spool import read_slice
from waiting import wait_until


def numbers(start, end):
    return [b"%d" % number for number in range(start, end)]


def rows_of(spool, start=None, end=None):
    start, end = spool.start if start is None else start, spool.end if end is None else end
    rows = []
    for piece in spool.slices(start, end):
        batch = read_slice(spool.location, spool.id, piece)
        rows += message.decode(batch, piece.start).to_pylist()
    return rows


def bodies_of(spool, start=None, end=None):
    return [row["body"] for row in rows_of(spool, start, end)]


def wait_for(receiver, offset):
    """Until this many are durable."""
    deadline, end = time.monotonic() + 60, 0
    while end < offset:
        end = receiver.wait_for_more(end, timeout_seconds=1)
        if time.monotonic() > deadline:
            pytest.fail(f"only {end} of {offset} messages came: {receiver.status()}")
    return end


def wait_for_status(receiver, condition):
    wait_until(lambda: condition(receiver.status()), f"the status is so; it is {receiver.status()}")
