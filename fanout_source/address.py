"""Where a broker is and who asks: the AMQP URL, parsed once, shown without its password."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from .errors import OptionError
from .tls import Tls

LOCAL_BROKER = "amqp://guest:guest@127.0.0.1:5672/%2F"
_DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}
_BETWEEN_URLS = re.compile(r"\s*,\s*(?=amqps?://)", re.IGNORECASE)
_WRITE = "write amqp://user:password@host:5672/vhost"
_ENCODE = "and percent-encode / ? # @ : % inside a password or virtual host (/ is %2F)"


@dataclass(frozen=True)
class BrokerAddress:
    """One node, one virtual host, one account. `str()` and `repr()` hold no password."""

    host: str
    port: int
    vhost: str = "/"
    username: str = "guest"
    password: str = field(default="guest", repr=False)
    tls: Tls | None = None
    by_certificate: bool = False  # log in as whom our certificate names, without a password
    names_account: bool = field(default=True, repr=False, compare=False)

    @classmethod
    def parse_all(cls, urls: str) -> tuple[BrokerAddress, ...]:
        """The nodes of one cluster, as URLs with commas between them."""
        addresses = tuple(cls.parse(url) for url in _BETWEEN_URLS.split(urls.rstrip(", ")))
        if len({address.vhost for address in addresses}) > 1:
            raise OptionError(
                "the broker's URLs name different virtual hosts: several URLs are the nodes of one "
                "cluster, with the same exchanges and queues"
            )
        return addresses

    @classmethod
    def parse(cls, url: str) -> BrokerAddress:
        """Read `amqp[s]://user:password@host:port/vhost`; everything but the host is optional.

        As everywhere in RabbitMQ's world, the virtual host is percent-encoded (`/` is `%2F`),
        and a missing or empty path means `/`.
        """
        # No message below quotes what follows the scheme: a password that is not
        # percent-encoded can end up in any part of the URL.
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError:
            raise OptionError(
                f"the broker's URL has no valid host and port: {_WRITE}, {_ENCODE}"
            ) from None
        if parts.scheme not in _DEFAULT_PORTS:
            found = f"begins with {parts.scheme + '://'!r}" if "://" in url else "has no scheme"
            raise OptionError(f"the broker's URL {found}: {_WRITE}, or amqps:// for TLS")
        if not parts.hostname:
            raise OptionError(
                "the broker's URL names no host: write amqp://user:password@host/vhost"
            )
        if parts.query or parts.fragment:
            raise OptionError(
                f"the broker's URL ends in '?…' or '#…': give such settings as options, {_ENCODE}"
            )
        if "@" in parts.path:
            raise OptionError(f"the virtual host in the broker's URL contains '@': {_ENCODE}")
        if "/" in parts.path[1:]:
            raise OptionError(
                f"the virtual host in the broker's URL contains '/': write it as %2F, {_ENCODE}"
            )
        if port == 0:
            raise OptionError("the broker's URL has port 0: no broker can listen there")
        vhost = _decode("virtual host", parts.path[1:]) or "/"
        if len(vhost.encode()) > 255:
            raise OptionError("the virtual host in the broker's URL is longer than 255 bytes")
        return cls(
            host=parts.hostname,
            port=port or _DEFAULT_PORTS[parts.scheme],
            vhost=vhost,
            username=_decode("user name", parts.username, "guest"),
            password=_decode("password", parts.password, "guest"),
            names_account=parts.username is not None,
            tls=Tls() if parts.scheme == "amqps" else None,
        )

    @classmethod
    def from_environment(cls) -> BrokerAddress:
        """`FANOUT_URL`, or the broker on this machine."""
        return cls.parse(os.environ.get("FANOUT_URL") or LOCAL_BROKER)

    @property
    def endpoint(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.endpoint}, virtual host {self.vhost!r}"


def _decode(what: str, encoded: str | None, default: str = "") -> str:
    if encoded is None:
        return default
    try:
        decoded = unquote(encoded, errors="strict")
        decoded.encode()
    except UnicodeError:
        raise OptionError(f"the {what} in the broker's URL is not UTF-8") from None
    return decoded
