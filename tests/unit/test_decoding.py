"""Properties and headers as columns: as pamqp and pika mean them, and never an error."""

import contextlib
import datetime
import decimal
import json
import math
import struct

import pika
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands
from pika import frame, spec

from fanout_source import message, properties
from fanout_source.delivery_tap import Deliveries, DeliveryTap
from fanout_source.field_table import BrokenTable, decode_headers, escape, unescape
from fanout_source.properties import decode_one

UTC = datetime.timezone.utc
short_text = st.text(max_size=60)
whole_seconds = st.datetimes(
    datetime.datetime(1970, 1, 1), datetime.datetime(9999, 12, 31), timezones=st.just(UTC)
).map(lambda moment: moment.replace(microsecond=0))
numbers = st.integers(-(2**63), 2**63 - 1)
values = st.recursive(
    st.one_of(short_text, numbers, st.booleans(), st.none(), whole_seconds),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=20), inner, max_size=4)
    ),
    max_leaves=12,
)
headers = st.dictionaries(st.text(max_size=20), values, max_size=5)
property_sets = st.fixed_dictionaries(
    {},
    optional={
        "content_type": short_text,
        "content_encoding": short_text,
        "headers": headers,
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 255),
        "correlation_id": short_text,
        "reply_to": short_text,
        "expiration": short_text,
        "message_id": short_text,
        "timestamp": whole_seconds,
        "type": short_text,
        "user_id": short_text,
        "app_id": short_text,
        "cluster_id": short_text,
    },
)


def _raw(**wanted):
    """The bytes as pika sends them, from the flags on."""
    if "timestamp" in wanted and not isinstance(wanted["timestamp"], int):
        wanted["timestamp"] = int(wanted["timestamp"].timestamp())
    return b"".join(pika.BasicProperties(**wanted).encode())


def _table(*entries):
    """A field table, without its length, from names, type letters and packed values."""
    return b"".join(bytes([len(name)]) + name + kind + value for name, kind, value in entries)


def _long(value):
    return struct.pack(">I", len(value)) + value


