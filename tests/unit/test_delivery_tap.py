"""The tap against pika's own parser, with the bytes cut anywhere."""

import itertools
import struct
import time

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import frame, spec

from fanout_source.delivery_tap import BrokenFrame, Deliveries, DeliveryTap

CHANNEL = 3
FRAME_MAX = 4096


def _content(channel, body, properties, frame_max):
    """Header and body frames, the body in pieces of what fits a frame."""
    step = frame_max - 8
    pieces = [body[start : start + step] for start in range(0, len(body), step)]
    header = frame.Header(channel, len(body), properties).marshal()
    return [header, *(frame.Body(channel, piece).marshal() for piece in pieces)]


def _delivery(
    body, *, tag=1, channel=CHANNEL, key="", consumer="fanout", frame_max=FRAME_MAX, **properties
):
    method = spec.Basic.Deliver(consumer, tag, False, "logs", key)
    content = _content(channel, body, pika.BasicProperties(**properties), frame_max)
    return [frame.Method(channel, method).marshal(), *content]


def _got(channel, body):
    method = spec.Basic.GetOk(1, False, "logs", "", 0)
    return [
        frame.Method(channel, method).marshal(),
        *_content(channel, body, pika.BasicProperties(), FRAME_MAX),
    ]


HEARTBEAT = [frame.Heartbeat().marshal()]
CANCEL = [frame.Method(CHANNEL, spec.Basic.Cancel("fanout", True)).marshal()]
CLOSE = [frame.Method(CHANNEL, spec.Channel.Close(406, "late", 0, 0)).marshal()]


def _tap():
    tap = DeliveryTap(CHANNEL, max_frame_bytes=FRAME_MAX)
    tap.into = Deliveries()
    return tap


def _feed(tap, data, cuts=()):
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = (data[a:b] for a, b in itertools.pairwise(edges))
    return b"".join(tap.feed(piece) for piece in pieces)


def _rows(deliveries):
    """Method, properties and body of each delivery, as pika reads them."""
    if not deliveries.rows:
        return []
    rows = []
    for method, header, body in deliveries.to_batch().column("delivery").to_pylist():
        rows.append(
            (
                frame.decode_frame(method)[1].method,
                frame.decode_frame(header)[1].properties,
                body[7:-1],
            )
        )
    return rows


bodies = st.one_of(st.binary(max_size=40), st.integers(0, 20_000).map(lambda n: b"\xce" * n))
keys = st.text(max_size=20)
events = st.one_of(
    st.builds(lambda body, key: ("delivery", body, key), bodies, keys),
    st.builds(lambda body: ("other channel", body, ""), bodies),
    st.builds(lambda body: ("got", body, ""), bodies),
    st.just(("heartbeat", b"", "")),
    st.just(("cancel", b"", "")),
)


def _frames(kind, body, key, tag):
    if kind == "delivery":
        return _delivery(body, tag=tag, key=key, message_id=str(tag), headers={"a": 1})
    if kind == "other channel":
        return _delivery(body, tag=tag, channel=CHANNEL + 1)
    if kind == "got":
        return _got(CHANNEL, body)
    return HEARTBEAT if kind == "heartbeat" else CANCEL


@given(st.lists(events, max_size=12), st.lists(st.integers(0, 10**6), max_size=30))
def test_any_traffic_cut_anywhere_is_separated_as_pika_reads_it(traffic, cuts):
    tap = _tap()
    wire = [_frames(*event, tag) for tag, event in enumerate(traffic, 1)]
    others = _feed(tap, b"".join(b"".join(frames) for frames in wire), cuts)
    expected = [
        frames for (kind, _, _), frames in zip(traffic, wire, strict=True) if kind != "delivery"
    ]
    assert others == b"".join(b"".join(frames) for frames in expected)
    rows = _rows(tap.into)
    sent = [(t, body, key) for t, (kind, body, key) in enumerate(traffic, 1) if kind == "delivery"]
    assert [(m.delivery_tag, body, m.routing_key) for m, _, body in rows] == sent
    assert [properties.message_id for _, properties, _ in rows] == [str(t) for t, _, _ in sent]
    assert tap.into.last_tag == (sent[-1][0] if sent else 0)


