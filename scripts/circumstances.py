"""When, on what, and with which versions something was measured."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any


def circumstances(rabbitmq: str) -> dict[str, Any]:
    versions = {name: version(name) for name in ("pyspark", "pika", "pyarrow")}
    versions |= {"python": platform.python_version(), "rabbitmq": rabbitmq}
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    return {"date": date, "cores": os.cpu_count(), "versions": versions}


def described(rabbitmq: str) -> str:
    found = circumstances(rabbitmq)
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return f"{found['date']}, {found['cores']} cores, {versions}"
