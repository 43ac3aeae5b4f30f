"""The one place that opens connections, and the one that explains why one could not be.

Everything is pika's `BlockingConnection`: set-up reads as straight lines of code, and the
thread that owns a connection then drives it with `process_data_events`.
"""

from __future__ import annotations

import logging
import os
import platform
import random
import re
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pika
from pika import exceptions as amqp
from pika.adapters.utils import connection_workflow as workflow

from .address import BrokerAddress
from .errors import (
    BrokerError,
    BrokerRefused,
    BrokerUnreachable,
    ConnectionLost,
    NodeDown,
    NotFound,
    NotPermitted,
    QueueBusy,
)

Made = TypeVar("Made")
# Patterns of what an account may configure, write and read.
Rights = tuple[str, str, str]
ANY_RIGHTS: Rights = (".*", ".*", ".*")
CONNECTION_TIMEOUT_SECONDS = 5.0
HEARTBEAT_SECONDS = 30
CLOSE_TIMEOUT_SECONDS = 2.0
_UNKNOWN_AUTHORITY = "; set tls.caFile to the authority that has signed it"
_CERTIFICATE_REMEDIES = {  # by the codes of OpenSSL
    10: "; the broker needs a new one",
    18: _UNKNOWN_AUTHORITY,
    19: _UNKNOWN_AUTHORITY,
    20: _UNKNOWN_AUTHORITY,
    21: _UNKNOWN_AUTHORITY,
    62: "; use a name that it has, or tls.verifyHostname=false",
    64: "; use a name that it has, or tls.verifyHostname=false",
}
_WANTS_CERTIFICATE = re.compile("alert (certificate required|bad certificate|unknown ca)", re.I)
_TEMPORARY = (320, 541)  # CONNECTION_FORCED: it shuts down; INTERNAL_ERROR: it starts

# What pika logs, our errors say in one line. Programs that configure logging still get it;
# the others are spared its tracebacks on stderr.
logging.getLogger("pika").addHandler(logging.NullHandler())


def open_connection(
    address: BrokerAddress,
    *,
    timeout_seconds: float = CONNECTION_TIMEOUT_SECONDS,
    heartbeat_seconds: int = HEARTBEAT_SECONDS,
    implementation: type[pika.SelectConnection] = pika.SelectConnection,
) -> pika.BlockingConnection:
    """Connect and log in, once, within about `timeout_seconds`; a failure is a `BrokerError`."""
    parameters = pika.ConnectionParameters(
        host=address.host,
        port=address.port,
        virtual_host=address.vhost,
        credentials=_credentials(address),
        ssl_options=_ssl_options(address),
        heartbeat=heartbeat_seconds,
        socket_timeout=timeout_seconds,
        stack_timeout=timeout_seconds,
        client_properties={"connection_name": _connection_name()},
    )
    try:
        return pika.BlockingConnection(parameters, _impl_class=implementation)
    except Exception as error:
        if address.tls is not None and _was_cut_off(error):
            raise _explain_failed_open(
                _ask_why(address, timeout_seconds) or error, address
            ) from error
        raise _explain_failed_open(error, address) from error


def with_any(addresses: Sequence[BrokerAddress], use: Callable[[BrokerAddress], Made]) -> Made:
    """What `use` makes of the first node that lets it, in any order."""
    failures = []
    for address in random.sample(addresses, len(addresses)):
        try:
            return use(address)
        except BrokerError as error:  # noqa: PERF203
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    kind: type[BrokerError] = BrokerUnreachable
    for telling in (NodeDown, QueueBusy):
        if any(isinstance(failure, telling) for failure in failures):
            kind = telling
            break
    else:
        if all(isinstance(failure, BrokerRefused) for failure in failures):
            kind = BrokerRefused  # nothing to wait for
    raise kind(f"none of {len(failures)} brokers will do: " + "; ".join(map(str, failures)))


def _was_cut_off(error: Exception) -> bool:
    return isinstance(error, amqp.IncompatibleProtocolError)


def _ask_why(address: BrokerAddress, timeout_seconds: float) -> Exception | None:
    """With TLS 1.3 a broker says what it thinks of our certificate only after the handshake, when
    pika is writing already, and so hears nothing. Listen instead."""
    assert address.tls is not None
    place = (address.host, address.port)
    try:
        with (
            socket.create_connection(place, timeout_seconds) as stream,
            address.tls.context().wrap_socket(stream, server_hostname=address.host) as secured,
        ):
            secured.recv(1)
    except OSError as error:
        return error
    return None


