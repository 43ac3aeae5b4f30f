"""Messages that others have choked on."""

from __future__ import annotations

import struct

from pika import frame, spec

from fanout_source.connection import open_connection


def publish_raw(address, flags_and_properties):
    """A message with properties that pika would not encode."""
    with open_connection(address) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        number = channel.channel_number
        method = frame.Method(number, spec.Basic.Publish(exchange="logs")).marshal()
        header = struct.pack(">HHQ", 60, 0, 4) + flags_and_properties
        content = struct.pack(">BHI", 2, number, len(header)) + header + b"\xce"
        connection._impl._output_marshaled_frames(
            [method + content + frame.Body(number, b"body").marshal()]
        )
        channel.queue_declare("", exclusive=True)  # answered when the message has been routed


def _headers(*entries):
    table = b"".join(bytes([len(n)]) + n + kind + value for n, kind, value in entries)
    return b"\x20\x00" + struct.pack(">I", len(table)) + table


def _nested(depth):
    table = b""
    for _ in range(depth):
        table = b"\x01nF" + struct.pack(">I", len(table)) + table
    return table


# NaN is not among them: RabbitMQ refuses it from the emitter (seen with 3.10).
POISON = {
    "milliseconds in a header": _headers((b"t", b"T", struct.pack(">Q", 1_700_000_000_000))),
    "the last timestamp there is": b"\x00\x40" + b"\xff" * 8,
    "milliseconds as timestamp": b"\x00\x40" + struct.pack(">Q", 1_700_000_000_000),
    "a float": _headers((b"f", b"f", struct.pack(">f", 1.5)), (b"d", b"d", struct.pack(">d", 0.1))),
    "2,000 nested tables": b"\x20\x00" + struct.pack(">I", len(_nested(2000))) + _nested(2000),
    "broken UTF-8": _headers((b"s", b"S", struct.pack(">I", 2) + b"\xff\xfe")),
    "broken UTF-8 as message id": b"\x00\x80\x02\xff\xfe",
    "a name that comes twice": _headers((b"k", b"t", b"\x01"), (b"k", b"t", b"\x00")),
}
