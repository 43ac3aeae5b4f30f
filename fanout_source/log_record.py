"""A log record as it travels: JSON in the body, the same essentials as AMQP properties.

{"time": "2026-11-18T07:12:33.123456Z", "severity": "warning", "host": "web-1",
 "logger": "shop.cart", "message": "stock is low", …extras}
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import secrets
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

import pika

CONTENT_TYPE = "application/json"
HOST = platform.node()
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str)
_PERSISTENT = 2  # so that a durable queue keeps it through a restart of the broker


class Message(NamedTuple):
    body: bytes
    properties: pika.BasicProperties


def encode(
    message: str,
    *,
    severity: str = "info",
    host: str = HOST,
    logger: str = "root",
    app_id: str | None = None,
    time: datetime | None = None,
    extras: Mapping[str, Any] | None = None,
) -> Message:
    """One log record, ready to publish.

    An extra named like one of the five fields becomes `extra.<name>`; values that JSON does not
    know are written as text. Never fails for what is in the extras.
    """
    time = time or datetime.now(timezone.utc)
    fields: dict[str, Any] = {
        "time": time.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "severity": severity,
        "host": host,
        "logger": logger,
        "message": message,
    }
    for name, value in (extras or {}).items():
        fields[f"extra.{name}" if name in fields else str(name)] = value
    return Message(
        _to_json(fields), properties(severity=severity, host=host, app_id=app_id, time=time)
    )


def properties(
    *,
    severity: str = "info",
    host: str = HOST,
    app_id: str | None = None,
    time: datetime | None = None,
    content_type: str | None = CONTENT_TYPE,
) -> pika.BasicProperties:
    """The AMQP properties of a log message, whatever its body is."""
    time = time or datetime.now(timezone.utc)
    return pika.BasicProperties(
        content_type=content_type,
        delivery_mode=_PERSISTENT,
        headers={"severity": severity, "host": host},
        message_id=_next_id(),
        timestamp=int(time.timestamp()),
        app_id=app_id,
    )


def _to_json(fields: dict[str, Any]) -> bytes:
    try:
        text = _JSON.encode(fields)
    except Exception:  # odd keys, NaN, a cycle, a __str__ that fails
        text = _JSON.encode({name: _as_text(value) for name, value in fields.items()})
    # Lone surrogates (file names that are not UTF-8) go out escaped, not as an error.
    return text.encode("utf-8", "backslashreplace")


def _as_text(value: Any) -> str | bool | None:
    if value is None or isinstance(value, (str, bool)):
        return value
    try:
        return repr(value)
    except Exception:
        return f"<a {type(value).__name__} that cannot be shown>"


def _next_id() -> str:
    """Unique without a UUID a message: 80 random bits for the process, then a count."""
    return f"{_prefix}-{next(_count):x}"


def _renew_ids() -> None:
    global _prefix, _count
    _prefix, _count = secrets.token_hex(10), itertools.count()


_prefix, _count = secrets.token_hex(10), itertools.count()
os.register_at_fork(after_in_child=_renew_ids)