def end_within(connection: pika.BlockingConnection, seconds: float) -> None:
    """From any thread: whatever the connection is waiting for, it is over in `seconds`.

    A broker that blocks publishers stops reading, so neither what was written nor a polite
    close is ever answered; pika itself would wait for as long as that lasts.
    """
    stream: Any = connection._impl

    def terminate() -> None:
        if not stream.is_closed:
            stream._terminate_stream(amqp.StreamLostError("the broker did not answer the close"))

    with suppress(AttributeError, RuntimeError, OSError):  # its loop has ended already
        stream._adapter_add_callback_threadsafe(
            lambda: stream._adapter_call_later(seconds, terminate)
        )


def close_quietly(connection: pika.BlockingConnection) -> None:
    """Close a connection that is no longer of interest, whatever state it is in."""
    end_within(connection, CLOSE_TIMEOUT_SECONDS)
    with suppress(amqp.AMQPError, OSError):
        if connection.is_open:
            connection.close()


@contextmanager
def explained(address: BrokerAddress, doing: str, rights: Rights = ANY_RIGHTS) -> Iterator[None]:
    """Turn pika's errors about an open connection into a `BrokerError` that says `doing` what."""
    try:
        yield
    except (amqp.AMQPError, OSError) as error:
        raise explain(error, address, doing, rights) from error


def explain(
    error: BaseException, address: BrokerAddress, doing: str, rights: Rights = ANY_RIGHTS
) -> BrokerError:
    """The one-line error for something that went wrong on an open connection. `rights` are those
    that would be enough for it."""
    if isinstance(error, BrokerError):
        return error
    if isinstance(error, amqp.ChannelClosedByBroker):
        if "in exclusive use" in error.reply_text:
            return QueueBusy(
                f"{doing}: another consumer has the queue on the broker at {address} "
                f"({error.reply_text}): stop that one, or choose another queue"
            )
        refused = f"{doing}: the broker at {address} refused it: {error.reply_text}"
        if error.reply_code == 405:
            return BrokerRefused(
                f"{refused}; it is exclusive to another connection: choose another queue"
            )
        if error.reply_code == 403:
            if "internal exchange" in error.reply_text:
                return BrokerRefused(f"{refused}: choose another exchange")
            return NotPermitted(f"{refused}; {grant(address, rights)}")
        if error.reply_code != 404:
            return BrokerRefused(refused)
        if is_absence(error):
            return NotFound(refused)
        return (NodeDown if "home node" in error.reply_text else ConnectionLost)(refused)
    if isinstance(error, amqp.ConnectionClosedByBroker):
        temporary = error.reply_code in _TEMPORARY
        return (ConnectionLost if temporary else BrokerRefused)(
            f"{doing}: the broker at {address} closed the connection: {error.reply_text}"
        )
    if isinstance(error, amqp.AMQPHeartbeatTimeout):
        return ConnectionLost(f"{doing}: the broker at {address} stopped answering heartbeats")
    return ConnectionLost(
        f"{doing}: the connection to the broker at {address} was lost: {_root(error)}"
    )


def is_absence(refused: amqp.ChannelClosedByBroker) -> bool:
    """Whether there is no such thing. A cluster says the same of what is on a node that is down."""
    return refused.reply_code == 404 and "NOT_FOUND - no " in refused.reply_text


def grant(address: BrokerAddress, rights: Rights) -> str:
    """What to do about rights that an account does not have."""
    narrower = ", or narrower patterns" if rights == ANY_RIGHTS else ""
    patterns = " ".join(f"'{pattern}'" for pattern in rights)
    return (
        f"grant it with: rabbitmqctl set_permissions -p '{address.vhost}' "
        f"'{address.username}' {patterns} (in place of the rights that it has{narrower})"
    )


