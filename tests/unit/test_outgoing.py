"""Rows as frames: what pika would send for the same message, and ids that stay."""

import datetime
import struct

import pika
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import frame, spec

from fanout_source import outgoing
from fanout_source.errors import OptionError
from fanout_source.message import COLUMNS

BODY_MAX = 131_064
UTC = datetime.timezone.utc

short_text = st.none() | st.text(max_size=60)
octets = st.none() | st.integers(0, 255)
moments = st.none() | st.datetimes(
    datetime.datetime(1970, 1, 1), datetime.datetime(9999, 12, 31), timezones=st.just(UTC)
)
tables = st.none() | st.dictionaries(st.text(max_size=20), st.none() | st.text(), max_size=5)
rows = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=300),
        "routing_key": short_text,
        "content_type": short_text,
        "content_encoding": short_text,
        "headers": tables,
        "delivery_mode": octets,
        "priority": octets,
        "correlation_id": short_text,
        "reply_to": short_text,
        "expiration": short_text,
        "message_id": st.text(max_size=60),
        "timestamp": moments,
        "type": short_text,
        "user_id": short_text,
        "app_id": short_text,
    }
)


def _batch(found):
    names = found[0].keys()
    columns = {name: [row[name] for row in found] for name in names}
    if "headers" in columns:
        columns["headers"] = [None if t is None else list(t.items()) for t in columns["headers"]]
    return pa.record_batch({name: pa.array(c, COLUMNS[name]) for name, c in columns.items()})


def _frames(batch, *, body_max=BODY_MAX, mandatory=False, prefix="p"):
    prepared = outgoing.prepare(batch, outgoing.Ids(prefix))
    return bytes(
        outgoing.to_frames(
            prepared, channel=1, exchange="logs", body_max=body_max, mandatory=mandatory
        )
    )


def _sent_by_pika(row):
    wanted = dict(row)
    body, key = wanted.pop("body"), wanted.pop("routing_key") or ""
    if wanted["timestamp"] is not None:
        since = wanted["timestamp"] - datetime.datetime(1970, 1, 1, tzinfo=UTC)
        wanted["timestamp"] = since // datetime.timedelta(seconds=1)  # a float would round
    pieces = [
        frame.Method(1, spec.Basic.Publish(exchange="logs", routing_key=key)).marshal(),
        frame.Header(1, len(body), pika.BasicProperties(**wanted)).marshal(),
    ]
    if body:
        pieces.append(frame.Body(1, body).marshal())
    return b"".join(pieces)


def _messages(data):
    """Properties and body of each message, read by pika."""
    found = []
    while data:
        size, each = frame.decode_frame(data)
        data = data[size:]
        if isinstance(each, frame.Header):
            found.append([each.properties, b""])
        elif isinstance(each, frame.Body):
            found[-1][1] += each.fragment
    return found


@given(st.lists(rows, min_size=1, max_size=20), st.integers(0, 3))
def test_any_row_is_what_pika_would_send(found, skipped):
    """Also from a batch that begins in the middle of its buffers."""
    ahead = [found[0]] * skipped
    assert _frames(_batch([*ahead, *found]).slice(skipped)) == b"".join(map(_sent_by_pika, found))


def test_only_the_columns_that_are_there_are_sent():
    [(properties, body)] = _messages(_frames(_batch([{"body": b"x"}])))
    assert body == b"x"
    assert (properties.delivery_mode, properties.headers) == (2, None)
    assert properties.message_id.startswith("p-")


def test_text_and_integers_of_any_size_are_taken():
    batch = pa.record_batch(
        {"body": pa.array(["ä"]), "priority": pa.array([7], pa.int64()), "type": pa.array(["t"])}
    )
    [(properties, body)] = _messages(_frames(batch))
    assert (body, properties.priority, properties.type) == ("ä".encode(), 7, "t")


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 200, 1000])
def test_a_body_is_cut_into_frames_that_fit(size):
    body = bytes(range(256)) * 4
    data = _frames(_batch([{"body": body[:size]}, {"body": b"after"}]), body_max=100)
    assert [body for _, body in _messages(data)] == [body[:size], b"after"]
    sizes = []
    while data:
        (length,) = struct.unpack_from(">I", data, 3)
        sizes.append(length)
        data = data[8 + length :]
    assert max(sizes) <= 100


