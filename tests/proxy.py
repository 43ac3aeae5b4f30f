"""A TCP proxy that breaks connections on command."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time


class Proxy:
    """Forwards a port of its own (`at`, or any) to host:port. `reset` cuts all connections with
    a TCP reset, `stall` lets nothing more through on those that are open, without a word to either
    end, `throttle` makes all slow, `refuse` makes new ones fail until `accept`, `reset_next_after`
    cuts the next one when its client has sent so many bytes."""

    def __init__(self, host: str, port: int, *, at: int = 0) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", at))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._refusing = self._closed = False
        self._reset_next_after: int | None = None
        self._stalled: set[socket.socket] = set()
        self.connections = 0  # how many there have been
        self._bytes_per_second = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def refuse(self) -> None:
        self._refusing = True

    def accept(self) -> None:
        self._refusing = False

    def reset_next_after(self, client_bytes: int) -> None:
        self._reset_next_after = client_bytes

    def stall(self) -> None:
        with self._lock:
            self._stalled |= self._open

    def throttle(self, bytes_per_second: int) -> None:
        """0: as fast as it goes."""
        self._bytes_per_second = bytes_per_second

    def reset(self) -> None:
        with self._lock:
            doomed, self._open, self._stalled = self._open, set(), set()
        for end in doomed:
            _reset(end)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def _serve(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                self._refused()
                _reset(client)
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                _reset(client)
                continue
            with self._lock:
                self._open |= {client, server}
                self.connections += 1
            self._connected(client, server)
            limit, self._reset_next_after = self._reset_next_after, None
            for ends in ((client, server, limit), (server, client, None)):
                threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _connected(self, client: socket.socket, server: socket.socket) -> None:
        """For those who read along."""

    def _refused(self) -> None:
        """For those who count."""

    def _passing(self, source: socket.socket, data: bytes) -> None:
        """For those who read along."""

    def _pump(self, source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                passed += len(data)
                if limit is not None and passed >= limit:
                    _reset(source)
                while source in self._stalled:
                    time.sleep(0.05)
                if self._bytes_per_second:
                    time.sleep(len(data) / self._bytes_per_second)
                self._passing(source, data)
                sink.sendall(data)
        with self._lock:
            self._open -= {source, sink}
            self._stalled -= {source, sink}
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RD)
    end.close()
