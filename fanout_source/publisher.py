"""Publishing with confirms, many messages under way at a time.

pika's `BlockingChannel.basic_publish` makes one system call a message, and with confirms waits
for each. Here the caller's thread only turns a message into frames (pika's own); a thread that
owns the connection writes whatever has gathered in one piece and counts the broker's confirms,
which mostly come many at a time. Measured by `make bench-emit`.
"""

from __future__ import annotations

import re
import threading
from types import TracebackType
from typing import Any

import pika
from pika import frame, spec
from pika.exceptions import AMQPError

from .address import BrokerAddress
from .connection import (
    CLOSE_TIMEOUT_SECONDS,
    CONNECTION_TIMEOUT_SECONDS,
    HEARTBEAT_SECONDS,
    close_quietly,
    end_within,
    explain,
    explained,
    open_connection,
)
from .errors import BrokerError, OptionError, PublishFailed
from .topology import Topology

MAX_UNCONFIRMED_MESSAGES = 20_000
MAX_WAITING_BYTES = 4 * 1024 * 1024
CONFIRM_TIMEOUT_SECONDS = 30.0


class Publisher:
    """Publishes to one exchange. For one thread; use it in a `with` block.

    Entering the block has connected and found or created the exchange. `publish` returns at
    once unless the broker lags; `flush` returns when every message so far is confirmed, and
    leaving the block flushes. A message that was not confirmed when an error was raised may or
    may not have arrived: publish it again with the same `message_id`.

    Messages that ask for it (`mandatory`) come back when they reach no queue; `flush` then raises.

    With `confirm=False`, `flush` only means that all was handed to the operating system.
    Memory is bounded: `publish` waits while 20,000 messages are unconfirmed or 4 MiB unsent.
    """

    def __init__(
        self,
        address: BrokerAddress,
        exchange: str = "logs",
        *,
        exchange_type: str = "fanout",
        exchange_durable: bool = False,
        declare: str = "auto",
        confirm: bool = True,
        confirm_timeout_seconds: float = CONFIRM_TIMEOUT_SECONDS,
        connection_timeout_seconds: float = CONNECTION_TIMEOUT_SECONDS,
        heartbeat_seconds: int = HEARTBEAT_SECONDS,
    ) -> None:
        self._address = address
        self._exchange = exchange
        self._confirm = confirm
        self._confirm_timeout_seconds = confirm_timeout_seconds
        self._method_frames: dict[str, bytes] = {}
        # The least that it needs, where the exchange exists.
        self._rights = ("^$", f"^({re.escape(exchange)})$", "^$")

        self._changed = threading.Condition()  # guards everything below
        self._outbox: list[bytes | memoryview] = []
        self._outbox_bytes = 0
        self._woken = False
        self._published = 0
        self._confirmed = 0  # all messages up to this one are
        self._confirmed_ahead: set[int] = set()
        self._blocked: str | None = None
        self._returned, self._returned_key = 0, ""
        self._error: BrokerError | None = None
        self._closing = False

        self._connection = open_connection(
            address,
            timeout_seconds=connection_timeout_seconds,
            heartbeat_seconds=heartbeat_seconds,
        )
        try:
            Topology(self._connection, address, self._rights).ensure_exchange(
                exchange,
                exchange_type=exchange_type,
                durable=exchange_durable,
                declare=declare,
            )
            with explained(address, "opening a channel"):
                self._channel = self._open_channel()
        except BaseException:
            close_quietly(self._connection)
            raise
        # Handed over whole: from here on only this thread touches the connection.
        self._thread = threading.Thread(target=self._run, name="fanout-publisher", daemon=True)
        self._thread.start()

    def publish(
        self, body: bytes, properties: pika.BasicProperties | None = None, routing_key: str = ""
    ) -> None:
        """Hand one message over. Raises what ended the connection, if something has."""
        self.publish_frames(
            self._frames(body, properties or pika.BasicProperties(), routing_key), 1
        )

    def publish_frames(self, frames: bytes | memoryview, messages: int) -> None:
        """Hand over messages that are frames already, for `channel_number`."""
        with self._changed:
            if self._outbox_bytes >= MAX_WAITING_BYTES or self._lag >= MAX_UNCONFIRMED_MESSAGES:
                self._wait_for_progress(
                    lambda: (
                        self._outbox_bytes < MAX_WAITING_BYTES
                        and self._lag < MAX_UNCONFIRMED_MESSAGES
                    )
                )
            if self._error is not None:
                raise self._failure(self._error)
            self._outbox.append(frames)
            self._outbox_bytes += len(frames)
            self._published += messages
            wake, self._woken = not self._woken, True
        if wake:
            self._wake()

    def flush(self, up_to: int | None = None) -> None:
        """Wait until every message so far, or every one up to this number, is confirmed, or raise
        `PublishFailed`."""
        with self._changed:
            last = self._published if up_to is None else up_to
            self._wait_for_progress(lambda: self._confirmed >= last)
        self.require_routed()
        with self._changed:
            if self._error is not None and self._confirmed < last:
                raise self._failure(self._error)

    def require_routed(self) -> None:
        """Raise `PublishFailed` when messages have come back."""
        with self._changed:
            count, self._returned = self._returned, 0
        if count:
            raise PublishFailed(
                f"{count} messages reached no queue behind exchange {self._exchange!r} on the "
                f"broker at {self._address}: nobody is subscribed, or not with their routing "
                f"keys (such as {self._returned_key!r})"
            )

    def close(self) -> None:
        """End the connection; what was not flushed may be lost."""
        with self._changed:
            self._closing = True
        self._wake()
        end_within(self._connection, CLOSE_TIMEOUT_SECONDS)
        self._thread.join()

    @property
    def confirmed(self) -> int:
        """How many messages the broker has taken responsibility for."""
        with self._changed:
            return self._confirmed + len(self._confirmed_ahead)

    @property
    def published(self) -> int:
        """How many messages have been handed over."""
        return self._published

    @property
    def confirmed_without_hole(self) -> int:
        """The same for all messages from the first one up to this number."""
        with self._changed:
            return self._confirmed

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    @property
    def _lag(self) -> int:
        return self._published - self._confirmed

    def _wait_for_progress(self, done: Any) -> None:
        """Wait for `done`, for as long as something is confirmed now and then."""
        while not done() and self._error is None:
            before = self._confirmed, self._outbox_bytes
            if not self._changed.wait(self._confirm_timeout_seconds) and before == (
                self._confirmed,
                self._outbox_bytes,
            ):
                why = f" (it blocks publishers: {self._blocked})" if self._blocked else ""
                raise self._failure(
                    PublishFailed(
                        f"the broker at {self._address} confirmed nothing for "
                        f"{self._confirm_timeout_seconds:g} s{why}"
                    )
                )

    def _failure(self, cause: BrokerError) -> PublishFailed:
        failed = PublishFailed(f"{cause}; {self._lag} messages were not confirmed")
        failed.__cause__ = cause
        return failed

    def _frames(self, body: bytes, properties: pika.BasicProperties, routing_key: str) -> bytes:
        method = self._method_frames.get(routing_key)
        try:
            if method is None:
                publish = spec.Basic.Publish(exchange=self._exchange, routing_key=routing_key)
                method = frame.Method(self.channel_number, publish).marshal()
                if len(self._method_frames) < 1000:
                    self._method_frames[routing_key] = method
            header = frame.Header(self.channel_number, len(body), properties).marshal()
        except (AMQPError, UnicodeError) as error:
            raise OptionError(
                f"a routing key or property cannot be sent: {error} (AMQP allows 255 bytes, UTF-8)"
            ) from error
        if len(header) - _FRAME_OVERHEAD > self.body_max:
            raise OptionError(
                f"the headers take {len(header)} bytes; the broker's limit is {self.body_max}"
            )
        if 0 < len(body) <= self.body_max:
            return b"".join((method, header, frame.Body(self.channel_number, body).marshal()))
        pieces = [method, header]
        for start in range(0, len(body), self.body_max):
            piece = body[start : start + self.body_max]
            pieces.append(frame.Body(self.channel_number, piece).marshal())
        return b"".join(pieces)

    def _open_channel(self) -> Any:
        """A channel whose confirms come to `_on_confirmation`, which BlockingChannel cannot do."""
        blocking = self._connection.channel()
        channel: Any = blocking._impl
        # Of the connection underneath: BlockingConnection keeps its own callbacks back until all
        # is written, which a broker that blocks publishers prevents.
        channel.connection.add_on_connection_blocked_callback(self._on_blocked)
        channel.connection.add_on_connection_unblocked_callback(self._on_unblocked)
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_return_callback(self._on_returned)
        if self._confirm:
            selected: list[Any] = []
            channel.confirm_delivery(self._on_confirmation, callback=selected.append)
            blocking._flush_output(lambda: bool(selected))
        self.channel_number = channel.channel_number
        self.body_max: int = channel.connection._body_max_length
        return channel

    def _wake(self) -> None:
        try:
            self._connection.add_callback_threadsafe(_nothing)
        except AMQPError:
            return  # it has ended; `_run` has said why

    def _run(self) -> None:
        try:
            self._write_until_closed()
        except Exception as error:
            self._fail(self._explained(error))
        finally:
            close_quietly(self._connection)

    def _write_until_closed(self) -> None:
        """Write what gathers. pika returns when woken, and only once all before is written."""
        written = 0
        while True:
            self._connection.process_data_events(time_limit=None)
            with self._changed:
                if not self._confirm:
                    self._confirmed = written
                if self._closing or self._error is not None:
                    return
                frames, self._outbox, self._outbox_bytes = self._outbox, [], 0
                written, self._woken = self._published, False
                self._changed.notify_all()
            if frames:
                self._channel.connection._output_marshaled_frames([b"".join(frames)])
                if not self._confirm:
                    self._wake()  # come back as soon as it is written

    def _on_confirmation(self, confirmation: Any) -> None:
        method = confirmation.method
        if isinstance(method, spec.Basic.Nack):
            self._fail(
                PublishFailed(
                    f"the broker at {self._address} refused a message to exchange "
                    f"{self._exchange!r} (a queue is full or failed)"
                )
            )
            return
        with self._changed:
            if method.multiple:
                self._confirmed = max(self._confirmed, method.delivery_tag)
                self._confirmed_ahead = {
                    tag for tag in self._confirmed_ahead if tag > self._confirmed
                }
            else:
                self._confirmed_ahead.add(method.delivery_tag)
            while self._confirmed + 1 in self._confirmed_ahead:
                self._confirmed += 1
                self._confirmed_ahead.remove(self._confirmed)
            self._changed.notify_all()

    def _on_returned(self, _channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        with self._changed:
            self._returned += 1
            self._returned_key = method.routing_key

    def _on_blocked(self, _connection: Any, notice: Any) -> None:
        with self._changed:
            self._blocked = notice.method.reason or "no reason given"

    def _on_unblocked(self, _connection: Any, _notice: Any) -> None:
        with self._changed:
            self._blocked = None

    def _on_channel_closed(self, _channel: Any, reason: Exception) -> None:
        if self._closing:
            return
        self._fail(self._explained(reason))
        self._wake()

    def _explained(self, error: BaseException) -> BrokerError:
        doing = f"publishing to exchange {self._exchange!r}"
        return explain(error, self._address, doing, self._rights)

    def _fail(self, error: BrokerError) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()


_FRAME_OVERHEAD = 8  # seven bytes before the payload, one after it


def _nothing() -> None:
    """Makes `process_data_events` return."""
