"""What a query that subscribes can ask for, besides the connection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import OptionError
from .options import BrokerOptions, count, duration, flag, names, one_of, option, size, text
from .spool import default_location
from .spool.folder import absolute, open_folder
from .subscription import Subscription
from .topology import marker_of, owner_of, require_name

_COUNT = count(1, 2**31 - 1)
_LONGEST_QUEUE = 240  # of the 255 that AMQP has, since further names are made of it


def _routing_keys(value: str) -> tuple[str, ...]:
    keys = names(value)
    for key in keys:
        require_name("routing key", key)
    return keys


def _queue(value: str) -> str:
    require_name("queue", text(value))
    if len(value.encode()) > _LONGEST_QUEUE:
        raise OptionError(f"must have no more than {_LONGEST_QUEUE} bytes")
    if value.startswith("amq."):
        raise OptionError("names that begin with 'amq.' are the broker's own: choose another")
    if value.endswith((owner_of(""), marker_of(""))):
        raise OptionError("a name that ends so is made for another queue: choose another")
    return value


def _json_object(
    value: str, example: str = '{"x-match": "any", "severity": "error"}'
) -> dict[str, Any]:
    try:
        read = json.loads(value)
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise OptionError(f"must be a JSON object, such as {example}")
    for key, content in read.items():
        require_name("argument", key)
        _require_sendable(content)
    return read


def _queue_arguments(value: str) -> dict[str, Any]:
    arguments = _json_object(value, '{"x-max-length": 1000000}')
    if "x-queue-type" in arguments:
        raise OptionError("has x-queue-type: that is the option queueType")
    if "x-single-active-consumer" in arguments:
        raise OptionError("has x-single-active-consumer: the queue belongs to one query anyway")
    return arguments


def _require_sendable(content: Any) -> None:
    """Refuse what AMQP, or pika, does not know."""
    if isinstance(content, (list, dict)):
        for part in content.values() if isinstance(content, dict) else content:
            _require_sendable(part)
    elif isinstance(content, float):
        raise OptionError(f"has the number {content}: it must be a whole one")
    elif isinstance(content, int) and not -(2**63) <= content < 2**63:
        raise OptionError(f"has the number {content}: it does not fit into 64 bits")
    elif isinstance(content, str):
        try:
            content.encode()
        except UnicodeEncodeError:
            raise OptionError(f"has the text {content!r}, which is not UTF-8") from None


def _location(value: str) -> str:
    text(value)
    open_folder(value, "")
    return absolute(value)


def _latest(value: str) -> str:
    if value.lower() != "latest":
        raise OptionError(
            "must be latest: a broker keeps nothing from before the subscription; "
            "the checkpoint alone says where a restart begins"
        )
    return "latest"


@dataclass(frozen=True)
class SourceOptions(BrokerOptions):
    of = "source"

    routing_keys: tuple[str, ...] | None = option(
        "routingKeys",
        _routing_keys,
        None,
        "what to bind with, with commas; without it `#` (all) for topic, nothing for others",
    )
    binding_arguments: Mapping[str, Any] | None = option(
        "bindingArguments",
        _json_object,
        None,
        'JSON, for headers exchanges: `{"x-match": "any", "severity": "error"}`',
    )
    queue: str | None = option(
        "queue",
        _queue,
        None,
        "a durable queue of this name, which collects while the query is down, instead of an "
        "exclusive one",
    )
    queue_type: str | None = option(
        "queueType",
        one_of("classic", "quorum"),
        None,
        "`classic` or `quorum`, when it is created; without it the broker's default",
    )
    queue_arguments: Mapping[str, Any] | None = option(
        "queueArguments", _queue_arguments, None, "JSON, when it is created: TTL, length, …"
    )
    prefetch_count: int = option(
        "prefetchCount", count(1, 65535), "20000", "how many messages the broker sends ahead"
    )
    max_rows: int | None = option(
        "maxOffsetsPerTrigger", _COUNT, None, "the most messages in a batch"
    )
    max_bytes: int | None = option(
        "maxBytesPerTrigger", size, None, "about the most bytes in a batch, as they are spooled"
    )
    min_rows: int | None = option(
        "minOffsetsPerTrigger", _COUNT, None, "wait until a batch has so many messages …"
    )
    max_delay_seconds: float = option(
        "maxTriggerDelay", duration, "15m", "… but no longer than this after the last batch"
    )
    min_partitions: int = option(
        "minPartitions", count(1, 100_000), "1", "split a batch into at least so many tasks"
    )
    spool_dir: str | None = option(
        "spoolDir",
        _location,
        None,
        "where received messages are kept; without it `~/.local/state/fanout/spool`",
    )
    max_spool_bytes: int = option(
        "maxSpoolBytes",
        size,
        "1g",
        "how much may be kept there before messages wait in the broker",
    )
    fail_on_data_loss: bool | None = option(
        "failOnDataLoss",
        flag,
        None,
        "end the query at a gap instead of recording it; without it `false`, `true` with `queue`",
    )
    starting_offsets: str = option("startingOffsets", _latest, "latest", "only `latest`")

    @property
    def subscription(self) -> Subscription:
        kind = self.kind_of_exchange
        return Subscription(
            exchanges=self.exchanges,
            exchange_type=kind,
            exchange_durable=self.exchange_durable,
            declare=self.declare,
            routing_keys=self.routing_keys or ("#" if kind == "topic" else "",),
            binding_arguments=self.binding_arguments or {},
            queue=self.queue,
            queue_type=self.queue_type,
            queue_arguments=self.queue_arguments or {},
        )

    @property
    def fails_at_a_gap(self) -> bool:
        if self.fail_on_data_loss is None:
            return self.queue is not None
        return self.fail_on_data_loss

    @property
    def spool_location(self) -> str:
        return self.spool_dir or default_location()

    def _flaws(self) -> list[str]:
        flaws = super()._flaws()
        if self.queue is None and (self.queue_type or self.queue_arguments):
            flaws.append("options queueType, queueArguments: are for a named queue, option queue")
        if self.subscription.exchange_type == "direct" and self.routing_keys is None:
            flaws.append("option exchangeType=direct: needs routingKeys, or nothing would come")
        if (
            self.min_rows is not None
            and self.max_rows is not None
            and self.min_rows > self.max_rows
        ):
            flaws.append(
                f"option minOffsetsPerTrigger={self.min_rows}: is above "
                f"maxOffsetsPerTrigger={self.max_rows}, so that no batch could ever be large enough"
            )
        return flaws
