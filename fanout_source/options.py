"""The options of source and sink: each checked by itself, then together, all before anything runs.

Names are Spark's, without regard to case; what a person wrote wrong is said all at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from .address import LOCAL_BROKER, BrokerAddress
from .errors import OptionError
from .tls import Tls
from .topology import DECLARE_MODES, require_exchange_name

Parsed = TypeVar("Parsed", bound="BrokerOptions")
# What every virtual host has.
_OWN_TYPES = {
    "amq.direct": "direct",
    "amq.headers": "headers",
    "amq.match": "headers",
    "amq.topic": "topic",
    "amq.rabbitmq.trace": "topic",
    "amq.rabbitmq.event": "topic",
}
_BYTES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def text(value: str) -> str:
    if not value.strip():
        raise OptionError("must not be empty: leave it away, or give a value")
    return value


def flag(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise OptionError("must be true or false")
    return value.lower() == "true"


def count(least: int, most: int) -> Callable[[str], int]:
    def read(value: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", value.strip()) or not least <= int(value) <= most:
            raise OptionError(f"must be a number from {least} to {most}")
        return int(value)

    return read


def size(value: str) -> int:
    found = re.fullmatch(r"([0-9]{1,18})\s*([bkmgt]?)i?b?", value.strip().lower())
    if not found or not int(found[1]):
        raise OptionError("must be a size above 0, such as 64m or 1g")
    return int(found[1]) * _BYTES[found[2]]


def duration(value: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9})\s*(ms|s|m|h|d)", value.strip().lower())
    if not found or not int(found[1]):
        raise OptionError("must be a time above 0, such as 500ms, 30s or 15m")
    return int(found[1]) * _SECONDS[found[2]]


def one_of(*choices: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value.lower() not in choices:
            raise OptionError(f"must be one of {', '.join(choices)}")
        return value.lower()

    return read


def names(value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in value.split(",")))


def _exchanges(value: str) -> tuple[str, ...]:
    for name in names(value):
        require_exchange_name(name)
    return names(value)


def option(
    name: str,
    read: Callable[[str], Any],
    default: str | None,
    meaning: str,
    *,
    secret: bool = False,
) -> Any:
    """A field of these classes: its name for Spark, how it is read, and the text of its default."""
    about = {
        "name": name, "read": read, "default": default, "meaning": meaning, "secret": secret
    }  # fmt: skip
    return field(
        default=None if default is None else read(default), metadata=about, repr=not secret
    )


@dataclass(frozen=True)
class BrokerOptions:
    """What source and sink have in common. The fields are the documentation of the options, too."""

    of: ClassVar[str]

    url: str | None = option(
        "url",
        text,
        None,
        "`amqp://user:password@host:port/vhost`, `amqps://…` for TLS, several with commas between "
        "them for the nodes of a cluster; without it `FANOUT_URL`, then the local broker",
        secret=True,
    )
    username: str | None = option("username", text, None, "instead of the one in the URL")
    password: str | None = option(
        "password", text, None, "instead of the one in the URL", secret=True
    )
    password_file: str | None = option(
        "passwordFile",
        text,
        None,
        "a file that holds the password: on the driver, or, for a sink, on every executor",
    )
    exchanges: tuple[str, ...] = option(
        "exchange", _exchanges, "logs", "the exchange; for a subscription, several with commas"
    )
    exchange_type: str | None = option(
        "exchangeType",
        text,
        None,
        "`fanout`, `direct`, `topic`, `headers`, or one of a plugin; without it `fanout`, or that "
        "of the broker's own `amq.…`",
    )
    exchange_durable: bool = option(
        "exchangeDurable", flag, "false", "whether it is created durable, when it is created"
    )
    declare: str = option(
        "declare",
        one_of(*DECLARE_MODES),
        "auto",
        "`auto` creates the exchange when there is none, `passive` only looks for it, "
        "`none` does neither; the same for a named queue, which `none` does not bind either",
    )
    tls_ca_file: str | None = option(
        "tls.caFile", text, None, "PEM file of the authorities to trust instead of the system's"
    )
    tls_cert_file: str | None = option(
        "tls.certFile",
        text,
        None,
        "PEM file of our certificate; when nobody names a user, it is the login too (EXTERNAL)",
    )
    tls_key_file: str | None = option(
        "tls.keyFile", text, None, "PEM file of its key, if that is not in the same file"
    )
    tls_verify_hostname: bool = option(
        "tls.verifyHostname", flag, "true", "whether the broker's certificate must have its name"
    )
    heartbeat_seconds: int = option(
        "heartbeat", count(1, 65535), "30", "seconds; a dead connection is noticed within two"
    )
    connection_timeout_ms: int = option(
        "connectionTimeoutMs", count(1, 600_000), "5000", "how long a connection may take to open"
    )

    @classmethod
    def parse(cls: type[Parsed], given: Mapping[str, str]) -> Parsed:
        """Read what a person gave; `OptionError` says everything that is wrong with it."""
        fields = {f.metadata["name"].lower(): f for f in dataclasses.fields(cls)}
        flaws, values = [], {}
        for key, value in given.items():
            if (known := fields.get(key.lower())) is None:
                flaws.append(_unknown(key, cls))
                continue
            about = known.metadata
            try:
                values[known.name] = about["read"](value)
            except OptionError as error:
                legible = value if value.isprintable() else ascii(value)
                shown = "" if about["secret"] else f"={legible}"
                flaws.append(f"option {about['name']}{shown}: {error}")
        options = cls(**values)
        flaws += options._flaws()
        if flaws:
            several = f"{len(flaws)} options cannot be used: " if len(flaws) > 1 else ""
            raise OptionError(several + "; ".join(flaws))
        return options

    @classmethod
    def names(cls) -> list[str]:
        """As a person writes them."""
        return [f.metadata["name"] for f in dataclasses.fields(cls)]

    @staticmethod
    def of_connection() -> list[str]:
        """Those that say how to connect, and nothing of exchanges."""
        names = BrokerOptions.names()
        return [n for n in names if n != "declare" and not n.startswith("exchange")]

    @property
    def kind_of_exchange(self) -> str:
        return self.exchange_type or _OWN_TYPES.get(self.exchanges[0], "fanout")

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

    def _flaws(self) -> list[str]:
        """What is wrong with the options taken together."""
        flaws = []
        if self.password is not None and self.password_file is not None:
            flaws.append("options password and passwordFile: give one of them")
        else:
            try:
                self._check_addresses()
            except OptionError as error:
                flaws.append(str(error))
        if self.tls_key_file is not None and self.tls_cert_file is None:
            flaws.append("option tls.keyFile: is the key of no certificate without tls.certFile")
        return flaws

    def _check_addresses(self) -> None:
        """Raises what is wrong with them."""
        _ = self.addresses


def _unknown(key: str, own: type[BrokerOptions]) -> str:
    if near := _nearest(key, own.names()):
        return f"option {key} is not known: did you mean {near}?"
    for other in BrokerOptions.__subclasses__():
        near = _nearest(key, other.names())
        if near and near.lower() == key.lower():
            return f"option {near} is one of the {other.of}, not of the {own.of}"
        if near:
            return f"option {key} is not known: did you mean {near}, of the {other.of}?"
    return f"option {key} is not known: there are: {', '.join(own.names())}"


def _nearest(key: str, names: list[str]) -> str | None:
    by_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(key.lower(), by_lower, n=1)
    return by_lower[near[0]] if near else None


def _read_password(path: str) -> str:
    try:
        with open(os.path.expanduser(path), encoding="utf-8-sig") as file:
            password = file.read().rstrip("\r\n")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise OptionError(f"option passwordFile={path}: cannot be read: {reason}") from None
    if not password:
        raise OptionError(f"option passwordFile={path}: the file is empty")
    if "\n" in password:
        raise OptionError(f"option passwordFile={path}: the file has more than one line")
    return password
