"""What a query or job that publishes can ask for, besides the connection."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass

from .address import LOCAL_BROKER
from .errors import OptionError
from .options import BrokerOptions, count, flag, option
from .topology import require_exchange_name

OF_SPARK = ("checkpointlocation", "queryname")  # comes along with the options of a query


def _exchange(value: str) -> tuple[str, ...]:
    require_exchange_name(value)
    if "," in value:
        raise OptionError("a sink publishes to one exchange: use a query for each")
    return (value,)


@dataclass(frozen=True)
class SinkOptions(BrokerOptions):
    """Travels to the tasks, which connect."""

    of = "sink"

    exchanges: tuple[str, ...] = option(
        "exchange", _exchange, None, "the exchange to publish to; must be given"
    )
    mandatory: bool = option(
        "mandatory",
        flag,
        "false",
        "fail when a message reaches no queue, instead of letting the broker discard it",
    )
    confirm_timeout_ms: int = option(
        "confirmTimeoutMs",
        count(1, 3_600_000),
        "30000",
        "how long to wait for a broker that confirms nothing, or is away, before the task fails",
    )
    batch_size: int = option(
        "batchSize",
        count(1, 10_000),
        "1000",
        "how many messages are made and handed over at a time",
    )
    ignore_unknown_columns: bool = option(
        "ignoreUnknownColumns",
        flag,
        "false",
        "leave out columns that are no part of a message, instead of refusing them",
    )

    def for_tasks(self) -> SinkOptions:
        """With what only the driver's environment says."""
        url = self.url or os.environ.get("FANOUT_URL") or LOCAL_BROKER
        return dataclasses.replace(self, url=url)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        ours = {key: value for key, value in given.items() if key.lower() not in OF_SPARK}
        if "exchange" not in {key.lower() for key in ours}:
            raise OptionError("option exchange: say which one to publish to")
        return super().parse(ours)

    def _check_addresses(self) -> None:
        # The file with the password is where the tasks run.
        _ = dataclasses.replace(self, password_file=None).addresses
