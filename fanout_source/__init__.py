"""RabbitMQ publish/subscribe for Apache Spark: every streaming query is a subscriber."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .address import BrokerAddress
    from .datasource import FanoutDataSource
    from .emit import FanoutHandler
    from .errors import (
        BrokerError,
        BrokerRefused,
        BrokerUnreachable,
        ConnectionLost,
        FanoutError,
        OptionError,
        PublishFailed,
        SpoolBusy,
        SpoolDamaged,
        SpoolError,
    )
    from .publisher import Publisher
    from .receiver import Receiver
    from .spool import Spool, read_slice
    from .subscription import Subscription

__version__ = "0.1.0"
__all__ = [
    "BrokerAddress",
    "BrokerError",
    "BrokerRefused",
    "BrokerUnreachable",
    "ConnectionLost",
    "FanoutDataSource",
    "FanoutError",
    "FanoutHandler",
    "OptionError",
    "PublishFailed",
    "Publisher",
    "Receiver",
    "Spool",
    "SpoolBusy",
    "SpoolDamaged",
    "SpoolError",
    "Subscription",
    "read_slice",
]

# Imported on first use: a Spark worker that only reads rows loads neither pika nor the emitter.
_HOMES = {
    "BrokerAddress": "address",
    "FanoutDataSource": "datasource",
    "FanoutHandler": "emit",
    "Publisher": "publisher",
    "Receiver": "receiver",
    "Spool": "spool",
    "Subscription": "subscription",
    "read_slice": "spool",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES.get(name, 'errors')}", __name__), name)
