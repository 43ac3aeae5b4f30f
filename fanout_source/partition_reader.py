"""The executor's side: rows out of the spool. All that runs in tasks is here and below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from . import message
from .failpoints import reach
from .spool import Slice, read_slice
from .worker import plainly


@dataclass
class SpoolPartition(InputPartition):
    """Some slices of a spool, and where it is. Small, and without secrets."""

    location: str
    spool_id: str
    slices: Sequence[Slice]


class PartitionReader(DataSourceStreamReader):
    """Reads partitions; what the stream reader becomes on its way to an executor.

    The same partition gives the same rows, whoever reads it, and however often.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = columns

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SpoolPartition)
        for piece in partition.slices:
            reach("reader.slice")
            with plainly():
                batch = read_slice(partition.location, partition.spool_id, piece)
            yield message.decode(batch, piece.start, self.columns)
