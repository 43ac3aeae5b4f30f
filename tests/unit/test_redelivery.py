"""What comes again is recognised, whenever the broker gives it back."""

import pytest
from pamqp import body, commands, header
from pamqp.frame import marshal

from fanout_source import message
from fanout_source.delivery_tap import Deliveries, DeliveryTap
from fanout_source.message import REPEATABLE_ID
from fanout_source.redelivery import Redeliveries
from fanout_source.spool import Spool, read_slice


@pytest.fixture
def spool(tmp_path):
    with Spool.create(str(tmp_path)) as spool:
        yield spool


def _delivery(name, content=b"x", *, again=False):
    pieces = (
        commands.Basic.Deliver("fanout", 1, again, "logs", ""),
        header.ContentHeader(0, len(content), commands.Basic.Properties(message_id=name)),
        body.ContentBody(content),
    )
    return b"".join(marshal(piece, 1) for piece in pieces)


def _take(redeliveries, spool, *deliveries):
    """As a receiver does; the ids that were kept."""
    tap = DeliveryTap(1, max_frame_bytes=1 << 20)
    tap.into = gathered = Deliveries()
    tap.feed(b"".join(deliveries))
    kept = redeliveries.sift(gathered.to_batch())
    if kept.num_rows:
        spool.append(kept)
    return message.decode(kept, 0, ["message_id"]).column(0).to_pylist()


def test_what_comes_again_over_the_same_connection_is_recognised(spool):
    """As from a quorum queue whose nodes lose each other."""
    redeliveries = Redeliveries(spool, 100)
    assert _take(redeliveries, spool, _delivery("a"), _delivery("b")) == ["a", "b"]
    assert _take(redeliveries, spool, _delivery("a", again=True), _delivery("c")) == ["c"]
    assert _take(redeliveries, spool, _delivery("d")) == ["d"]
    again = [_delivery(name, again=True) for name in "dcb"]
    assert _take(redeliveries, spool, *again, _delivery("e", again=True)) == ["e"]
    assert (redeliveries.recognised, redeliveries.in_doubt) == (4, 0)


def test_what_comes_again_in_the_same_batch_is_recognised(spool):
    redeliveries = Redeliveries(spool, 100)
    batch = [_delivery("a"), _delivery("b", again=True), _delivery("a", again=True)]
    assert _take(redeliveries, spool, *batch, _delivery("b", again=True)) == ["a", "b"]


def test_what_a_sink_repeats_is_recognised_and_nothing_is_read_twice(spool, monkeypatch):
    names = [f"{REPEATABLE_ID}{number}" for number in range(50)]
    redeliveries = Redeliveries(spool, 100)
    reads = []
    monkeypatch.setattr(
        "fanout_source.redelivery.read_slice", lambda *of: reads.append(of) or read_slice(*of)
    )
    for start in range(0, 50, 10):
        batch = names[start : start + 10]
        assert _take(redeliveries, spool, *map(_delivery, batch)) == batch
    assert reads == []
    assert _take(redeliveries, spool, *map(_delivery, names)) == []
    assert redeliveries.recognised == 50


def test_the_same_id_with_another_body_is_another_message(spool):
    redeliveries = Redeliveries(spool, 100)
    _take(redeliveries, spool, _delivery("a"))
    assert _take(redeliveries, spool, _delivery("a", b"y", again=True)) == ["a"]


def test_no_more_is_remembered_than_may_come_again(spool):
    redeliveries = Redeliveries(spool, 10)
    for number in range(100):
        _take(redeliveries, spool, _delivery(f"{REPEATABLE_ID}{number}"))
    assert len(redeliveries._known) <= 2 * 10 + 1
    assert _take(redeliveries, spool, _delivery(f"{REPEATABLE_ID}99", again=True)) == []