def test_mandatory_is_said_of_every_message():
    data = _frames(_batch([{"body": b"1"}, {"body": b"2"}]), mandatory=True)
    publishes = []
    while data:
        size, each = frame.decode_frame(data)
        data = data[size:]
        publishes += [each.method] if isinstance(each, frame.Method) else []
    assert [publish.mandatory for publish in publishes] == [True, True]


def _ids(batch, prefix="p"):
    return [properties.message_id for properties, _ in _messages(_frames(batch, prefix=prefix))]


def test_ids_are_the_same_each_time_in_any_order_and_differ_for_all_rows():
    bodies = [b"%d" % (number // 2) for number in range(100)]  # each of them twice
    ids = _ids(_batch([{"body": body} for body in bodies]))
    assert len(set(ids)) == len(bodies)
    assert ids == _ids(_batch([{"body": body} for body in bodies]))
    backwards = _ids(_batch([{"body": body} for body in reversed(bodies)]))
    assert set(backwards) == set(ids)
    assert not set(ids) & set(_ids(_batch([{"body": body} for body in bodies]), prefix="q"))


@pytest.mark.parametrize("name", ["routing_key", "headers", "correlation_id", "timestamp"])
def test_rows_that_differ_in_anything_have_ids_of_their_own(name):
    other = {"headers": {"k": "v"}, "timestamp": datetime.datetime(2026, 1, 1, tzinfo=UTC)}
    row = {"body": b"x", name: None}
    changed = {"body": b"x", name: other.get(name, "v")}
    [one], [another] = _ids(_batch([row])), _ids(_batch([changed]))
    assert one != another


def test_the_same_value_in_another_column_is_another_row():
    one, another = [
        _batch([{"body": b"x", "type": kind, "app_id": name}])
        for kind, name in (("v", None), (None, "v"))
    ]
    assert _ids(one) != _ids(another)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_ids_do_not_depend_on_how_many_rows_are_made_at_a_time(size):
    batch = _batch([{"body": b"%d" % (number // 2)} for number in range(100)])
    ids, made = outgoing.Ids("p"), []
    for start in range(0, 100, size):
        prepared = outgoing.prepare(batch.slice(start, size), ids)
        frames = outgoing.to_frames(
            prepared, channel=1, exchange="logs", body_max=BODY_MAX, mandatory=False
        )
        made += [properties.message_id for properties, _ in _messages(bytes(frames))]
    assert made == _ids(batch)


def test_an_id_that_a_row_brings_stays():
    batch = _batch([{"body": b"1", "message_id": "mine"}, {"body": b"2", "message_id": None}])
    ids = _ids(batch)
    assert ids[0] == "mine"
    assert ids[1].startswith("p-")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"body": None}, "1 rows have no body"),
        ({"body": b"", "type": "x" * 256}, "column type has 256 bytes; AMQP allows 255"),
        ({"body": b"", "type": "ä" * 128}, "column type has 256 bytes"),
        ({"body": b"", "routing_key": "x" * 256}, "column routing_key has 256 bytes"),
        ({"body": b"", "headers": {"x" * 256: ""}}, "column headers has 256 bytes"),
        ({"body": b"", "priority": 256}, "column priority is 256: it must be from 0 to 255"),
        ({"body": b"", "delivery_mode": -1}, "column delivery_mode is -1: it must be from 0"),
        (
            {"body": b"", "timestamp": datetime.datetime(1969, 12, 31, tzinfo=UTC)},
            "column timestamp is before 1970",
        ),
        (
            {"body": b"", "headers": {"k": "x" * BODY_MAX}},
            "the headers take .* the broker's",
        ),
    ],
)
def test_what_amqp_cannot_carry_is_named(row, message):
    with pytest.raises(OptionError, match=message):
        _frames(_batch([row]))
