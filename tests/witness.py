"""What the broker has been told: a proxy that reads along and knows which messages were acked."""

from __future__ import annotations

import itertools
import socket
import struct
import threading

from proxy import Proxy

_METHOD, _HEADER, _BODY = 1, 2, 3
_CONSUME, _DELIVER, _ACK = (60, 20), (60, 60), (60, 80)


class Witness(Proxy):
    """`acked` holds the bodies of all messages that any client has acknowledged, with a count;
    `subscriptions` counts the connections on which somebody has consumed."""

    def __init__(self, host: str, port: int, *, at: int = 0) -> None:
        self.acked: dict[bytes, int] = {}
        self.subscriptions = 0
        self._conversations: dict[socket.socket, _Conversation] = {}
        super().__init__(host, port, at=at)

    def on_acked(self, bodies: list[bytes]) -> None:
        """Called with what one ack stands for."""
        for body in bodies:
            self.acked[body] = self.acked.get(body, 0) + 1

    def on_subscribed(self) -> None:
        self.subscriptions += 1

    def _connected(self, client: socket.socket, server: socket.socket) -> None:
        conversation = _Conversation(self)
        self._conversations[client] = self._conversations[server] = conversation

    def _passing(self, source: socket.socket, data: bytes) -> None:
        self._conversations[source].hear(source, data)


class _Conversation:
    def __init__(self, witness: Witness) -> None:
        self._witness = witness
        self._has_consumed = False
        self._lock = threading.Lock()
        self._left: dict[socket.socket, bytes] = {}
        self._open: dict[int, dict[int, bytes]] = {}  # channel, delivery tag, body
        self._tag: dict[int, int] = {}

    def hear(self, source: socket.socket, data: bytes) -> None:
        data = self._left.get(source, b"") + data
        if data.startswith(b"AMQP"):
            data = data[8:]
        at = 0
        with self._lock:
            while len(data) >= at + 7:
                kind, channel, size = struct.unpack_from(">BHI", data, at)
                if len(data) < at + 8 + size:
                    break
                self._frame(kind, channel, data[at + 7 : at + 7 + size])
                at += 8 + size
        self._left[source] = data[at:]

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        waiting = self._open.setdefault(channel, {})
        if kind == _METHOD:
            method = struct.unpack_from(">HH", payload)
            if method == _DELIVER:
                after = 5 + payload[4]
                (self._tag[channel],) = struct.unpack_from(">Q", payload, after)
            elif method == _ACK:
                tag, multiple = struct.unpack_from(">QB", payload, 4)
                tags = [tag]
                if multiple:  # they are in their order
                    tags = list(itertools.takewhile(lambda t: t <= tag, waiting))
                self._witness.on_acked([waiting.pop(each) for each in tags])
            elif method == _CONSUME and not self._has_consumed:
                self._has_consumed = True
                self._witness.on_subscribed()
        elif kind == _HEADER:
            waiting[self._tag[channel]] = b""
        elif kind == _BODY:
            waiting[self._tag[channel]] += payload
