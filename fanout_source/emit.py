"""The emitting side: ship a Python program's own logs, or any message, to an exchange.

logging.getLogger().addHandler(FanoutHandler("amqp://…"))
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from datetime import datetime, timezone

from . import log_record
from .address import BrokerAddress
from .errors import OptionError
from .log_record import Message
from .publisher import Publisher
from .severity import SEVERITIES
from .topology import require_exchange_name

__all__ = ["SEVERITIES", "FanoutHandler", "Message", "Publisher"]

_BATCH = 1000
_MAX_RECORD_BYTES = 16 * 1024 * 1024  # far below what a broker refuses
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.5, 30.0
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
}


class FanoutHandler(logging.Handler):
    """Ships log records from a background thread; never blocks or breaks the program.

    Up to `capacity` records wait in memory while the broker is away; beyond that the oldest that
    are not just being sent are dropped, counted in `dropped`, and reported by a record of their
    own once the broker is back. So are records of more than 16 MiB. A record is kept until the
    broker has confirmed it, and may arrive twice (with the same `message_id`) when the connection
    breaks in between. `flush()` and the program's exit wait at most `flush_seconds`; what could
    not be delivered by then is said on stderr.

    A formatter is not used: the text is the message, and what a format would add has fields of its
    own. Records of pika's own loggers are left out: shipping them would feed on itself.
    """

    _closed_for_good: bool

    def __init__(
        self,
        url: str | None = None,
        exchange: str = "logs",
        *,
        app_id: str | None = None,
        capacity: int = 10_000,
        flush_seconds: float = 5.0,
        level: int = logging.NOTSET,
        exchange_type: str = "fanout",
        exchange_durable: bool = False,
        declare: str = "auto",
    ) -> None:
        super().__init__(level)
        # A filter, since it comes before the handler's lock: `logging.shutdown` holds that while
        # it waits for our thread, in which pika logs.
        self.addFilter(_is_not_pikas)
        self._address = BrokerAddress.parse(url) if url else BrokerAddress.from_environment()
        self._exchange = exchange
        require_exchange_name(exchange)
        self._app_id = app_id or os.path.basename(sys.argv[0] or "python")
        if len(self._app_id.encode("utf-8", "surrogateescape")) > 255:
            raise OptionError("app_id is longer than the 255 bytes that AMQP allows")
        self._capacity = capacity
        self._flush_seconds = flush_seconds
        self._topology = {
            "exchange_type": exchange_type,
            "exchange_durable": exchange_durable,
            "declare": declare,
        }
        self._begin()
        _handlers.add(self)
        _deliver_before_exit(self)

    @property
    def dropped(self) -> int:
        """How many records were given up because the buffer was full."""
        return self._dropped

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = self._encode(record)
        except Exception:
            self.handleError(record)
            return
        with self._changed:
            if self._closed_for_good:
                return
            self._enqueue(message)
            if self._thread is None:
                self._start_thread()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all records so far are confirmed, or `flush_seconds` have passed."""
        deadline = time.monotonic() + self._flush_seconds
        with self._changed:
            while (
                self._undelivered
                and not self._gave_up
                and not self._closed_for_good
                and (left := deadline - time.monotonic()) > 0
            ):
                self._changed.wait(left)

    def close(self) -> None:
        with self._changed:
            if self._closed_for_good:
                return
            self._closing = True
            self._changed.notify_all()
        self.flush()
        with self._changed:
            self._closed_for_good = True
            self._changed.notify_all()
            lost, why = self._undelivered, self._last_error
        if lost and logging.raiseExceptions:
            _say(f"{lost} log records were not delivered{f': {why}' if why else ' in time'}")
        super().close()

    def _begin(self) -> None:
        """Start empty: a new handler, or the copy of one in a forked child, whose records are
        the parent's to deliver and whose thread does not exist."""
        self._changed = threading.Condition()
        self._waiting: deque[Message] = deque()
        self._under_way: list[Message] = []
        self._thread: threading.Thread | None = None
        self._dropped = self._dropped_unreported = 0
        self._last_error: Exception | None = None
        self._gave_up = False
        self._closing = False
        self._closed_for_good = False

    @property
    def _undelivered(self) -> int:
        return len(self._waiting) + len(self._under_way)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="fanout-handler", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the interpreter is shutting down
            self._gave_up, self._last_error = True, error
        else:
            self._thread = thread

    def _enqueue(self, message: Message) -> None:
        if len(message.body) > _MAX_RECORD_BYTES:
            self._dropped += 1
            self._dropped_unreported += 1
            return
        if self._undelivered >= self._capacity and self._waiting:
            self._waiting.popleft()
            self._dropped += 1
            self._dropped_unreported += 1
        self._waiting.append(message)

    def _encode(self, record: logging.LogRecord) -> Message:
        extras = {k: v for k, v in vars(record).items() if k not in _STANDARD_ATTRIBUTES}
        if record.exc_info and record.exc_info[0] is not None:
            extras["exception"] = "".join(traceback.format_exception(*record.exc_info))
        if record.stack_info:
            extras["stack"] = record.stack_info
        return log_record.encode(
            record.getMessage(),
            severity=severity_of(record.levelno),
            logger=record.name,
            app_id=self._app_id,
            time=datetime.fromtimestamp(record.created, timezone.utc),
            extras=extras,
        )

    def _run(self) -> None:
        publisher: Publisher | None = None
        retry_seconds = _FIRST_RETRY_SECONDS
        while self._take_batch():
            try:
                publisher = publisher or Publisher(
                    self._address,
                    self._exchange,
                    **self._topology,  # type: ignore[arg-type]
                )
                reported = self._report_dropped(publisher)
                for message in self._under_way:
                    publisher.publish(*message)
                publisher.flush()
            except Exception as error:
                if publisher is not None:
                    publisher.close()
                    publisher = None
                self._note_failure(error)
                self._pause(retry_seconds)
                retry_seconds = min(2 * retry_seconds, _LAST_RETRY_SECONDS)
                continue
            retry_seconds = _FIRST_RETRY_SECONDS
            with self._changed:
                self._under_way = []
                self._dropped_unreported -= reported
                self._last_error = None
                self._changed.notify_all()
        if publisher is not None:
            publisher.close()

    def _take_batch(self) -> bool:
        """Wait for records and put some under way; false when it is time to end."""
        with self._changed:
            while not self._undelivered and not self._closing:
                self._changed.wait()
            if self._closed_for_good:
                return False
            while self._waiting and len(self._under_way) < _BATCH:
                self._under_way.append(self._waiting.popleft())
            return bool(self._under_way)

    def _report_dropped(self, publisher: Publisher) -> int:
        count = self._dropped_unreported
        if count:
            text = (
                f"{count} log records were dropped: the broker was away for too long, "
                "or they were too long"
            )
            publisher.publish(
                *log_record.encode(text, severity="warning", logger=__name__, app_id=self._app_id)
            )
        return count

    def _note_failure(self, error: Exception) -> None:
        if self._last_error is None and logging.raiseExceptions:
            _say(f"log records are kept in memory for now: {error}")
        self._last_error = error

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._closed_for_good and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def _deliver_before_exit(self) -> None:
        """Then nothing is left for `close`, or it need not wait once more."""
        self.flush()
        with self._changed:
            self._gave_up = self._undelivered > 0


def severity_of(level: int) -> str:
    """The severity that a level of `logging` stands for."""
    return SEVERITIES[max(0, min(level // 10 - 1, len(SEVERITIES) - 1))]


def _is_not_pikas(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] != "pika"


def _say(line: str) -> None:
    if sys.stderr is not None:
        print(f"fanout: {line}", file=sys.stderr)


def _deliver_before_exit(handler: FanoutHandler) -> None:
    """Deliver what waits while threads can still be started, which `logging.shutdown` is too
    late for from Python 3.12 on. The thread stays for what `atexit` callbacks log."""
    register = getattr(threading, "_register_atexit", atexit.register)
    reference = weakref.ref(handler)

    def deliver() -> None:
        if (alive := reference()) is not None:
            alive._deliver_before_exit()

    register(deliver)


def _begin_in_child() -> None:
    for handler in list(_handlers):
        handler._begin()


_handlers: weakref.WeakSet[FanoutHandler] = weakref.WeakSet()
os.register_at_fork(after_in_child=_begin_in_child)
