"""`format("fanout")`: what Spark asks first. Options, columns, and who reads or writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from .errors import OptionError
from .schema import SCHEMA, publishable
from .worker import plainly

if TYPE_CHECKING:
    from .sink import BatchSink, StreamSink
    from .sink_options import SinkOptions
    from .stream_reader import FanoutStreamReader


class FanoutDataSource(DataSource):
    """Every streaming query that reads is a subscriber, with an exclusive queue of its own.

    What has been received is delivered once, in order, and again from a checkpoint. The unit of
    parallelism is the query: it has one receiver; its batches are read by any number of tasks.

    Every row that is written is published, at least once, and confirmed before its task ends. Each
    task publishes by itself.
    """

    def __init__(self, options: dict[str, str]) -> None:
        with plainly():
            _require_usable(options)
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
        from .source_options import SourceOptions
        from .stream_reader import FanoutStreamReader

        with plainly():
            reader = FanoutStreamReader(SourceOptions.parse(self.options), schema)
        # From here on Spark pickles this object into every task: the credentials do not go along.
        self.options = {}
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        from .sink import BatchSink

        with plainly():
            if overwrite:
                raise OptionError('what is published stays: use mode("append")')
            return BatchSink(*self._sink(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        from .sink import StreamSink

        with plainly():
            if overwrite:
                raise OptionError('what is published stays: use outputMode("append")')
            return StreamSink(*self._sink(schema))

    def _sink(self, schema: StructType) -> tuple[SinkOptions, dict[str, str]]:
        from .sink_options import SinkOptions

        options = SinkOptions.parse(self.options)
        return options, publishable(schema, ignore_unknown=options.ignore_unknown_columns)


def _require_usable(given: dict[str, str]) -> None:
    """Spark does not say yet whether it will read or write: refuse what is right for neither."""
    # Not needed on executors, which get this object too.
    from .sink_options import SinkOptions
    from .source_options import SourceOptions

    try:
        SourceOptions.parse(given)
    except OptionError as cannot_read:
        try:
            SinkOptions.parse(given)
        except OptionError as cannot_write:
            raise (cannot_write if _is_for_a_sink(given) else cannot_read) from None


def _is_for_a_sink(given: dict[str, str]) -> bool:
    """Going by the options that only one of the two has."""
    from .sink_options import OF_SPARK, SinkOptions
    from .source_options import SourceOptions

    keys = {key.lower() for key in given}
    of_sink = {name.lower() for name in SinkOptions.names()}
    of_source = {name.lower() for name in SourceOptions.names()}
    if keys & set(OF_SPARK):
        return True
    return (
        bool(keys & (of_sink - of_source))
        and "exchange" in keys
        and not keys & (of_source - of_sink)
    )