def _shown(value):
    """What a header is as text."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def _plain(value):
    if isinstance(value, datetime.datetime):
        return int(value.timestamp())
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def _expected(wanted):
    expected = dict(wanted)
    if "headers" in expected:
        expected["headers"] = [(name, _shown(v)) for name, v in wanted["headers"].items()]
    if "timestamp" in expected:
        expected["timestamp"] = int(wanted["timestamp"].timestamp()) * 1_000_000
    return expected


@given(property_sets)
def test_what_pika_sends_is_read_exactly(wanted):
    assert decode_one(_raw(**wanted)) == (_expected(wanted), {})


@given(property_sets)
def test_what_pamqp_sends_is_read_exactly(wanted):
    wanted.pop("cluster_id", None)  # pamqp refuses it
    named = {"message_type" if name == "type" else name: value for name, value in wanted.items()}
    decoded, notes = decode_one(commands.Basic.Properties(**named).marshal())
    assert notes == {}
    expected = _expected(_sorted(wanted))
    assert decoded == {k: v for k, v in expected.items() if v or k in decoded}  # empty: left out


def _sorted(value):
    """Tables as pamqp sends them."""
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(inner) for inner in value] if isinstance(value, list) else value


@given(st.lists(property_sets, max_size=40), st.sets(st.sampled_from(list(properties.COLUMNS))))
def test_many_at_once_are_read_as_one_by_one(sets, wanted):
    _assert_same_as_singly([_raw(**one) for one in sets * 3], wanted)


@given(
    st.lists(
        st.one_of(st.binary(max_size=60), st.builds(lambda p: _raw(**p), property_sets)),
        min_size=1,
        max_size=40,
    ),
    st.data(),
)
def test_random_bytes_as_properties_never_raise_and_touch_no_other_message(raws, data):
    flags = data.draw(st.binary(min_size=2, max_size=2))
    alike = [flags + raw for raw in raws] * 2  # enough with the same flags to be read together
    _assert_same_as_singly([*raws, *alike], set(properties.COLUMNS))


@given(st.lists(st.binary(max_size=12), min_size=8, max_size=40), st.integers(0, 0x3FFF))
def test_broken_ones_among_messages_with_the_same_flags_are_found(tails, flags):
    raws = [struct.pack(">H", flags << 2) + tail for tail in tails]
    _assert_same_as_singly(raws * 3, set(properties.COLUMNS))
    few_broken = [b"\x00\x80\x02ab"] * 20 + [b"\x00\x80" + tail for tail in tails]
    _assert_same_as_singly(few_broken, {"message_id"})


def _assert_same_as_singly(raws, wanted):
    if not raws:
        return
    columns, notes = properties.decode(pa.array(raws, pa.binary()), wanted)
    assert set(columns) == wanted
    for row, raw in enumerate(raws):
        values, flaws = decode_one(raw)
        for name in wanted:
            one = pa.array([values.get(name)], properties.COLUMNS[name])
            assert columns[name].slice(row, 1).equals(one), (name, raw)
        expected = {f"{n}: {f}" for n, f in flaws.items() if n in wanted or n == "properties"}
        assert set(notes.get(row, [])) == expected


SCALARS = [
    (b"t", b"\x01", "true"),
    (b"t", b"\x00", "false"),
    (b"b", b"\x80", "-128"),
    (b"B", b"\xff", "255"),
    (b"s", b"\x80\x00", "-32768"),
    (b"U", b"\x80\x00", "-32768"),
    (b"u", b"\xff\xff", "65535"),
    (b"I", b"\x80" + bytes(3), "-2147483648"),
    (b"i", b"\xff" * 4, "4294967295"),
    (b"l", b"\x80" + bytes(7), str(-(2**63))),
    (b"L", b"\xff" * 8, "-1"),
    (b"f", struct.pack(">f", 0.5), "0.5"),
    (b"d", struct.pack(">d", 0.1), "0.1"),
    (b"d", struct.pack(">d", math.nan), "NaN"),
    (b"d", struct.pack(">d", -math.inf), "-Infinity"),
    (b"D", struct.pack(">Bi", 2, -314), "-3.14"),
    (b"D", struct.pack(">Bi", 0, 7), "7"),
    (b"T", struct.pack(">Q", 0), "0"),
    (b"T", struct.pack(">Q", 1_700_000_000_000), "1700000000000"),
    (b"T", b"\xff" * 8, str(2**64 - 1)),
    (b"V", b"", None),
    (b"S", _long("é".encode()), "é"),
    (b"S", _long(b""), ""),
    (b"x", _long(b"bytes"), "bytes"),
]


@pytest.mark.parametrize(("kind", "packed", "text"), SCALARS)
def test_every_field_type_is_shown(kind, packed, text):
    assert decode_headers(_table((b"k", kind, packed))) == ([("k", text)], [])


@pytest.mark.parametrize(("kind", "packed", "text"), SCALARS)
def test_every_field_type_is_shown_inside_tables_and_arrays(kind, packed, text):
    inner = _table((b"k", kind, packed))
    nested = _table((b"a", b"A", _long(kind + packed + b"F" + _long(inner))))
    [(_, shown)], _ = decode_headers(nested)
    first, second = json.loads(shown)
    assert second == {"k": first}
    if kind in (b"S", b"x") or text in ("NaN", "-Infinity"):
        assert first == text
    elif text is None:
        assert first is None
    else:
        assert json.dumps(first) == text


def test_two_thousand_nested_tables_are_shown_whole():
    table = b""
    for _ in range(2000):
        table = _table((b"n", b"F", _long(table)))
    [(name, shown)], notes = decode_headers(table)
    assert (name, notes) == ("n", [])
    assert shown == '{"n":' * 1999 + "{}" + "}" * 1999


def test_a_name_that_comes_twice_shows_the_last_and_says_so():
    headers = decode_headers(_table((b"k", b"S", _long(b"1")), (b"k", b"S", _long(b"2"))))
    assert headers.entries == [("k", "2")]
    assert "'k' is there more than once" in headers.notes[0]


def test_text_that_is_not_utf8_is_escaped_and_said_to_be():
    headers = decode_headers(_table((b"k", b"S", _long(b"caf\xe9 \\ \x00"))))
    assert headers.entries == [("k", "caf\\xe9 \\\\ \x00")]
    assert "not UTF-8" in headers.notes[0]


@given(st.binary())
def test_escaping_can_be_undone(raw):
    assert unescape(escape(raw)) == raw


@given(st.binary(max_size=200))
def test_random_bytes_as_a_table_raise_nothing_else(raw):
    with contextlib.suppress(BrokenTable):
        decode_headers(raw)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, datetime.datetime(1970, 1, 1, tzinfo=UTC)),
        (253_402_300_799, datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (253_402_300_800, None),
        (1_700_000_000_000, None),
        (2**64 - 1, None),
    ],
)
def test_a_timestamp_beyond_the_calendar_is_null_with_the_number_beside_it(seconds, shown):
    rows = _decode([_raw(timestamp=seconds, message_id="m")] * 20)
    assert {row["timestamp"] for row in rows} == {shown}
    assert {row["message_id"] for row in rows} == {"m"}
    errors = {row["decode_error"] for row in rows}
    assert errors == (
        {None} if shown else {f"timestamp: {seconds} is after the year 9999; the unit is seconds"}
    )


def _decode(raws, columns=tuple(message.COLUMNS), first_offset=0, key=""):
    """Rows of messages with these properties, through the tap."""
    tap = DeliveryTap(1, max_frame_bytes=1 << 20)
    tap.into = Deliveries()
    for tag, raw in enumerate(raws, 1):
        method = frame.Method(1, spec.Basic.Deliver("fanout", tag, False, "logs", key)).marshal()
        header = struct.pack(">HHQ", 60, 0, 4) + raw
        tap.feed(method + struct.pack(">BHI", 2, 1, len(header)) + header + b"\xce")
        tap.feed(frame.Body(1, b"body").marshal())
    return message.decode(tap.into.to_batch(), first_offset, columns).to_pylist()


def test_a_broken_property_leaves_body_and_everything_else():
    good, bad = _raw(message_id="m", app_id="a"), b"\x00\x80\xff"
    rows = _decode([good, bad, good], first_offset=7, key="k")
    assert [row["offset"] for row in rows] == [7, 8, 9]
    assert [row["message_id"] for row in rows] == ["m", None, "m"]
    assert rows[1]["decode_error"] == "message_id: the properties end before it"
    assert all(row["body"] == b"body" and row["routing_key"] == "k" for row in rows)


def test_only_the_columns_that_are_asked_for_are_there_and_in_that_order():
    rows = _decode([_raw(message_id="m")], columns=("offset", "message_id"))
    assert [list(row.items()) for row in rows] == [[("offset", 0), ("message_id", "m")]]


def test_no_deliveries_are_no_rows_of_the_right_types():
    empty = message.decode(Deliveries().to_batch(), 0)
    assert empty.num_rows == 0
    assert dict(zip(empty.schema.names, empty.schema.types, strict=True)) == message.COLUMNS


def test_the_types_are_those_that_are_declared():
    batch = message.decode(_batch_of([_raw(headers={"a": 1})] * 2 + [b"", b"\xff"]), 0)
    assert dict(zip(batch.schema.names, batch.schema.types, strict=True)) == message.COLUMNS


def _batch_of(raws):
    tap = DeliveryTap(1, max_frame_bytes=1 << 20)
    tap.into = Deliveries()
    for tag, raw in enumerate(raws, 1):
        method = frame.Method(1, spec.Basic.Deliver("x" * tag, tag, True, "e", "k")).marshal()
        header = struct.pack(">HHQ", 60, 0, 0) + raw
        tap.feed(method + struct.pack(">BHI", 2, 1, len(header)) + header + b"\xce")
    return tap.into.to_batch()


def test_deliveries_of_different_consumers_are_read_alike():
    rows = message.decode(_batch_of([_raw()] * 3), 0).to_pylist()
    assert {(row["exchange"], row["routing_key"], row["redelivered"]) for row in rows} == {
        ("e", "k", True)
    }


def test_a_decimal_is_shown_in_full():
    [(_, shown)], _ = decode_headers(_table((b"k", b"D", struct.pack(">Bi", 255, 1))))
    assert decimal.Decimal(shown) == decimal.Decimal(1).scaleb(-255)
