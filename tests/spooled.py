"""What tests of the spool have in common."""

import os
import time

import pyarrow as pa

from fanout_source.spool import read_slice
from fanout_source.spool.folder import open_folder


def batch(*numbers):
    return pa.record_batch({"number": pa.array(numbers, pa.int64())})


def rows_in(spool, start=None, end=None):
    start, end = spool.start if start is None else start, spool.end if end is None else end
    batches = [read_slice(spool.location, spool.id, piece) for piece in spool.slices(start, end)]
    return [n for b in batches if b.num_rows for n in b.column("number").to_pylist()]


def files(spool, suffix=".arrow"):
    folder = open_folder(spool.location, spool.id).path
    return sorted(f"{folder}/{name}" for name in os.listdir(folder) if name.endswith(suffix))


def age(spool, seconds):
    folder = open_folder(spool.location, spool.id).path
    moment = time.time() - seconds
    os.utime(folder, (moment, moment))
