"""The same rows from Arrow files that are there already: what Spark itself takes for them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from bench_messages import CHUNK, as_rows, messages
from fanout_source.message import COLUMNS
from fanout_source.schema import SCHEMA


class ArrowFiles:
    """A folder that fills with files of a thousand rows, all columns of the source."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._count = folder, 0
        given = as_rows(messages(size)[:CHUNK])
        given = {name: given.column(name) for name in given.schema.names}
        given["routing_key"] = pa.repeat(pa.scalar(""), CHUNK)
        given["exchange"] = pa.repeat(pa.scalar("logs"), CHUNK)
        given["offset"] = pa.array(range(CHUNK), pa.int64())
        given["redelivered"] = pa.repeat(pa.scalar(False), CHUNK)
        arrays = [given.get(name, pa.nulls(CHUNK, kind)) for name, kind in COLUMNS.items()]
        rows = pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_batch(rows)
        self._data = sink.getvalue()

    def publish(self, count: int) -> None:
        self._folder.mkdir(exist_ok=True)
        for _ in range(count // CHUNK):
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(self._data)
            os.rename(file.name, _path(self._folder, self._count))
            self._count += 1


class ArrowSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "arrow-files"

    def schema(self) -> Any:
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _Reader(Path(self.options["path"]))


@dataclass
class _Files(InputPartition):
    start: int
    end: int


class _Reader(DataSourceStreamReader):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def initialOffset(self) -> dict[str, int]:
        return {"files": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        names = os.listdir(self._folder) if self._folder.exists() else []
        return {"files": sum(name.endswith(".arrow") for name in names)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        first, last = start["files"], end["files"]
        middle = (first + last) // 2
        halves = (first, middle), (middle, last)
        return [_Files(*half) for half in halves if half[0] < half[1]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Files)
        for number in range(partition.start, partition.end):
            with pa.OSFile(str(_path(self._folder, number))) as file:
                yield pa.ipc.open_file(file).get_batch(0)


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.arrow"
