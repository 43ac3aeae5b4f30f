"""Several addresses: the first that works is taken, and another one when it goes."""

import dataclasses

import pytest

from fanout_source.errors import BrokerRefused, BrokerUnreachable, QueueBusy
from fanout_source.receiver import Receiver
from fanout_source.spool import Spool
from fanout_source.subscription import Subscription
from proxy import Proxy


@pytest.fixture
def nodes(address):
    """Two ways to the one broker, each of which can be closed."""
    with Proxy(address.host, address.port) as one, Proxy(address.host, address.port) as other:
        yield one, other


def _at(address, *proxies):
    return [dataclasses.replace(address, port=proxy.port) for proxy in proxies]


def test_a_dead_node_is_passed_over(address, spool, nodes, publish):
    dead = dataclasses.replace(address, port=1)
    for _ in range(5):  # in any order
        receiver = Receiver([dead, *_at(address, nodes[0])], spool)
        receiver.subscribe()
        receiver.close()


@pytest.mark.parametrize("queue", [None, "audit"])
def test_when_a_node_goes_another_takes_over(address, spool, nodes, publish, eventually, queue):
    one, other = nodes
    other.refuse()
    subscription = Subscription(queue=queue)
    with Receiver(_at(address, one, other), spool, subscription) as receiver:
        publish([b"0"], message_id="0")
        assert receiver.wait_for_more(0, 30) == 1
        for number, (dying, living) in enumerate([(one, other), (other, one), (one, other)], 1):
            living.accept()
            dying.refuse()
            dying.reset()
            eventually(lambda n=number: receiver.status().resubscriptions == n, "it is back")
            publish([b"%d" % number], message_id=str(number))
            assert receiver.wait_for_more(number, 30) == number + 1
        assert receiver.status().gaps == (3 if queue is None else 0)


def test_when_all_are_dead_each_is_named(address, spool):
    dead = [dataclasses.replace(address, port=port) for port in (1, 2)]
    with pytest.raises(BrokerUnreachable) as failed:
        Receiver(dead, spool).subscribe()
    assert str(failed.value).startswith("none of 2 brokers will do: ")
    assert "127.0.0.1:1" in str(failed.value)
    assert "127.0.0.1:2" in str(failed.value)


def test_a_busy_queue_is_waited_for_behind_a_dead_node(
    address, spool, tmp_path, monkeypatch, publish
):
    monkeypatch.setattr("fanout_source.receiver._BUSY_SECONDS", 0.5)
    nodes, named = [dataclasses.replace(address, port=1), address], Subscription(queue="audit")
    with (
        Receiver(nodes, spool, named) as first,
        Spool.create(str(tmp_path / "other")) as other,
    ):
        publish([b"0"], message_id="0")
        assert first.wait_for_more(0, 30) == 1
        with pytest.raises(QueueBusy, match="has a consumer already"):
            Receiver(nodes, other, named).subscribe()


def test_a_refusal_by_all_is_final_and_by_one_is_not(address, spool):
    wrong = dataclasses.replace(address, password="wrong")
    with pytest.raises(BrokerRefused, match="refused the login"):
        Receiver([wrong, wrong], spool).subscribe()
    with pytest.raises(BrokerUnreachable, match="refused the login"):
        Receiver([wrong, dataclasses.replace(address, port=1)], spool).subscribe()