def _explain_failed_open(error: Exception, address: BrokerAddress) -> BrokerError:
    root = _root(error)
    if _was_dropped(root):
        return BrokerUnreachable(
            f"the connection to the broker at {address.endpoint} ended during the login: "
            "if that goes on, check the user name and the password"
        )
    if isinstance(root, (amqp.ProbableAuthenticationError, amqp.AuthenticationError)) or (
        isinstance(root, amqp.ConnectionClosedByBroker) and root.reply_code == 403
    ):
        return BrokerRefused(_refused_login(address))
    if isinstance(root, amqp.ConnectionClosedByBroker) and root.reply_code in _TEMPORARY:
        return BrokerUnreachable(
            f"the broker at {address.endpoint} is not ready: {root.reply_text}"
        )
    if isinstance(root, (amqp.ProbableAccessDeniedError, amqp.ConnectionClosedByBroker)):
        return _explain_refused_vhost(root, address)
    if isinstance(root, ssl.SSLCertVerificationError):
        return BrokerRefused(
            f"the certificate of the broker at {address.endpoint} was not accepted: "
            f"{root.verify_message.rstrip('.')}{_CERTIFICATE_REMEDIES.get(root.verify_code, '')}"
        )
    if isinstance(root, ssl.SSLError) and _WANTS_CERTIFICATE.search(str(root)):
        return BrokerRefused(
            f"the broker at {address.endpoint} did not accept our certificate, or wants one: "
            "set tls.certFile and tls.keyFile to one that its authority has signed"
        )
    if isinstance(root, (socket.gaierror, UnicodeError)):  # UnicodeError: no possible name
        return BrokerUnreachable(
            f"the broker's host {address.host!r} cannot be found: check its name in the URL"
        )
    if isinstance(root, ConnectionRefusedError):
        return BrokerUnreachable(
            f"no broker listens at {address.endpoint}: "
            "start it (here: make broker) or check the URL"
        )
    if isinstance(root, (workflow.AMQPConnectorStackTimeout, TimeoutError)):
        return BrokerUnreachable(
            f"nothing at {address.endpoint} answered as an AMQP broker in time: "
            "check host, port and firewall"
        )
    if isinstance(root, ssl.SSLError) or address.tls:
        return BrokerUnreachable(
            f"no TLS connection to {address.endpoint}: {root or type(root).__name__}; "
            "check that the port speaks TLS (amqps is usually 5671, amqp 5672)"
        )
    return BrokerUnreachable(
        f"{address.endpoint} does not speak AMQP 0-9-1 with us: {root or type(root).__name__}; "
        "check the port (5672 is usual) and whether it wants TLS (amqps://)"
    )


def _refused_login(address: BrokerAddress) -> str:
    if address.by_certificate:
        return (
            f"the broker at {address.endpoint} refused the login with our certificate: does it "
            "have the plugin rabbitmq_auth_mechanism_ssl, the mechanism EXTERNAL, and a user of "
            "the certificate's name?"
        )
    return (
        f"the broker at {address.endpoint} refused the login of user {address.username!r}: "
        "check the user name and the password"
    )


def _was_dropped(error: BaseException) -> bool:
    """Whether a login ended without a word from the broker. pika takes that for a refusal, as it
    was with brokers before 3.0; those of today say so."""
    guesses = (amqp.ProbableAuthenticationError, amqp.ProbableAccessDeniedError)
    return isinstance(error, guesses) and "ClosedByBroker" not in str(error)


def _explain_refused_vhost(error: Exception, address: BrokerAddress) -> BrokerError:
    if "not found" in str(error):
        return BrokerRefused(
            f"the broker at {address.endpoint} has no virtual host {address.vhost!r}: "
            f"check the end of the URL, or create it with: rabbitmqctl add_vhost '{address.vhost}'"
        )
    if re.search("limit .*is reached", str(error)):
        return BrokerUnreachable(
            f"the broker at {address.endpoint} takes no more connections: {error}"
        )
    if "refused for user" in str(error):
        return BrokerRefused(
            f"user {address.username!r} has no access to virtual host {address.vhost!r} of the "
            f"broker at {address.endpoint}; grant it with: rabbitmqctl set_permissions "
            f"-p '{address.vhost}' '{address.username}' '.*' '.*' '.*'"
        )
    return BrokerRefused(f"the broker at {address.endpoint} closed the new connection: {error}")


def _root(error: BaseException) -> BaseException:
    """pika wraps what really happened in up to four layers; this is the innermost."""
    while True:
        inner: Any = getattr(error, "exception", None)
        if inner is None and getattr(error, "exceptions", None):
            inner = error.exceptions[-1]  # type: ignore[attr-defined]
        if inner is None and error.args and isinstance(error.args[-1], BaseException):
            inner = error.args[-1]
        if not isinstance(inner, BaseException):
            return error
        error = inner


def _credentials(address: BrokerAddress) -> Any:
    if address.by_certificate:
        return pika.credentials.ExternalCredentials()
    return pika.PlainCredentials(address.username, address.password)


def _ssl_options(address: BrokerAddress) -> pika.SSLOptions | None:
    if address.tls is None:
        return None
    return pika.SSLOptions(address.tls.context(), address.host)


def _connection_name() -> str:
    """What an operator sees in the broker's list of connections."""
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    return f"fanout {program} {platform.node()}:{os.getpid()}"