@given(st.lists(st.integers(0, 10**6), max_size=10))
def test_frames_of_other_channels_between_those_of_a_delivery_pass(cuts):
    tap = _tap()
    method, header, *body = _delivery(b"x" * 10_000)
    other = _delivery(b"y" * 5_000, channel=9)
    mixed = [method, other[0], header, *HEARTBEAT, other[1], body[0], *other[2:], *body[1:]]
    others = [other[0], *HEARTBEAT, *other[1:]]
    assert _feed(tap, b"".join(mixed), cuts) == b"".join(others)
    assert [body for _, _, body in _rows(tap.into)] == [b"x" * 10_000]


@pytest.mark.parametrize("kept", range(1, 4))
def test_a_channel_that_closes_in_the_middle_of_a_delivery_ends_it(kept):
    tap = _tap()
    unfinished = _delivery(b"x" * 10_000)[:kept]
    assert tap.feed(b"".join([*unfinished, *CLOSE])) == CLOSE[0]
    assert tap.feed(b"".join(_delivery(b"next"))) == b""
    assert [body for _, _, body in _rows(tap.into)] == [b"next"]


def test_what_is_refused_leaves_no_trace_and_the_rest_still_passes():
    tap = _tap()
    tap.into = None
    assert (
        tap.feed(b"".join(_delivery(b"x" * 10_000) + HEARTBEAT + _delivery(b"y"))) == HEARTBEAT[0]
    )
    tap.into = Deliveries()
    tap.feed(b"".join(_delivery(b"z", tag=7)))
    assert [body for _, _, body in _rows(tap.into)] == [b"z"]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        frame.Heartbeat().marshal()[:-1] + b"\x00",
        struct.pack(">BHIB", 3, CHANNEL, FRAME_MAX, 0),
        struct.pack(">BHIIB", 2, CHANNEL, 4, 0, 0xCE),
        b"AMQP\x00\x00\x09\x01",
        struct.pack(">BHIHHQH", 2, CHANNEL, 14, 60, 0, 1 << 40, 0) + b"\xce",
    ],
)
def test_what_is_no_frame_or_too_large_is_an_error_and_not_waited_for(data):
    tap = _tap()
    tap.feed(_delivery(b"x")[0])
    with pytest.raises(BrokenFrame):
        tap.feed(data)


def test_a_large_body_in_small_pieces_is_copied_a_bounded_number_of_times():
    """Each byte is joined once into its frame and once into its body, however small the pieces."""
    tap = DeliveryTap(CHANNEL, max_frame_bytes=131072)
    tap.into = Deliveries()
    body = bytes(range(256)) * 4096
    wire = b"".join(_delivery(body, frame_max=131072))
    for start in range(0, len(wire), 97):
        assert tap.feed(wire[start : start + 97]) == b""
        assert tap._held_bytes == sum(map(len, tap._held)) <= 131072
    assert [b for _, _, b in _rows(tap.into)] == [body]


def test_many_pieces_become_one_batch_in_order():
    tap = _tap()
    for number in range(1, 501):
        tap.feed(b"".join(_delivery(str(number).encode(), tag=number)))
    batch = tap.into.to_batch()
    batch.validate(full=True)
    assert [int(body) for _, _, body in _rows(tap.into)] == list(range(1, 501))
    assert (tap.into.rows, tap.into.last_tag, batch.num_rows) == (500, 500, 500)
    assert batch.column("received_at").null_count == 0


