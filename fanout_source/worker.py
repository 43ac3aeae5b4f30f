"""How a Python process that Spark has started speaks to people."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import FanoutError

_FORMAT = "%(asctime)s %(levelname)s fanout: %(message)s"
_TIME = "%y/%m/%d %H:%M:%S"  # as in Spark's own log


@contextmanager
def plainly() -> Iterator[None]:
    """Let Spark show an error of ours as its one line, without Python's traceback.

    Spark's worker reads this variable of its own when it reports an error, and then ends.
    """
    try:
        yield
    except FanoutError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def log_to_spark() -> None:
    """Show what happens where Spark shows its own log: it passes on a worker's stderr.

    A process in which somebody has set up logging is left as it is.
    """
    ours = logging.getLogger(__package__)
    if ours.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT, _TIME))
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
