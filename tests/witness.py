"""What the broker has been told: a proxy that reads along and knows which messages were acked."""

from __future__ import annotations

import socket
import struct
import threading

from proxy import Proxy

_METHOD, _HEADER, _BODY = 1, 2, 3
_DELIVER, _ACK = (60, 60), (60, 80)


class Witness(Proxy):
    """`acked` holds the bodies of all messages that any client has acknowledged, with a count."""

    def __init__(self, host: str, port: int) -> None:
        self.acked: dict[bytes, int] = {}
        self._conversations: dict[socket.socket, _Conversation] = {}
        super().__init__(host, port)

    def _connected(self, client: socket.socket, server: socket.socket) -> None:
        conversation = _Conversation(self.acked)
        self._conversations[client] = self._conversations[server] = conversation

    def _passing(self, source: socket.socket, data: bytes) -> None:
        self._conversations[source].hear(source, data)


class _Conversation:
    def __init__(self, acked: dict[bytes, int]) -> None:
        self._acked = acked
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
                tags = [t for t in waiting if t <= tag] if multiple else [tag]
                for each in tags:
                    body = waiting.pop(each)
                    self._acked[body] = self._acked.get(body, 0) + 1
        elif kind == _HEADER:
            waiting[self._tag[channel]] = b""
        elif kind == _BODY:
            waiting[self._tag[channel]] += payload