def test_deliveries_that_came_together_are_handed_on_at_once():
    """What makes the tap fast: it does not go from frame to frame."""
    handed_on = []

    class Noted(Deliveries):
        def add(self, piece, bounds, last_tag):
            handed_on.append(last_tag)
            super().add(piece, bounds, last_tag)

    tap = _tap()
    tap.into = Noted()
    tap.feed(b"".join(b"".join(_delivery(bytes(n), tag=n)) for n in range(1, 101)))
    assert handed_on == [100]


MINE, OTHER = _delivery(b"mine!", consumer="abc"), _delivery(b"other", channel=CHANNEL + 1)
ASKED_FOR = _got(CHANNEL, b"asked")
UNFINISHED = _delivery(b"x" * (len(CLOSE[0]) - 8))[:2]


@pytest.mark.parametrize(
    ("traffic", "others", "expected"),
    [
        ([*OTHER[:2], *MINE[:2], OTHER[2], MINE[2]], OTHER, [b"mine!"]),
        ([*MINE, *ASKED_FOR], ASKED_FOR, [b"mine!"]),
        ([*UNFINISHED, *CLOSE], CLOSE, []),
    ],
)
def test_frames_of_equal_sizes_are_told_apart(traffic, others, expected):
    tap = _tap()
    assert tap.feed(b"".join(traffic)) == b"".join(others)
    assert [body for _, _, body in _rows(tap.into)] == expected


@pytest.mark.parametrize("which", range(3))
def test_a_wrong_end_byte_is_noticed_in_each_frame_of_a_delivery(which):
    frames = _delivery(b"\xce\xce")
    frames[which] = frames[which][:-1] + b"\x00"
    with pytest.raises(BrokenFrame, match="a frame without its end byte"):
        _tap().feed(b"".join(frames))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GET / HTTP/1.1\r\n", "a frame of type 71 and"),
        (
            struct.pack(">BHIHHB11xB", 1, CHANNEL, 16, 60, 60, 255, 0xCE) + _delivery(b"")[1],
            "a delivery without its tag",
        ),
    ],
)
def test_what_is_wrong_with_a_frame_is_said(data, says):
    with pytest.raises(BrokenFrame, match=says):
        _tap().feed(data)


def test_a_body_may_be_as_large_as_the_limit_and_no_larger():
    tap = DeliveryTap(CHANNEL, max_frame_bytes=FRAME_MAX, max_body_bytes=10_000)
    tap.into = Deliveries()
    tap.feed(b"".join(_delivery(b"x" * 10_000)))
    assert tap.into.rows == 1
    with pytest.raises(BrokenFrame, match="a message of 10001 bytes"):
        tap.feed(b"".join(_delivery(b"x" * 10_001)))


def test_the_shortest_delivery_is_one():
    tap = _tap()
    method = spec.Basic.Deliver("", 7, False, "", "")
    tap.feed(frame.Method(CHANNEL, method).marshal() + _delivery(b"")[1])
    assert (tap.into.rows, tap.into.last_tag) == (1, 7)


def test_a_body_of_several_frames_is_stored_as_one():
    tap, body = _tap(), b"x" * 10_000
    tap.feed(b"".join(_delivery(body)))
    [[_, _, stored]] = tap.into.to_batch().column("delivery").to_pylist()
    assert stored == frame.Body(CHANNEL, body).marshal()


def test_a_new_tap_drops_deliveries_until_it_has_somewhere_to_put_them():
    tap = DeliveryTap(CHANNEL, max_frame_bytes=FRAME_MAX)
    assert tap.feed(b"".join(_delivery(b"x") + HEARTBEAT)) == HEARTBEAT[0]


def test_what_is_gathered_has_a_size_and_an_age():
    tap, wire = _tap(), b"".join(_delivery(b"x"))
    since, start = time.time(), time.monotonic()
    tap.feed(wire)
    between = time.monotonic()
    tap.feed(wire)
    assert tap.into.bytes == 2 * len(wire)
    assert start <= tap.into.oldest <= between
    received = tap.into.to_batch().column("received_at").to_pylist()
    assert all(since - 0.001 <= moment.timestamp() <= time.time() for moment in received)
