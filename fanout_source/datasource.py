"""`format("fanout")`: what Spark asks first. Which options, which columns, which reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from .errors import OptionError
from .schema import SCHEMA
from .worker import plainly

if TYPE_CHECKING:
    from .stream_reader import FanoutStreamReader


class FanoutDataSource(DataSource):
    """Every streaming query is a subscriber, with an exclusive queue of its own.

    What has been received is delivered once, in order, and again from a checkpoint. The unit of
    parallelism is the query: it has one receiver; its batches are read by any number of tasks.
    """

    def __init__(self, options: dict[str, str]) -> None:
        from .options import Options  # not needed on executors, which get this object too

        with plainly():
            Options.parse(options)
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "fanout"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        with plainly():
            raise OptionError(
                "a subscription cannot be read as a batch: use spark.readStream, with "
                "trigger(availableNow=True) for a query that ends"
            )

    def streamReader(self, schema: StructType) -> FanoutStreamReader:
        from .options import Options
        from .stream_reader import FanoutStreamReader

        with plainly():
            reader = FanoutStreamReader(Options.parse(self.options), schema)
        # From here on Spark pickles this object into every task: the credentials do not go along.
        self.options = {}
        return reader
