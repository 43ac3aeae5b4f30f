"""Receive, spool, sync, ack: a subscription whose messages are on disk before the broker forgets.

Two threads. One owns the connection and never touches the disk, so that heartbeats do not wait
for it; the other writes what the first has gathered to the spool, after which the first acks it.
A message is acked only when it is durable, and a batch is written when someone waits for it, when
there is much of it, or when it has waited long.

Three things bound what is held. The prefetch count bounds what the broker sends ahead; it is
lowered when messages are large. At three quarters of the spool's limit the consumer is cancelled
and what was still on its way is taken; the backlog then waits in the broker until half of the
spool is free. What would go beyond the limit all the same is not taken, and goes back to the
queue.

A queue of our own goes with its connection. Whatever ended that, a new subscription follows, after
pauses that double up to two seconds, and the time between the two is recorded as a gap.

A named queue stays and goes on collecting, so that there is a gap only when it was not there any
more. It gives back what was not acked when the connection ended: what is only in memory by then is
dropped, what is in the spool is recognised (`redelivery`).
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from .address import BrokerAddress
from .connection import CONNECTION_TIMEOUT_SECONDS, HEARTBEAT_SECONDS, with_any
from .delivery_tap import Deliveries, DeliveryTap
from .errors import (
    BrokerError,
    BrokerRefused,
    FanoutError,
    MessagesMissed,
    NodeDown,
    NotPermitted,
    OptionError,
    QueueBusy,
)
from .failpoints import reach
from .flow import Flow
from .redelivery import Redeliveries
from .spool import Gap, Spool
from .subscription import Session, Subscription

PREFETCH_COUNT = 20_000
MAX_SPOOL_BYTES = 1024**3
FLUSH_AFTER_ROWS = 4096  # larger acks make the broker stutter (make bench)
FLUSH_AFTER_BYTES = 16 * 1024**2
FLUSH_AFTER_SECONDS = 0.5  # what a kill can take, while nobody asks for more
SIGN_OF_LIFE_SECONDS = 10.0
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.1, 2.0
_STABLE_SECONDS = 10.0
_BUSY_SECONDS = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Status:
    """What a receiver knows of itself."""

    queue: str | None  # None: not subscribed just now
    next_offset: int
    spool_bytes: int
    paused: bool
    resubscriptions: int
    gaps: int
    latest_gap: Gap | None
    recognised: int = 0  # came again, and are in the spool once
    in_doubt: int = 0  # came again, and may be in the spool twice


class Receiver:
    """One subscriber. `with Receiver(address, spool) as receiver: …` has subscribed and consumes.

    `wait_for_more` says up to which offset messages are durable; `drop_below` frees the disk of
    those that are no longer needed. Both can be called from any thread, and raise what has ended
    the receiver: a broker that refuses, or a disk that does not write. A broker that is away ends
    nothing, unless `fail_on_gap` is true and messages may have been missed.
    """

    def __init__(
        self,
        address: BrokerAddress | Sequence[BrokerAddress],
        spool: Spool,
        subscription: Subscription | None = None,
        *,
        prefetch_count: int = PREFETCH_COUNT,
        max_spool_bytes: int = MAX_SPOOL_BYTES,
        flush_after_rows: int = FLUSH_AFTER_ROWS,
        flush_after_bytes: int = FLUSH_AFTER_BYTES,
        connection_timeout_seconds: float = CONNECTION_TIMEOUT_SECONDS,
        heartbeat_seconds: int = HEARTBEAT_SECONDS,
        fail_on_gap: bool = False,
    ) -> None:
        _require("prefetch_count", prefetch_count, 1, 65535)
        _require("max_spool_bytes", max_spool_bytes, 1)
        _require("heartbeat_seconds", heartbeat_seconds, 1, 65535)
        _require("connection_timeout_seconds", connection_timeout_seconds, 0.001)
        self._addresses = [address] if isinstance(address, BrokerAddress) else list(address)
        self._spool = spool
        self._subscription = subscription or Subscription()
        self._flush_after_rows = flush_after_rows
        self._flush_after_bytes = flush_after_bytes
        self._connection_timeout_seconds = connection_timeout_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._fail_on_gap = fail_on_gap
        self._redeliveries: Redeliveries | None = None
        if self._subscription.is_named:
            # No less than the default: what comes again may have been sent ahead before a restart
            # with other options.
            self._redeliveries = Redeliveries(spool, max(prefetch_count, PREFETCH_COUNT))

        self._changed = threading.Condition()  # guards everything below
        self._session: Session | None = None
        self._tap = DeliveryTap(0, max_frame_bytes=0)
        self._gathered = Deliveries()
        self._writing: Deliveries | None = None
        self._settled_rows = 0  # of those that were received: durable, or not needed
        self._durable_end = spool.end
        self._durable_tag = self._acked_tag = 0
        self._settled_before = 0  # this session
        self._count_wanted = False
        self._flow = Flow(prefetch_count, max_spool_bytes)
        self._let_go_below = 0
        self._flushes_wanted = 0
        self._consuming = False
        self._draining = False  # the consumer is being stopped
        self._stopped_at: float | None = None  # since when the broker keeps what comes
        self._missed_since = spool.last_active
        self._missed: str | None = None  # why, until it is recorded
        self._marked: dict[str, str] | None = None  # of a named queue that we have had before
        self._closing = False
        self._error: FanoutError | None = None
        self._resubscriptions = 0
        self._threads: list[threading.Thread] = []

    def subscribe(self) -> None:
        """Bind a queue of our own to the exchange: from now on nothing is missed.

        What the broker could not do raises here, at once. Nothing is taken before `consume`.
        """
        if self._threads:
            raise FanoutError("this receiver has subscribed already: make another one")
        was_subscribed, note = self._spool.was_subscribed, self._spool.note
        is_other = note.get("queue") != self._subscription.queue
        if was_subscribed and self._subscription.is_named and not is_other:
            self._marked = note["marked"]
            if note.get("missed"):  # and nobody has accepted it yet
                self._miss(note["missed"])
        session = self._open_session_when_free()
        _log.info("subscribed to %s", session)
        if was_subscribed and is_other:
            self._missed = "the subscription had another queue"
        elif was_subscribed and not self._subscription.is_named:
            self._missed = "the subscriber was not running"
        self._settle_session(session)
        self._spool.was_subscribed = True
        self._spool.touch()
        self._begin_session(session)
        for run in (self._receive, self._write):
            thread = threading.Thread(target=self._guarded, args=(run,), daemon=True)
            thread.name = f"fanout{run.__name__}"
            thread.start()
            self._threads.append(thread)

    def consume(self) -> None:
        """Begin to take messages."""
        with self._changed:
            self._consuming = True
        self._wake()

    def wait_for_more(self, offset: int, timeout_seconds: float = 0.0) -> int:
        """Make what was received durable and return the end of it, exclusive.

        While that is not beyond `offset`, waits for a first message for up to `timeout_seconds`.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            self._flushes_wanted += 1
            self._changed.notify_all()
            received = self._received_rows
            try:
                while self._error is None:
                    end, is_settled = self._durable_end, self._settled_rows >= received
                    left = 0.0 if self._closing else deadline - time.monotonic()
                    if is_settled and (end > offset or left <= 0):
                        return end
                    if offset >= self._next_offset and self._flow.want_sip():
                        self._wake()
                    self._changed.wait(left if is_settled else None)
                raise self._error
            finally:
                self._flushes_wanted -= 1

    def is_drained(self) -> bool:
        """Whether all that a named queue held when we connected has been taken, and acked."""
        with self._changed:
            session = self._session
            if session is None or not self._consuming or self._acked_tag < self._durable_tag:
                return False
            taken = self._settled_rows - self._settled_before
            if taken >= session.backlog > 0 or (session.is_empty and not self._unsettled_rows):
                return True
            self._count_wanted = True  # some may have expired, or were not counted at first
        self._wake()
        return False

    def drop_below(self, offset: int) -> None:
        """Let go of the messages below `offset`, as far as whole segments hold no others."""
        keep_rows, keep_bytes = 0, 0
        if self._redeliveries is not None:
            keep_rows, keep_bytes = self._redeliveries.window, self._flow.max_spool_bytes // 8
        is_less = self._spool.drop_below(offset, keep_rows=keep_rows, keep_bytes=keep_bytes)
        with self._changed:
            has_moved, self._let_go_below = offset > self._let_go_below, offset
        if is_less or has_moved:
            with self._changed:
                self._flow.let_go()
                self._changed.notify_all()
            self._wake()

    def status(self) -> Status:
        with self._changed:
            gaps = self._spool.latest_gaps
            return Status(
                queue=self._session.queue if self._session else None,
                next_offset=self._next_offset,
                spool_bytes=self._spool.bytes,
                paused=self._consuming and (self._draining or self._tap.into is None),
                resubscriptions=self._resubscriptions,
                gaps=self._spool.gap_count,
                latest_gap=gaps[-1] if gaps else None,
                recognised=self._redeliveries.recognised if self._redeliveries else 0,
                in_doubt=self._redeliveries.in_doubt if self._redeliveries else 0,
            )

    def close(self) -> None:
        """End the subscription; what was received is made durable first."""
        with self._changed:
            self._closing = True
            self._tap.into = None
            self._changed.notify_all()
        self._wake()
        for thread in self._threads:
            thread.join()
        self._spool.last_active = time.time()

    def __enter__(self) -> Receiver:
        self.subscribe()
        self.consume()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _next_offset(self) -> int:
        return self._durable_end + self._unsettled_rows

    @property
    def _received_rows(self) -> int:
        return self._settled_rows + self._unsettled_rows

    @property
    def _unsettled_rows(self) -> int:
        return (self._writing.rows if self._writing else 0) + self._gathered.rows

    @property
    def _buffered_bytes(self) -> int:
        return self._gathered.bytes + (self._writing.bytes if self._writing else 0)

    def _wake(self) -> None:
        session = self._session
        if session is not None:
            session.wake()

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except FanoutError as error:
            self._fail(error)
        except Exception as error:
            failure = FanoutError(f"the receiver failed: {error!r}")
            failure.__cause__ = error
            self._fail(failure)

    def _fail(self, error: FanoutError) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
        self._wake()

    # ── the thread that owns the connection ──────────────────────────────────────────────────

    def _receive(self) -> None:
        """Serve one session after the other, until closed."""
        pause_seconds = _FIRST_RETRY_SECONDS
        while (session := self._session) is not None:
            cause, began = None, time.monotonic()
            try:
                self._serve(session)
            except Exception as error:
                cause = session.explain(error)
            self._end_session(session)
            if cause is None:
                return
            if isinstance(cause, NotPermitted) or (
                self._fail_on_gap and not self._subscription.is_named
            ):
                raise cause
            _log.warning("the subscription to %s ended: %s; trying again", session, cause)
            if time.monotonic() - began > _STABLE_SECONDS:
                pause_seconds = _FIRST_RETRY_SECONDS
            renewed, pause_seconds = self._reopen_session(pause_seconds)
            if renewed is not None:
                _log.info("subscribed again to %s", renewed)
                if not self._subscription.is_named:
                    self._missed = str(cause)
                    self._missed_since = min(session.last_heard, self._stopped_at or math.inf)
                self._settle_session(renewed)
                self._begin_session(renewed)
                self._resubscriptions += 1

    def _serve(self, session: Session) -> None:
        """Receive until closed; between times ack what is durable, and start or stop deliveries."""
        while True:
            with self._changed:
                tag, acked, step = self._durable_tag, self._acked_tag, self._next_step(session)
                count_wanted, self._count_wanted = self._count_wanted, False
            if tag > acked:
                reach("receiver.ack")
                session.ack(tag)
                self._acked_tag = tag
            if count_wanted:
                session.count()
            if step == "end":
                return
            if step == "stop":
                session.cancel()
            if step == "return":
                # What was delivered and not acked by now was refused, or came after the cancel. A
                # broker closes the channel of a consumer that keeps messages for long.
                session.return_unacknowledged()
                continue
            if step == "start":
                session.consume(self._flow.window)
            session.process()
            if tag > acked:
                reach("receiver.acked")

    def _next_step(self, session: Session) -> str | None:
        buffered = self._buffered_bytes
        if self._error is not None or (self._closing and not buffered):
            return "end"
        if not session.is_idle:
            if self._draining or not self._flow.should_stop(self._spool.bytes, buffered):
                return None
            self._draining, self._stopped_at = True, time.time()
            self._changed.notify_all()
            return "stop"
        if not buffered and session.has_refused:
            return "return"
        if buffered or not self._consuming or self._closing:
            return None
        if self._flow.start(self._spool.bytes) is None:
            return None
        self._tap.into, self._draining, self._stopped_at = self._gathered, False, None
        return "start"

    def _take(self, data: bytes) -> bytes:
        """What the session shows of all that it receives."""
        with self._changed:
            gathered, spool_bytes = self._gathered, self._spool.bytes
            if self._flow.must_refuse(spool_bytes, self._buffered_bytes):
                self._tap.into = None
            rows, size = gathered.rows, gathered.bytes
            others = self._tap.feed(data)
            self._flow.take(gathered.rows - rows, gathered.bytes - size)
            if self._is_flush_due() or (rows == 0 and gathered.rows):
                self._changed.notify_all()  # the writer, or its clock
            if not self._draining and self._flow.should_stop(spool_bytes, self._buffered_bytes):
                self._wake()
        return others

    def _open_session(self) -> Session:
        return with_any(
            self._addresses,
            lambda address: Session(
                address,
                self._subscription,
                self._take,
                marked=self._marked,
                missed=self._miss,
                connection_timeout_seconds=self._connection_timeout_seconds,
                heartbeat_seconds=self._heartbeat_seconds,
            ),
        )

    def _open_session_when_free(self) -> Session:
        """The consumer of a predecessor that was killed may be there for a moment."""
        deadline, is_said = time.monotonic() + _BUSY_SECONDS, False
        while True:
            try:
                return self._open_session()
            except QueueBusy as error:  # noqa: PERF203
                if time.monotonic() > deadline:
                    raise
                if not is_said:
                    _log.info("waiting for up to %g s: %s", _BUSY_SECONDS, error)
                is_said = True
                time.sleep(_LAST_RETRY_SECONDS / 4)

    def _miss(self, reason: str) -> None:
        """A named queue has not collected all."""
        # Kept: once all is made anew, nothing else shows it.
        note = self._spool.note
        since = note.get("missed_since", self._missed_since)  # by an earlier start
        self._spool.remember({**note, "missed": reason, "missed_since": since})
        self._missed_since = since
        if self._fail_on_gap:
            raise MessagesMissed(f"{reason}; failOnDataLoss=false records the gap and goes on")
        self._missed = reason

    def _settle_session(self, session: Session) -> None:
        """Record what was missed before it, and what is to be known after it."""
        try:
            note = {
                "queue": self._subscription.queue,
                "brokers": [str(address) for address in self._addresses],
                "marked": session.marked,
            }
            if self._missed is not None:
                self._keep_gap(self._missed_since, self._missed, note)
                self._missed = None
            self._spool.remember(note)
        except BaseException:
            session.close()
            raise
        if self._subscription.is_named:
            self._marked = session.marked

    def _begin_session(self, session: Session) -> None:
        with self._changed:
            self._tap = DeliveryTap(session.channel_number, max_frame_bytes=session.max_frame_bytes)
            self._session = session
            self._settled_before = self._received_rows
            self._draining = True  # write what is left of the last session first
            self._stopped_at = time.time()
        session.attach()

    def _end_session(self, session: Session) -> None:
        session.close()
        with self._changed:
            self._session = None
            self._missed_since = session.last_heard
            if self._subscription.is_named:
                # It comes again.
                self._settled_rows += self._gathered.rows
                self._gathered, self._tap.into = Deliveries(), None
                self._changed.notify_all()
            # What was received stays ours; but the tags mean nothing any more.
            self._durable_tag = self._acked_tag = self._gathered.last_tag = 0
            if self._writing is not None:
                self._writing.last_tag = 0

    def _reopen_session(self, pause_seconds: float) -> tuple[Session | None, float]:
        """Try until it works; also says how long to pause before the next time. Raises when the
        broker refuses; None when we are closed before."""
        said = ""
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing, pause_seconds * random.uniform(0.5, 1)
                )
                if self._closing:
                    return None, pause_seconds
            pause_seconds = min(2 * pause_seconds, _LAST_RETRY_SECONDS)
            try:
                return self._open_session(), pause_seconds
            except BrokerRefused:
                raise
            except BrokerError as error:
                if isinstance(error, NodeDown):
                    self._miss(f"the node of queue {self._subscription.queue!r} was down")
                if str(error) != said:
                    said = str(error)
                    _log.warning("not subscribed: %s; trying again", said)

    def _keep_gap(self, since: float, reason: str, note: dict[str, Any]) -> None:
        with self._changed:
            if self._redeliveries is not None:  # not all of what is being written will be kept
                self._changed.wait_for(lambda: self._writing is None or self._error is not None)
            offset = self._next_offset
        now = time.time()
        _log.warning("gap of %.1f s before offset %d: %s", now - since, offset, reason)
        self._spool.record_gap(Gap(offset, since, now, reason), note)

    # ── the thread that writes ───────────────────────────────────────────────────────────────

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._is_flush_due():
                    if self._closing or self._error is not None:
                        return
                    if self._gathered.rows:
                        self._changed.wait(FLUSH_AFTER_SECONDS)
                    elif not self._changed.wait(SIGN_OF_LIFE_SECONDS):
                        self._spool.touch()
                self._writing, self._gathered = self._gathered, Deliveries()
                if self._tap.into is not None:
                    self._tap.into = self._gathered
                writing = self._writing
            batch = writing.to_batch()
            if self._redeliveries is not None:
                batch = self._redeliveries.sift(batch)
            reach("receiver.write")
            end = self._spool.append(batch).end if batch.num_rows else self._spool.end
            with self._changed:
                self._writing, self._durable_end = None, end
                self._settled_rows += writing.rows
                self._durable_tag = writing.last_tag or self._durable_tag
                self._changed.notify_all()
            self._wake()

    def _is_flush_due(self) -> bool:
        gathered = self._gathered
        return gathered.rows > 0 and (
            self._flushes_wanted > 0
            or self._draining
            or self._closing
            or gathered.rows >= self._flush_after_rows
            or gathered.bytes >= self._flush_after_bytes
            or 2 * gathered.rows >= self._flow.window
            or time.monotonic() - gathered.oldest >= FLUSH_AFTER_SECONDS
        )


def is_of(
    note: Mapping[str, Any], addresses: Sequence[BrokerAddress], subscription: Subscription
) -> bool:
    """Whether a receiver has left this note in its spool that had the same named queue."""
    brokers = {str(address) for address in addresses}
    is_same = subscription.is_named and note.get("queue") == subscription.queue
    return is_same and not brokers.isdisjoint(note.get("brokers", ()))


def _require(name: str, value: float, least: float, most: float = float("inf")) -> None:
    if not least <= value <= most:
        bounds = f"at least {least}" if most == float("inf") else f"from {least} to {most}"
        raise OptionError(f"{name} is {value}: it must be {bounds}")
