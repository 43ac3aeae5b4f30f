"""Log records as a small web shop would write them; the same ones for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

from fanout_source import log_record
from fanout_source.log_record import Message

_HOSTS = ("web-1", "web-2", "web-3", "db-1", "cache-1", "worker-1", "worker-2")
_TEMPLATES = {
    "debug": (
        ("shop.cache", "lookup of cart:{n} took {ms} ms"),
        ("shop.sql", "SELECT on orders returned {n} rows in {ms} ms"),
    ),
    "info": (
        ("shop.http", "GET /products/{n} 200 in {ms} ms"),
        ("shop.http", "POST /cart/{n}/items 201 in {ms} ms"),
        ("shop.auth", "user {n} signed in"),
        ("shop.orders", "order {n} placed"),
    ),
    "warning": (
        ("shop.stock", "product {n} is low on stock"),
        ("shop.http", "GET /search 200 took {ms}0 ms"),
    ),
    "error": (
        ("shop.payment", "card of order {n} was declined by the provider"),
        ("shop.sql", "deadlock on orders, transaction {n} rolled back"),
    ),
    "critical": (("shop.db", "no connection to the primary for {ms} s"),),
}
_WEIGHTS = {"debug": 20, "info": 62, "warning": 12, "error": 5, "critical": 1}


def sample_logs(
    count: int, *, size: int | None = None, severity: str | None = None, seed: int | None = None
) -> Iterator[Message]:
    """`count` records; with `size`, bodies that are at least ten bytes shorter are padded to it."""
    chance = random.Random(seed)
    severities = [severity] if severity else list(_WEIGHTS)
    weights = None if severity else list(_WEIGHTS.values())
    for number in range(count):
        chosen = chance.choices(severities, weights)[0]
        logger, template = chance.choice(_TEMPLATES[chosen])
        text = template.format(n=chance.randrange(100_000), ms=chance.randrange(1, 300))
        host = chance.choice(_HOSTS)
        message = _record(text, chosen, host, logger, number, pad=0)
        pad = (size or 0) - len(message.body) - len(',"pad":""')
        if pad > 0:
            message = _record(text, chosen, host, logger, number, pad=pad)
        yield message


def _record(text: str, severity: str, host: str, logger: str, number: int, *, pad: int) -> Message:
    extras = {"sequence": number} | ({"pad": "x" * pad} if pad else {})
    return log_record.encode(
        text, severity=severity, host=host, logger=logger, app_id="sample", extras=extras
    )
