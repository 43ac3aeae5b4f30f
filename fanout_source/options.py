"""The options of the source: each checked by itself, then together, and all before anything runs.

Names are Spark's, without regard to case; what a person wrote wrong is said all at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .address import LOCAL_BROKER, BrokerAddress
from .errors import OptionError
from .spool import default_location
from .spool.folder import absolute, open_folder
from .subscription import Subscription
from .tls import Tls
from .topology import DECLARE_MODES, marker_of, require_exchange_name, require_name

_BYTES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _text(value: str) -> str:
    if not value.strip():
        raise OptionError("must not be empty: leave it away, or give a value")
    return value


def _flag(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise OptionError("must be true or false")
    return value.lower() == "true"


def _count(least: int, most: int) -> Callable[[str], int]:
    def read(value: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", value.strip()) or not least <= int(value) <= most:
            raise OptionError(f"must be a number from {least} to {most}")
        return int(value)

    return read


def _bytes(value: str) -> int:
    found = re.fullmatch(r"([0-9]{1,18})\s*([bkmgt]?)i?b?", value.strip().lower())
    if not found or not int(found[1]):
        raise OptionError("must be a size above 0, such as 64m or 1g")
    return int(found[1]) * _BYTES[found[2]]


def _duration(value: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9})\s*(ms|s|m|h|d)", value.strip().lower())
    if not found or not int(found[1]):
        raise OptionError("must be a time above 0, such as 500ms, 30s or 15m")
    return int(found[1]) * _SECONDS[found[2]]


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value.lower() not in choices:
            raise OptionError(f"must be one of {', '.join(choices)}")
        return value.lower()

    return read


def _exchanges(value: str) -> tuple[str, ...]:
    names = _list(value)
    for name in names:
        require_exchange_name(name)
    return names


def _routing_keys(value: str) -> tuple[str, ...]:
    keys = _list(value)
    for key in keys:
        require_name("routing key", key)
    return keys


def _list(value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in value.split(",")))


def _queue(value: str) -> str:
    require_name("queue", marker_of(_text(value)))
    if value.startswith("amq."):
        raise OptionError("names that begin with 'amq.' are the broker's own: choose another")
    return value


def _json_object(value: str) -> dict[str, Any]:
    try:
        read = json.loads(value)
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise OptionError('must be a JSON object, such as {"x-message-ttl": 60000}')
    return read


def _location(value: str) -> str:
    _text(value)
    open_folder(value, "")
    return absolute(value)


def _latest(value: str) -> str:
    if value.lower() != "latest":
        raise OptionError(
            "must be latest: a broker keeps nothing from before the subscription; "
            "the checkpoint alone says where a restart begins"
        )
    return "latest"


def _option(
    name: str,
    read: Callable[[str], Any],
    default: str | None,
    meaning: str,
    *,
    secret: bool = False,
) -> Any:
    """A field of `Options`: its name for Spark, how it is read, and the text of its default."""
    about = {
        "name": name, "read": read, "default": default, "meaning": meaning, "secret": secret
    }  # fmt: skip
    return field(
        default=None if default is None else read(default), metadata=about, repr=not secret
    )


# What every virtual host has.
_OWN_TYPES = {
    "amq.direct": "direct",
    "amq.headers": "headers",
    "amq.match": "headers",
    "amq.topic": "topic",
    "amq.rabbitmq.trace": "topic",
    "amq.rabbitmq.event": "topic",
}
_COUNT = _count(1, 2**31 - 1)


@dataclass(frozen=True)
class Options:
    """What a query asks for. The fields are the documentation of the options, too."""

    url: str | None = _option(
        "url",
        _text,
        None,
        "`amqp://user:password@host:port/vhost`, `amqps://…` for TLS, several with commas between "
        "them for the nodes of a cluster; without it `FANOUT_URL`, then the local broker",
        secret=True,
    )
    username: str | None = _option("username", _text, None, "instead of the one in the URL")
    password: str | None = _option(
        "password", _text, None, "instead of the one in the URL", secret=True
    )
    password_file: str | None = _option(
        "passwordFile", _text, None, "a file on the driver that holds the password"
    )
    exchanges: tuple[str, ...] = _option(
        "exchange", _exchanges, "logs", "the exchange to subscribe to, or several with commas"
    )
    exchange_type: str | None = _option(
        "exchangeType",
        _text,
        None,
        "`fanout`, `direct`, `topic`, `headers`, or one of a plugin; without it `fanout`, or that "
        "of the broker's own `amq.…`",
    )
    exchange_durable: bool = _option(
        "exchangeDurable", _flag, "false", "whether it is created durable, when it is created"
    )
    declare: str = _option(
        "declare",
        _one_of(*DECLARE_MODES),
        "auto",
        "`auto` creates the exchange when there is none, `passive` only looks for it, "
        "`none` does neither; the same for a named queue, which `none` does not bind either",
    )
    routing_keys: tuple[str, ...] | None = _option(
        "routingKeys",
        _routing_keys,
        None,
        "what to bind with, with commas; without it `#` (all) for topic, nothing for others",
    )
    binding_arguments: Mapping[str, Any] | None = _option(
        "bindingArguments",
        _json_object,
        None,
        'JSON, for headers exchanges: `{"x-match": "any", "severity": "error"}`',
    )
    queue: str | None = _option(
        "queue",
        _queue,
        None,
        "a durable queue of this name, which collects while the query is down, instead of an "
        "exclusive one",
    )
    queue_type: str | None = _option(
        "queueType",
        _one_of("classic", "quorum"),
        None,
        "`classic` or `quorum`, when it is created; without it the broker's default",
    )
    queue_arguments: Mapping[str, Any] | None = _option(
        "queueArguments", _json_object, None, "JSON, when it is created: TTL, length, …"
    )
    tls_ca_file: str | None = _option(
        "tls.caFile", _text, None, "PEM file of the authorities to trust instead of the system's"
    )
    tls_cert_file: str | None = _option(
        "tls.certFile",
        _text,
        None,
        "PEM file of our certificate; when nobody names a user, it is the login too (EXTERNAL)",
    )
    tls_key_file: str | None = _option(
        "tls.keyFile", _text, None, "PEM file of its key, if that is not in the same file"
    )
    tls_verify_hostname: bool = _option(
        "tls.verifyHostname", _flag, "true", "whether the broker's certificate must have its name"
    )
    prefetch_count: int = _option(
        "prefetchCount", _count(1, 65535), "20000", "how many messages the broker sends ahead"
    )
    max_rows: int | None = _option(
        "maxOffsetsPerTrigger", _COUNT, None, "the most messages in a batch"
    )
    max_bytes: int | None = _option(
        "maxBytesPerTrigger", _bytes, None, "about the most bytes in a batch, as they are spooled"
    )
    min_rows: int | None = _option(
        "minOffsetsPerTrigger", _COUNT, None, "wait until a batch has so many messages …"
    )
    max_delay_seconds: float = _option(
        "maxTriggerDelay", _duration, "15m", "… but no longer than this after the last batch"
    )
    min_partitions: int = _option(
        "minPartitions", _count(1, 100_000), "1", "split a batch into at least so many tasks"
    )
    spool_dir: str | None = _option(
        "spoolDir",
        _location,
        None,
        "where received messages are kept; without it `~/.local/state/fanout/spool`",
    )
    max_spool_bytes: int = _option(
        "maxSpoolBytes",
        _bytes,
        "1g",
        "how much may be kept there before messages wait in the broker",
    )
    fail_on_data_loss: bool | None = _option(
        "failOnDataLoss",
        _flag,
        None,
        "end the query at a gap instead of recording it; without it `false`, `true` with `queue`",
    )
    heartbeat_seconds: int = _option(
        "heartbeat", _count(1, 65535), "30", "seconds; a dead connection is noticed within two"
    )
    connection_timeout_ms: int = _option(
        "connectionTimeoutMs", _count(1, 600_000), "5000", "how long a connection may take to open"
    )
    starting_offsets: str = _option("startingOffsets", _latest, "latest", "only `latest`")

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Read what a person gave; `OptionError` says everything that is wrong with it."""
        fields = {f.metadata["name"].lower(): f for f in dataclasses.fields(cls)}
        flaws, values = [], {}
        for key, value in given.items():
            if (known := fields.get(key.lower())) is None:
                flaws.append(_unknown(key, [f.metadata["name"] for f in fields.values()]))
                continue
            about = known.metadata
            try:
                values[known.name] = about["read"](value)
            except OptionError as error:
                shown = "" if about["secret"] else f"={value}"
                flaws.append(f"option {about['name']}{shown}: {error}")
        options = cls(**values)
        flaws += options._flaws()
        if flaws:
            several = f"{len(flaws)} options cannot be used: " if len(flaws) > 1 else ""
            raise OptionError(several + "; ".join(flaws))
        return options

    @property
    def addresses(self) -> tuple[BrokerAddress, ...]:
        """Who to connect to, passwords included: only for the process that connects."""
        url = self.url or os.environ.get("FANOUT_URL") or LOCAL_BROKER
        password = self.password
        if self.password_file is not None:
            password = _read_password(self.password_file)
        return tuple(self._complete(address, password) for address in BrokerAddress.parse_all(url))

    def _complete(self, address: BrokerAddress, password: str | None) -> BrokerAddress:
        tls = Tls(self.tls_ca_file, self.tls_cert_file, self.tls_key_file, self.tls_verify_hostname)
        if address.tls is None and tls != Tls():
            raise OptionError("options tls.…: the broker's URL must begin with amqps:// then")
        has_account = address.names_account or self.username is not None
        return dataclasses.replace(
            address,
            username=address.username if self.username is None else self.username,
            password=address.password if password is None else password,
            tls=address.tls and tls,
            by_certificate=tls.cert_file is not None and not has_account,
        )

    @property
    def subscription(self) -> Subscription:
        kind = self.exchange_type or _OWN_TYPES.get(self.exchanges[0], "fanout")
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
        """What is wrong with the options taken together."""
        flaws = []
        if self.password is not None and self.password_file is not None:
            flaws.append("options password and passwordFile: give one of them")
        else:
            try:
                _ = self.addresses
            except OptionError as error:
                flaws.append(str(error))
        if self.tls_key_file is not None and self.tls_cert_file is None:
            flaws.append("option tls.keyFile: is the key of no certificate without tls.certFile")
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


def _unknown(key: str, names: list[str]) -> str:
    by_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(key.lower(), by_lower, n=1)
    hint = f"did you mean {by_lower[near[0]]}?" if near else f"there are: {', '.join(names)}"
    return f"option {key} is not known: {hint}"


def _read_password(path: str) -> str:
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            password = file.read().rstrip("\r\n")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise OptionError(f"option passwordFile={path}: cannot be read: {reason}") from None
    if not password:
        raise OptionError(f"option passwordFile={path}: the file is empty")
    return password
