"""Waiting on conditions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest


def wait_until(condition: Callable[[], Any], what: str, timeout_seconds: float = 30) -> Any:
    """Wait for a condition to hold and return its value; a time-out says what did not happen."""
    deadline = time.monotonic() + timeout_seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_seconds} s, but not: {what}")
        time.sleep(0.02)
    return value
