"""A subscription while it lasts: one connection, one queue of its own, bound to the exchange.

pika does the protocol; deliveries are taken out of what reaches it by a tap (`delivery_tap`).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pika
from pika import frame
from pika.exceptions import AMQPError, AMQPHeartbeatTimeout, ChannelClosedByBroker

from .address import BrokerAddress
from .connection import (
    CONNECTION_TIMEOUT_SECONDS,
    HEARTBEAT_SECONDS,
    Rights,
    close_quietly,
    explain,
    explained,
    open_connection,
)
from .errors import BrokerError, BrokerRefused, ConnectionLost
from .topology import NOT_FOUND, Topology, marker_of, owner_of

_RECEIVE_BYTES = 256 * 1024
_GATHER_SECONDS = 0.002
_SECOND_LOOK_SECONDS = 0.1

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Subscription:
    """What to subscribe to, and through which queue: one of our own that goes with us, or, with a
    name, a durable one that stays and goes on collecting."""

    exchanges: Sequence[str] = ("logs",)
    exchange_type: str = "fanout"
    exchange_durable: bool = False
    declare: str = "auto"
    routing_keys: Sequence[str] = ("",)
    binding_arguments: Mapping[str, Any] = field(default_factory=dict)
    queue: str | None = None
    queue_type: str | None = None
    queue_arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_named(self) -> bool:
        return self.queue is not None

    @property
    def all_queue_arguments(self) -> dict[str, Any]:
        kind = {} if self.queue_type is None else {"x-queue-type": self.queue_type}
        return {**kind, **self.queue_arguments}

    @property
    def rights(self) -> Rights:
        """The least that an account needs for it, where the exchanges exist."""
        exchanges = [re.escape(exchange) for exchange in self.exchanges]
        queue = r"amq\.gen.*" if self.queue is None else re.escape(self.queue)
        if self.queue is None:
            return _pattern([queue]), _pattern([queue]), _pattern([queue, *exchanges])
        if self.declare == "none":
            return _pattern([]), _pattern([]), _pattern([queue])
        if self.declare == "passive":
            return _pattern([]), _pattern([queue]), _pattern([queue, *exchanges])
        markers, owner = f"{re.escape(marker_of(self.queue))}.*", re.escape(owner_of(self.queue))
        return (
            _pattern([queue, markers, owner]),
            _pattern([queue, *exchanges]),
            _pattern([queue, markers, *exchanges]),
        )

    def __str__(self) -> str:
        names = ", ".join(map(repr, self.exchanges))
        return f"exchange {names}" if len(self.exchanges) == 1 else f"exchanges {names}"


class _TappedConnection(pika.SelectConnection):  # type: ignore[misc]
    """Shows every received piece to `tap` first, and gives pika what that returns."""

    tap: Callable[[bytes], bytes] | None = None
    is_tapped = False

    def _on_data_available(self, data_in: bytes) -> None:
        self.is_tapped = True
        if self.tap is None:
            super()._on_data_available(data_in)
            return
        others = self.tap(data_in)
        self.bytes_received += len(data_in) - len(others)  # a sign of life, as heartbeats are
        if others:
            super()._on_data_available(others)


class Session:
    """A queue that is bound and waits; `consume` starts its deliveries, `cancel` stops them.

    All but `wake` is for one thread, the one that calls `process`. The queue goes with the
    connection: there is no second life for a session.
    """

    def __init__(
        self,
        address: BrokerAddress,
        subscription: Subscription,
        take: Callable[[bytes], bytes],
        *,
        marked: Mapping[str, str] | None = None,
        missed: Callable[[str], None] = lambda reason: None,
        connection_timeout_seconds: float = CONNECTION_TIMEOUT_SECONDS,
        heartbeat_seconds: int = HEARTBEAT_SECONDS,
    ) -> None:
        """From `attach` on, `take` is shown all that the broker sends; it takes the deliveries on
        channel `channel_number` and returns the rest.

        `marked` is given where a named queue was subscribed before: what `self.marked` was then,
        by exchange what marks that it is there.
        `missed` is called, before anything is made anew, with the reason for which the queue cannot
        have collected all; it may raise.
        """
        self.address = address
        self._take = take
        self._lost: Exception | None = None
        self._consumer_tag: str | None = None
        self.is_idle = True  # no delivery comes
        self.has_refused = False  # messages may be with us that were never acknowledged
        self.last_heard = self._last_bound = time.time()
        self._last_sign = time.monotonic()  # of life; clocks on the wall are set now and then
        self._subscription = subscription
        self.backlog, self._is_new = 0, False  # what a named queue held at first; made just now
        self._is_counting, self._empty_answers = False, 0
        self._heartbeat_seconds = heartbeat_seconds
        self._connection = open_connection(
            address,
            timeout_seconds=connection_timeout_seconds,
            heartbeat_seconds=heartbeat_seconds,
            implementation=_TappedConnection,
        )
        try:
            self._impl: Any = self._connection._impl
            self._topology = Topology(self._connection, address, subscription.rights)
            gone = None if marked is None else self._find_gone(marked)
            if gone is not None:
                missed(gone)
                marked = None
            for exchange in subscription.exchanges:
                self._topology.ensure_exchange(
                    exchange,
                    exchange_type=subscription.exchange_type,
                    durable=subscription.exchange_durable,
                    declare=subscription.declare,
                )
            self.queue = self._ensure_queue()
            self._bind()
            self.marked = self._make_markers(marked or {}, missed)
            with explained(address, "opening a channel"):
                self._channel = self._open_channel()
            self.channel_number: int = self._channel.channel_number
            self.max_frame_bytes: int = self._impl.params.frame_max or 1 << 30
        except BaseException:
            close_quietly(self._connection)
            raise

    def __str__(self) -> str:
        return f"{self._subscription} on the broker at {self.address} with queue {self.queue}"

    def explain(self, error: BaseException) -> BrokerError:
        return explain(error, self.address, "receiving", self._subscription.rights)

    def consume(self, prefetch_count: int) -> None:
        """Ask for deliveries, at most so many of them unacknowledged."""
        self.is_idle = False
        self._channel.basic_qos(prefetch_count=prefetch_count)
        self._consumer_tag = self._channel.basic_consume(
            self.queue,
            self._on_message,
            consumer_tag="fanout",
            exclusive=self._subscription.is_named,
        )

    def cancel(self) -> None:
        """Ask for no more of them; when `is_idle` is true, none comes any more."""
        if self._consumer_tag is not None:
            self._channel.basic_cancel(self._consumer_tag, callback=self._on_cancelled)
            self._consumer_tag = None

    def ack(self, delivery_tag: int) -> None:
        """Acknowledge this delivery and all before it."""
        self._channel.basic_ack(delivery_tag, multiple=True)

    def count(self) -> None:
        """Ask whether the queue holds messages; `is_empty` is the answer, some time later."""
        if not self._is_counting:
            self._is_counting = True
            self._channel.queue_declare(self.queue, passive=True, callback=self._on_counted)

    @property
    def is_empty(self) -> bool:
        """Whether the queue held nothing, and all that was on its way has come: an answer may
        overtake deliveries, but not two, one after the other."""
        return self._empty_answers >= 2

    def return_unacknowledged(self) -> None:
        """Give what was delivered and not acknowledged back to the queue."""
        self._channel.basic_nack(0, multiple=True, requeue=True)
        self.has_refused = False

    def process(self) -> None:
        """Receive and send until woken. Raises what ended the session."""
        self._connection.process_data_events(time_limit=None)
        if self._lost is not None:
            raise self._lost

    def wake(self) -> None:
        """From any thread: make `process` return."""
        try:
            self._connection.add_callback_threadsafe(_nothing)
        except AMQPError:
            return  # it has ended, and `process` says why

    def close(self) -> None:
        self._impl.tap = None
        close_quietly(self._connection)

    @property
    def _bindings(self) -> list[dict[str, Any]]:
        wanted = self._subscription
        if wanted.is_named and wanted.declare == "none":
            return []  # whoever made the queue has bound it
        return [
            {"exchange": exchange, "routing_key": key, "arguments": dict(wanted.binding_arguments)}
            for exchange in wanted.exchanges
            for key in wanted.routing_keys
        ]

    def _find_gone(self, marked: Mapping[str, str]) -> str | None:
        """What a named queue cannot have collected all without, and is not there."""
        wanted = self._subscription
        if wanted.queue is None or wanted.declare != "auto":
            return None
        if self._topology.look_for_queue(wanted.queue) is None:
            return f"queue {wanted.queue!r} was deleted, with what it held"
        for exchange in wanted.exchanges:
            if exchange in marked and not self._topology.has_exchange(exchange):
                return self._without(exchange, "is gone")
        return None

    def _without(self, exchange: str, how: str) -> str:
        return (
            f"exchange {exchange!r} {how} (deleted, or transient when the broker was restarted), "
            f"and the binding of queue {self._subscription.queue!r} with it"
        )

    def _make_markers(
        self, marked: Mapping[str, str], missed: Callable[[str], None]
    ) -> dict[str, str]:
        """By exchange; nothing for one that cannot be marked. Those that are whole are kept."""
        wanted = self._subscription
        if wanted.queue is None or wanted.declare != "auto":
            return {}
        whole = {}
        for exchange in wanted.exchanges:
            if marker := marked.get(exchange):
                if self._topology.is_marker_whole(marker):
                    whole[exchange] = marker
                else:
                    missed(self._without(exchange, "was gone for a time"))
        # Nobody can delete the broker's own.
        mortal = [name for name in wanted.exchanges if not name.startswith("amq.")]
        made = dict.fromkeys(wanted.exchanges, "")
        for number, exchange in enumerate(mortal):
            marker = marker_of(wanted.queue, number)
            if whole.get(exchange) == marker or self._topology.make_marker(marker, exchange):
                made[exchange] = marker
        return made

    def _ensure_queue(self) -> str:
        wanted = self._subscription
        if wanted.queue is None:
            with explained(self.address, "declaring a queue", wanted.rights):
                setup = self._connection.channel()
                queue: str = setup.queue_declare("", exclusive=True).method.queue
                setup.close()
                return queue
        may_create = wanted.declare == "auto"
        held = self._topology.ensure_queue(
            wanted.queue, may_create=may_create, arguments=wanted.all_queue_arguments
        )
        self.backlog, self._is_new = held or 0, held is None
        if may_create:
            self._topology.own_queue(wanted.queue)
        return wanted.queue

    def _bind(self) -> None:
        wanted = self._subscription
        try:
            with explained(self.address, f"subscribing to {wanted}", wanted.rights):
                setup = self._connection.channel()
                for binding in self._bindings:
                    setup.queue_bind(self.queue, **binding)
                setup.close()
        except BrokerRefused:
            if self._is_new:
                self._topology.discard_queue(self.queue)
            raise

    def _open_channel(self) -> Any:
        """A channel of the connection underneath: a BlockingChannel would keep deliveries."""
        opened: list[Any] = []
        channel = self._impl.channel(on_open_callback=opened.append)
        channel._set_cookie(_Underneath)
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_cancel_callback(self._on_cancelled_by_broker)
        self._connection._flush_output(lambda: bool(opened), lambda: self._lost is not None)
        if self._lost is not None:
            raise self._lost
        return channel

    def attach(self) -> None:
        """Begin to show what is received."""
        self._impl.ioloop.call_later(self._heartbeat_seconds, self._renew_bindings)
        if self._impl.is_tapped:
            self._impl.tap = self._hear
            self._check_life(is_late=False)
            _receive_in_large_pieces(self._impl)
        else:
            _warn_once(
                f"pika {pika.__version__} has no place for a tap: deliveries go through its "
                "callbacks, which costs several times the CPU"
            )

    def _renew_bindings(self) -> None:
        """Nothing tells a queue that its exchange was deleted, and its binding with it. To bind
        again and again finds that out, or binds to the exchange that has taken its place."""
        asked = time.time()

        def bound(_answer: Any) -> None:
            self._last_bound = asked

        for binding in self._bindings:
            if self._channel.is_open:
                self._channel.queue_bind(self.queue, **binding, callback=bound)
        self._impl.ioloop.call_later(self._heartbeat_seconds, self._renew_bindings)

    def _check_life(self, is_late: bool) -> None:
        """A broker sends something every half heartbeat. pika looks for that once in a heartbeat
        and five seconds; this notices within two heartbeats. What has come while we were not
        running is read before the second look."""
        silence = time.monotonic() - self._last_sign
        was_late, is_late = is_late, silence > 1.5 * self._heartbeat_seconds
        if was_late and is_late:
            self._fail(AMQPHeartbeatTimeout(f"nothing came for {silence:.0f} s"))
            return
        self._impl.ioloop.call_later(
            _SECOND_LOOK_SECONDS if is_late else self._heartbeat_seconds / 2 - _SECOND_LOOK_SECONDS,
            lambda: self._check_life(is_late),
        )

    def _hear(self, data: bytes) -> bytes:
        heard = time.monotonic()
        is_stream = heard - self._last_sign < _GATHER_SECONDS
        others = self._take(data)
        if is_stream and len(data) < _RECEIVE_BYTES // 2:
            # A broker sends a few messages at a time. While they keep coming, let some gather
            # in the socket: each piece costs more than many messages do.
            time.sleep(_GATHER_SECONDS)
            heard = time.monotonic()
        self._last_sign, self.last_heard = heard, time.time()
        return others

    def _on_message(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """A delivery that pika has decoded, where there is no tap: made into frames again."""
        self.last_heard = time.time()
        number = self.channel_number
        pieces = [
            frame.Method(number, method).marshal(),
            frame.Header(number, len(body), properties).marshal(),
        ]
        if body:
            pieces.append(frame.Body(number, body).marshal())
        self._take(b"".join(pieces))

    def _on_counted(self, answer: Any) -> None:
        self._is_counting = False
        self._empty_answers = 0 if answer.method.message_count else self._empty_answers + 1
        self.wake()

    def _on_cancelled(self, _answer: Any) -> None:
        self.is_idle = self.has_refused = True
        self.wake()

    def _on_cancelled_by_broker(self, _notice: Any) -> None:
        self._fail(
            ConnectionLost(f"the broker at {self.address} ended the consumer: queue deleted?")
        )

    def _on_channel_closed(self, _channel: Any, reason: Exception) -> None:
        if isinstance(reason, ChannelClosedByBroker) and reason.reply_code == NOT_FOUND:
            self.last_heard = self._last_bound  # since then the exchange may have been gone
        self._fail(reason)

    def _fail(self, reason: Exception) -> None:
        self._lost = self._lost or reason
        self.wake()


def _pattern(names: list[str]) -> str:
    return f"^({'|'.join(names)})$" if names else "^$"


def _receive_in_large_pieces(connection: Any) -> None:
    """pika reads 4 KiB a call, and until the socket is empty; we read what there is, once."""
    transport: Any = getattr(connection, "_transport", None)
    if hasattr(transport, "_MAX_RECV_BYTES") and hasattr(transport, "_MAX_CONSUME_BYTES"):
        transport._MAX_RECV_BYTES = _RECEIVE_BYTES
        transport._MAX_CONSUME_BYTES = 1


def _warn_once(text: str) -> None:
    global _warned
    if not _warned:
        _log.warning(text)
        _warned = True


_warned = False


class _Underneath:
    """Tells a BlockingConnection that closes that a channel is none of its own."""

    is_open = False


def _nothing() -> None:
    """Makes `process` return."""
