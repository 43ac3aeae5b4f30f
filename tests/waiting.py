"""Waiting on conditions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming import StreamingQuery


def wait_until(condition: Callable[[], Any], what: str, timeout_seconds: float = 30) -> Any:
    """Wait for a condition to hold and return its value; a time-out says what did not happen."""
    deadline = time.monotonic() + timeout_seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_seconds} s, but not: {what}")
        time.sleep(0.02)
    return value


def until(query: StreamingQuery, condition: Callable[[], Any], what: str) -> Any:
    """Wait for something that a query brings about; or say why it failed."""

    def check() -> Any:
        failure = query.exception()
        if failure is not None:
            pytest.fail(f"the query failed before {what}: {failure}")
        return condition()

    return wait_until(check, what, 90)
