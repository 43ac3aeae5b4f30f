"""Whoever accounts for the messages finds what is wrong with them."""

import socket

import pytest
from accounting import settle
from pika import frame, spec

from witness import _Conversation

PUBLISHED = [range(5), range(10, 15)]  # 5 to 9 were under way when a connection broke
ACKED = bytes([1] * 5 + [0] * 5 + [1] * 5)
NUMBERS = [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
ALL = list(enumerate(NUMBERS))


def _without(*numbers):
    return list(enumerate(number for number in NUMBERS if number not in numbers))


def test_all_is_well():
    account = settle(PUBLISHED, ACKED, ALL, [])
    assert account.is_clean
    assert account.messages == 10


def test_what_was_acked_and_is_not_in_the_sink_is_lost():
    account = settle(PUBLISHED, ACKED, _without(11), [6])
    assert (account.lost, account.is_clean) == ([11], False)


def test_what_is_there_twice_is_doubled():
    account = settle(PUBLISHED, ACKED, [*ALL, (10, 3)], [])
    assert (account.doubled, account.is_clean) == ([3], False)


def test_what_is_missing_without_a_gap_is_found_and_with_one_it_is_not():
    acked = bytes(number in NUMBERS and number not in (11, 12) for number in range(15))
    assert settle(PUBLISHED, acked, _without(11, 12), []).unexplained == [6]
    assert settle(PUBLISHED, acked, _without(11, 12), [6]).is_clean


def test_what_comes_later_is_not_missing():
    account = settle(PUBLISHED, ACKED, list(enumerate([0, 1, 10, 11, 2, 3, 4, 12, 13, 14])), [])
    assert (account.unexplained, account.disordered) == ([], 1)


def test_what_is_out_of_order_is_counted():
    swapped = list(enumerate([1, 0, *NUMBERS[2:]]))
    account = settle(PUBLISHED, ACKED, swapped, [])
    assert (account.disordered, account.is_clean) == (1, False)


class _Heard:
    def __init__(self):
        self.acked, self.subscriptions = [], 0

    def on_acked(self, bodies):
        self.acked += bodies

    def on_subscribed(self):
        self.subscriptions += 1


def _delivery(tag, *pieces):
    deliver = spec.Basic.Deliver("c", tag, False, "logs", "")
    head = frame.Header(1, sum(map(len, pieces)), spec.BasicProperties())
    frames = frame.Method(1, deliver), head, *(frame.Body(1, piece) for piece in pieces)
    return b"".join(each.marshal() for each in frames)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 64, 4096])
def test_the_witness_knows_what_was_acked_however_the_bytes_are_cut(size):
    heard, (server, client) = _Heard(), socket.socketpair()
    conversation = _Conversation(heard)

    def hear(source, data):
        for at in range(0, len(data), size):
            conversation.hear(source, data[at : at + size])

    def method(it):
        return frame.Method(1, it).marshal()

    with server, client:
        hear(client, b"AMQP\x00\x00\x09\x01"[:8] if size >= 8 else b"")
        hear(client, method(spec.Basic.Consume(queue="q")))
        hear(server, _delivery(1, b"one") + _delivery(2, b"t", b"wo") + _delivery(3))
        hear(server, _delivery(4, b"four"))
        hear(client, method(spec.Basic.Ack(2, multiple=True)))
        assert heard.acked == [b"one", b"two"]
        hear(client, method(spec.Basic.Ack(4)))
        assert heard.acked == [b"one", b"two", b"four"]
        hear(client, method(spec.Basic.Ack(3)))
    assert heard.acked[3:] == [b""]
    assert heard.subscriptions == 1
