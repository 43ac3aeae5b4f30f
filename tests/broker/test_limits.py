"""A spool that is full: the rest waits in the broker."""

import dataclasses
import threading
import time
from contextlib import closing

import pika
import pytest

from fanout_source.publisher import Publisher
from fanout_source.receiver import Receiver
from fanout_source.subscription import Subscription
from private_node import control
from receiving import bodies_of, numbers, wait_for_status


def _queued(management, vhost):
    return sum(queue.get("messages", 0) for queue in management.get("queues", vhost))


def test_at_its_limit_the_rest_waits_in_the_broker(
    address, spool, publish, eventually, management, vhost
):
    limit, count = 2_000_000, 60_000  # a limit that small pieces do not overshoot
    with Receiver(address, spool, max_spool_bytes=limit, prefetch_count=500) as receiver:
        publish(numbers(0, count))
        eventually(lambda: receiver.status().paused, "it pauses")
        eventually(lambda: _queued(management, vhost) > count // 2, "the broker keeps the rest")
        assert spool.bytes <= limit
        seen = []
        while len(seen) < count:
            end = receiver.wait_for_more(len(seen), timeout_seconds=1)
            assert spool.bytes <= limit * 5 // 4
            seen += bodies_of(spool, len(seen), end)
            receiver.drop_below(end)
        assert receiver.status().resubscriptions == 0
    assert seen == numbers(0, count)


def test_a_reader_that_lets_go_one_batch_late_is_never_starved(address, spool, publish):
    """As Spark does: a batch is committed after the next one is planned."""
    limit, count = 100_000, 20_000
    with Receiver(address, spool, max_spool_bytes=limit, prefetch_count=500) as receiver:
        publish(numbers(0, count))
        seen, planned = [], 0
        while planned < count:
            end = receiver.wait_for_more(planned, timeout_seconds=1)
            if end > planned:
                seen += bodies_of(spool, planned, end)
                receiver.drop_below(planned)
                planned = end
                assert spool.bytes <= limit * 3 // 2
    assert seen == numbers(0, count)


def test_messages_larger_than_the_limit_come_one_by_one(address, spool, publish):
    bodies = [bytes([number]) * 3_000_000 for number in range(20)]
    with Receiver(address, spool, max_spool_bytes=1_000_000) as receiver:
        publish(bodies)
        seen, most = [], 0
        while len(seen) < len(bodies):
            end = receiver.wait_for_more(len(seen), timeout_seconds=1)
            seen += bodies_of(spool, len(seen), end)
            most = max(most, spool.bytes)
            receiver.drop_below(end)
        assert seen == bodies
        assert most < 4 * 3_000_000


def test_large_messages_then_small_ones_arrive_in_order_and_once(address, spool, publish):
    bodies = [b"x" * 500_000] * 60 + numbers(0, 5000)
    with Receiver(address, spool, max_spool_bytes=8_000_000) as receiver:
        publish(bodies)
        seen = []
        while len(seen) < len(bodies):
            end = receiver.wait_for_more(len(seen), timeout_seconds=1)
            seen += bodies_of(spool, len(seen), end)
            receiver.drop_below(end)
            assert spool.bytes <= 10_000_000
    assert seen == bodies


def test_a_gap_while_paused_began_with_the_pause(address, spool, proxy, publish):
    through = dataclasses.replace(address, host="127.0.0.1", port=proxy.port)
    with Receiver(through, spool, max_spool_bytes=100_000, heartbeat_seconds=1) as receiver:
        publish([b"x" * 1000] * 500)
        wait_for_status(receiver, lambda status: status.paused)
        paused = time.time()
        time.sleep(2.5)  # heartbeats go on
        proxy.reset()
        wait_for_status(receiver, lambda status: status.resubscriptions == 1)
    assert spool.latest_gaps[-1].since < paused + 0.5


def test_letting_go_of_nothing_does_not_lift_the_limit(address, spool, publish):
    with Receiver(address, spool, max_spool_bytes=1_000_000) as receiver:
        publish([b"x" * 1000] * 5000)
        end = 0
        for _ in range(30):
            end = receiver.wait_for_more(end, timeout_seconds=0.05)
            receiver.drop_below(0)
        assert spool.bytes < 2_000_000


def test_a_wait_for_room_ends_when_another_thread_makes_room(address, spool, publish):
    with Receiver(address, spool, max_spool_bytes=1_000_000) as receiver:
        publish([b"%d" % n * 900_000 for n in range(4)])
        end = receiver.wait_for_more(0, timeout_seconds=60)
        while (more := receiver.wait_for_more(end, timeout_seconds=1)) > end:
            end = more  # the sip that a full spool allows
        threading.Timer(0.5, receiver.drop_below, args=(end,)).start()
        assert receiver.wait_for_more(end, timeout_seconds=600) > end


@pytest.fixture
def impatient_broker(broker):
    """Closes the channel of a consumer that keeps a message for two seconds."""
    control(broker.process, "eval", "application:set_env(rabbit, consumer_timeout, 2000).")
    control(broker.process, "eval", "application:set_env(rabbit, channel_tick_interval, 500).")
    yield
    control(broker.process, "eval", "application:set_env(rabbit, consumer_timeout, 1800000).")
    control(broker.process, "eval", "application:set_env(rabbit, channel_tick_interval, 60000).")


@pytest.mark.parametrize("queue", [None, "audit"])
def test_a_full_spool_keeps_no_message_from_the_broker(
    address, spool, publish, impatient_broker, management, vhost, eventually, queue
):
    """What it cannot take goes back to the queue, and not when the broker runs out of patience."""

    def unacknowledged():
        return sum(q.get("messages_unacknowledged", 0) for q in management.get("queues", vhost))

    sent = [b"%06d" % number + bytes(1000) for number in range(10_000)]
    receiver = Receiver(address, spool, Subscription(queue=queue), max_spool_bytes=1_000_000)
    receiver.subscribe()
    publish(sent)
    receiver.consume()  # more is on its way at once than it can take
    with closing(receiver):
        eventually(lambda: receiver.status().paused, "it pauses")
        eventually(lambda: unacknowledged() == 0, "all of it is in the queue")
        time.sleep(4)
        seen = []
        while len(seen) < len(sent):
            end = receiver.wait_for_more(len(seen), timeout_seconds=1)
            seen += bodies_of(spool, len(seen), end)
            receiver.drop_below(end)
        assert receiver.status().resubscriptions == 0
    assert seen == sent


@pytest.mark.parametrize("queue", [None, "audit"])
def test_a_channel_that_the_broker_closes_out_of_patience_is_opened_again(
    address, spool, impatient_broker, eventually, queue, monkeypatch
):
    """As it does when a disk takes longer than it waits for an ack."""
    append, is_free = spool.append, threading.Event()

    def append_when_free(batch):
        assert is_free.wait(60)
        return append(batch)

    def publish(bodies):
        with Publisher(address) as publisher:
            for body in bodies:
                publisher.publish(body, pika.BasicProperties(message_id=body.decode()))

    monkeypatch.setattr(spool, "append", append_when_free)
    with Receiver(address, spool, Subscription(queue=queue)) as receiver:
        publish(numbers(0, 100))
        eventually(lambda: receiver.status().resubscriptions, "the channel was closed", 60)
        is_free.set()
        publish(numbers(100, 200))
        eventually(lambda: receiver.status().next_offset == 200, "all has come")
        seen = bodies_of(spool, 0, receiver.wait_for_more(199, timeout_seconds=10))
        assert seen == numbers(0, 200)
        reasons = [gap.reason for gap in spool.latest_gaps]
        assert ["acknowledgement on channel 1 timed out" in each for each in reasons] == (
            [] if queue else [True]
        )
