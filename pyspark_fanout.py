"""Spark looks for modules of this kind of name by itself: `format("fanout")` needs no more."""

from fanout_source.datasource import FanoutDataSource as DefaultSource

__all__ = ["DefaultSource"]
