"""Named queues: what flows while nobody listens waits, and comes once."""

import dataclasses
import time
import uuid

import pika
import pytest

from fanout_source import message
from fanout_source.connection import open_connection
from fanout_source.errors import BrokerRefused, ConnectionLost, MessagesMissed, QueueBusy
from fanout_source.publisher import Publisher
from fanout_source.receiver import Receiver
from fanout_source.spool import Spool, read_slice
from fanout_source.subscription import Subscription
from private_node import control

TYPES = ("classic", "quorum")


def _bodies(spool, start=None):
    pieces = spool.slices(spool.start if start is None else start, spool.end)
    batches = (read_slice(spool.location, spool.id, piece) for piece in pieces)
    return [b for batch in batches for b in message.decode(batch, 0, ["body"])[0].to_pylist()]


def _numbers(start, end):
    return [b"%d" % number for number in range(start, end)]


def _until(receiver, count):
    end = 0
    while end < count:
        end, before = receiver.wait_for_more(end, timeout_seconds=30), end
        assert end > before, f"only {end} of {count} have come"
    return end


@pytest.fixture
def emit(address):
    """Publishes bodies, confirmed, each with a message id of its own."""
    with Publisher(address) as publisher:

        def send(bodies):
            for body in bodies:
                name = uuid.uuid4().hex
                publisher.publish(body, pika.BasicProperties(message_id=name, delivery_mode=2))
            publisher.flush()

        yield send


@pytest.fixture
def break_at_ack(proxy, monkeypatch):
    """`break_at_ack()`: the next time that something is to be acked, the connection breaks."""
    breaks = []

    def reach(step):
        if step == "receiver.ack" and breaks:
            breaks.pop()
            proxy.reset()

    monkeypatch.setattr("fanout_source.receiver.reach", reach)
    return lambda: breaks.append("once")


@pytest.fixture
def queue(address):
    """What an operator sees of the queue: `queue()` is (ready, consumers)."""
    with open_connection(address) as connection:
        channel = connection.channel()

        def look(name="audit"):
            found = channel.queue_declare(name, passive=True).method
            return found.message_count, found.consumer_count

        look.channel = channel
        yield look


@pytest.mark.parametrize("kind", TYPES)
def test_what_flows_meanwhile_waits_and_comes_in_order_once(address, spool, emit, kind, queue):
    named = Subscription(queue="audit", queue_type=kind)
    with Receiver(address, spool, named) as receiver:
        emit(_numbers(0, 100))
        _until(receiver, 100)
    assert queue() == (0, 0)
    emit(_numbers(100, 300))
    spool.close()
    again = Spool.open(spool.location, spool.id)
    with Receiver(address, again, named) as receiver:
        emit(_numbers(300, 400))
        _until(receiver, 400)
        status = receiver.status()
    assert _bodies(again) == _numbers(0, 400)
    assert (status.gaps, status.recognised, status.in_doubt) == (0, 0, 0)
    again.close()


@pytest.mark.parametrize("kind", TYPES)
def test_what_was_spooled_and_not_acked_is_recognised(
    address, spool, emit, proxy, kind, queue, break_at_ack, eventually
):
    """The connection breaks between the sync and the ack, again and again."""
    named = Subscription(queue="audit", queue_type=kind)
    through = dataclasses.replace(address, port=proxy.port)
    with Receiver(through, spool, named, flush_after_rows=50) as receiver:
        for start in range(0, 1000, 200):
            break_at_ack()
            emit(_numbers(start, start + 200))
            _until(receiver, start + 200)
        eventually(lambda: queue() == (0, 1), "all are acked")
        status = receiver.status()
    assert _bodies(spool) == _numbers(0, 1000)
    assert status.recognised > 0
    assert status.resubscriptions > 0
    assert (status.gaps, status.in_doubt) == (0, 0)


def test_without_message_ids_nothing_is_lost_and_what_may_be_double_is_counted(
    address, spool, publish, proxy, break_at_ack
):
    break_at_ack()
    through = dataclasses.replace(address, port=proxy.port)
    with Receiver(through, spool, Subscription(queue="audit")) as receiver:
        publish(_numbers(0, 200))
        _until(receiver, 200)
        publish([b"end"])
        while _bodies(spool)[-1] != b"end":
            receiver.wait_for_more(spool.end, 1)
        status = receiver.status()
    assert set(_bodies(spool)) == {*_numbers(0, 200), b"end"}
    assert status.in_doubt >= len(_bodies(spool)) - 201
    assert status.in_doubt > 0


def test_one_id_for_many_messages_loses_none(address, spool, publish, proxy):
    """What comes again is compared by its body too."""
    through = dataclasses.replace(address, port=proxy.port)
    receiver = Receiver(through, spool, Subscription(queue="audit"))
    receiver.subscribe()
    publish(_numbers(0, 100), message_id="always the same")
    receiver.consume()
    _until(receiver, 100)
    proxy.reset()
    publish(_numbers(100, 200), message_id="always the same")
    _until(receiver, 200)
    receiver.close()
    assert _bodies(spool) == _numbers(0, 200)


def test_what_may_come_again_is_kept_on_disk(
    address, spool, emit, proxy, break_at_ack, monkeypatch
):
    """Though its reader has let go of it."""
    monkeypatch.setattr("fanout_source.receiver.PREFETCH_COUNT", 60)
    through = dataclasses.replace(address, port=proxy.port)
    named = Subscription(queue="audit")
    with Receiver(through, spool, named, flush_after_rows=10, prefetch_count=60) as receiver:
        for start in range(0, 600, 30):
            if start == 570:
                break_at_ack()
            emit(_numbers(start, start + 30))
            receiver.drop_below(_until(receiver, start + 30))
        emit([b"end"])
        _until(receiver, 601)
        assert receiver.status().recognised > 0
    assert spool.start > 0, "the rest is gone"
    assert spool.end == 601


def test_a_second_subscriber_is_refused(address, spool, tmp_path, emit, monkeypatch):
    monkeypatch.setattr("fanout_source.receiver._BUSY_SECONDS", 0.5)
    named = Subscription(queue="audit")
    with (
        Receiver(address, spool, named) as first,
        Spool.create(str(tmp_path / "other")) as other,
    ):
        emit([b"hello"])
        _until(first, 1)
        with pytest.raises(QueueBusy, match=r"'audit'.*has a consumer already.*choose another"):
            Receiver(address, other, named).subscribe()
    with Receiver(address, other, named):
        pass  # the first has gone


@pytest.mark.parametrize("kind", TYPES)
def test_a_second_subscriber_is_refused_before_the_first_consumes(
    address, spool, tmp_path, monkeypatch, kind
):
    """Or while it is paused. A quorum queue knows no exclusive consumers."""
    monkeypatch.setattr("fanout_source.receiver._BUSY_SECONDS", 0.5)
    named = Subscription(queue="audit", queue_type=kind)
    receiver = Receiver(address, spool, named)
    receiver.subscribe()
    with Spool.create(str(tmp_path / "other")) as other:
        with pytest.raises(QueueBusy, match=r"'audit'.*has a consumer already.*choose another"):
            Receiver(address, other, named).subscribe()
        receiver.close()
        with Receiver(address, other, named):
            pass  # the first has gone


def test_a_queue_that_is_exclusive_to_somebody_else_is_refused(address, spool, queue):
    queue.channel.queue_declare("audit", exclusive=True)
    with pytest.raises(BrokerRefused, match=r"exclusive to another connection: choose another"):
        Receiver(address, spool, Subscription(queue="audit")).subscribe()


def test_two_that_begin_at_once_do_not_share_a_queue(address, spool, tmp_path, emit, queue):
    """Though they may make nothing that would show that they are there."""
    emit([b"the exchange is there"])
    queue.channel.queue_declare("audit", durable=True)
    named = Subscription(queue="audit", declare="passive")
    with Spool.create(str(tmp_path / "other")) as other_spool:
        first, other = Receiver(address, spool, named), Receiver(address, other_spool, named)
        first.subscribe()
        other.subscribe()
        first.consume()
        emit([b"0"])
        _until(first, 1)
        other.consume()
        emit([b"1"])
        _until(first, 2)
        assert other.status().next_offset == 0
        first.close()
        emit([b"2"])
        _until(other, 1)  # it has waited for its turn
        other.close()
        assert _bodies(other_spool) == [b"2"]


@pytest.mark.parametrize("fail", [True, False])
def test_a_queue_that_was_deleted_is_a_gap(address, spool, emit, queue, fail):
    named = Subscription(queue="audit")
    with Receiver(address, spool, named) as receiver:
        emit([b"0"])
        _until(receiver, 1)
    ended = time.time()
    queue.channel.queue_delete("audit")
    for _ in range(2 if fail else 0):  # it is not created by the refusal
        spool.close()
        spool = Spool.open(spool.location, spool.id)
        with pytest.raises(MessagesMissed, match="queue 'audit' was deleted, with what it held"):
            Receiver(address, spool, named, fail_on_gap=True).subscribe()
    spool.close()
    spool = Spool.open(spool.location, spool.id)
    with Receiver(address, spool, named) as receiver:
        emit([b"1"])
        _until(receiver, 2)
    [gap] = spool.latest_gaps
    assert "was deleted" in gap.reason
    assert gap.since <= ended <= gap.until
    assert _bodies(spool) == [b"0", b"1"]
    spool.close()


@pytest.fixture
def interrupted(monkeypatch):
    """`interrupted(receiver)`: a start that ends when all is declared, as by a kill."""

    def start(receiver):
        def break_off(_session):
            raise ConnectionLost("broken off")

        with monkeypatch.context() as patch:
            patch.setattr("fanout_source.subscription.Session._open_channel", break_off)
            with pytest.raises(ConnectionLost, match="broken off"):
                receiver.subscribe()

    return start


def test_a_gap_is_not_forgotten_by_a_start_that_fails(address, spool, emit, queue, interrupted):
    named = Subscription(queue="audit")
    with Receiver(address, spool, named):
        pass
    queue.channel.queue_delete("audit")
    interrupted(Receiver(address, spool, named))  # it has made the queue anew
    with Receiver(address, spool, named):
        pass
    with Receiver(address, spool, named, fail_on_gap=True):
        pass
    [gap] = spool.latest_gaps
    assert "was deleted" in gap.reason


def test_a_start_that_fails_makes_no_gap(address, spool, interrupted):
    named = Subscription(queue="audit")
    with Receiver(address, spool, named):
        pass
    interrupted(Receiver(address, spool, named, fail_on_gap=True))
    with Receiver(address, spool, named, fail_on_gap=True):
        pass
    assert spool.gap_count == 0


def test_an_exchange_that_is_new_in_the_options_is_no_gap(address, spool):
    for exchanges in (("logs",), ("metrics", "logs"), ("logs", "metrics"), ("metrics",)):
        named = Subscription(exchanges, queue="audit")
        with Receiver(address, spool, named, fail_on_gap=True):
            pass


def test_a_large_message_that_is_kept_does_not_end_the_flow(address, spool, emit):
    """What is kept to recognise repeats may take half of the spool."""
    bodies = [bytes([number]) * 450_000 for number in range(12)]
    named = Subscription(queue="audit")
    with Receiver(address, spool, named, max_spool_bytes=1_000_000) as receiver:
        emit(bodies)
        end, seen = 0, []
        while end < len(bodies):
            end, start = receiver.wait_for_more(end, timeout_seconds=30), end
            assert end > start, receiver.status()
            seen += _bodies(spool, start)
            receiver.drop_below(end)
    assert seen == bodies


def test_a_queue_that_is_deleted_meanwhile_is_a_gap(address, spool, emit, queue, eventually):
    with Receiver(address, spool, Subscription(queue="audit")) as receiver:
        emit([b"0"])
        _until(receiver, 1)
        queue.channel.queue_delete("audit")
        eventually(lambda: receiver.status().resubscriptions == 1, "it is back")
        assert receiver.status().gaps == 1
        emit([b"1"])
        _until(receiver, 2)
    assert _bodies(spool) == [b"0", b"1"]


@pytest.fixture
def restart_broker(broker, address, eventually):
    """Without its transient exchanges, which emitters have made anew before anyone else is back."""

    def restart():
        control(broker.process, "stop_app")
        control(broker.process, "start_app")
        with open_connection(address) as connection:
            connection.channel().exchange_declare("logs", "fanout")
            connection.channel().basic_publish("logs", "", b"discarded")

    return restart


@pytest.mark.parametrize("fail", [True, False])
def test_a_restart_of_the_broker_takes_a_transient_exchange_and_leaves_a_gap(
    address, spool, emit, proxy, fail, restart_broker, eventually
):
    """The binding of the queue goes with the exchange, though both are there again."""
    through = dataclasses.replace(address, port=proxy.port)
    with Receiver(through, spool, Subscription(queue="audit"), fail_on_gap=fail) as receiver:
        emit([b"0"])
        _until(receiver, 1)
        proxy.refuse()
        restart_broker()
        proxy.accept()
        if fail:
            with pytest.raises(MessagesMissed, match="exchange 'logs' was gone for a time"):
                receiver.wait_for_more(1, timeout_seconds=60)
        else:
            eventually(lambda: receiver.status().resubscriptions == 1, "it is back")
            with Publisher(address) as publisher:
                publisher.publish(b"1")
            _until(receiver, 2)
    if fail:
        again = Receiver(address, spool, Subscription(queue="audit"), fail_on_gap=True)
        with pytest.raises(MessagesMissed, match="was gone for a time"):
            again.subscribe()  # until somebody has taken note
    else:
        assert _bodies(spool) == [b"0", b"1"]
        [gap] = spool.latest_gaps
        assert "exchange 'logs' was gone for a time" in gap.reason
        Receiver(address, spool, Subscription(queue="audit"), fail_on_gap=True).subscribe()


def test_a_restart_of_the_broker_leaves_no_gap_where_the_exchange_is_durable(
    address, spool, proxy, broker, management, vhost, eventually
):
    management.put("exchanges", vhost, "logs", body={"type": "fanout", "durable": True})
    with Receiver(address, spool, Subscription(queue="audit"), fail_on_gap=True) as receiver:
        control(broker.process, "stop_app")
        control(broker.process, "start_app")
        with Publisher(address) as publisher:
            publisher.publish(b"0", pika.BasicProperties(delivery_mode=2))
        _until(receiver, 1)
        assert receiver.status().gaps == 0


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("fail", [True, False])
def test_an_exchange_that_was_deleted_and_made_again_meanwhile_is_a_gap(
    address, spool, queue, durable, fail
):
    """However long ago."""
    queue.channel.exchange_declare("logs", "fanout", durable=durable)
    named = Subscription(queue="audit")
    for _ in range(3):  # an interruption of ours is none of the exchange
        with Receiver(address, spool, named, fail_on_gap=True):
            pass
    queue.channel.exchange_delete("logs")
    queue.channel.exchange_declare("logs", "fanout", durable=durable)
    receiver = Receiver(address, spool, named, fail_on_gap=fail)
    if fail:
        for _ in range(2):
            with pytest.raises(MessagesMissed, match="'logs' was gone for a time"):
                receiver.subscribe()
    else:
        receiver.subscribe()
        receiver.close()
        [gap] = spool.latest_gaps
        assert "was gone for a time" in gap.reason
        with Receiver(address, spool, named, fail_on_gap=True):
            pass


def test_a_busy_queue_is_no_gap(address, spool, tmp_path, monkeypatch, emit):
    monkeypatch.setattr("fanout_source.receiver._BUSY_SECONDS", 1.5)
    named = Subscription(queue="audit")
    with Receiver(address, spool, named):
        pass
    with Spool.create(str(tmp_path / "other")) as other, Receiver(address, other, named) as busy:
        emit([b"0"])
        _until(busy, 1)
        with pytest.raises(QueueBusy):
            Receiver(address, spool, named).subscribe()
    with Receiver(address, spool, named, fail_on_gap=True):
        assert spool.gap_count == 0


def test_a_spool_that_had_another_queue_has_a_gap_and_goes_on(address, spool, emit):
    for queue in (None, "audit", "other"):
        with Receiver(address, spool, Subscription(queue=queue), fail_on_gap=queue is not None):
            pass
    assert [gap.reason for gap in spool.latest_gaps] == ["the subscription had another queue"] * 2


def test_an_unreachable_node_does_not_hide_a_gap(address, spool, emit, queue):
    named, nodes = Subscription(queue="audit"), [dataclasses.replace(address, port=1), address]
    with Receiver(nodes, spool, named, fail_on_gap=True) as receiver:
        emit([b"0"])
        _until(receiver, 1)
        queue.channel.queue_delete("audit")
        with pytest.raises(MessagesMissed, match="was deleted, with what it held"):
            receiver.wait_for_more(1, timeout_seconds=60)


def test_an_exchange_that_is_deleted_meanwhile_is_a_gap(address, spool, emit, queue, eventually):
    named = Subscription(queue="audit")
    with Receiver(address, spool, named, heartbeat_seconds=1) as receiver:
        emit([b"0"])
        _until(receiver, 1)
        queue.channel.exchange_delete("logs")
        eventually(lambda: receiver.status().gaps == 1, "it is missed")
        eventually(lambda: receiver.status().queue, "it is back")
        queue.channel.basic_publish("logs", "", b"1")
        _until(receiver, 2)
    [gap] = spool.latest_gaps
    assert "exchange 'logs' is gone" in gap.reason
    assert gap.since < gap.until


def test_a_smaller_prefetch_count_forgets_nothing_that_may_come_again(
    address, spool, emit, proxy, break_at_ack, eventually
):
    """The broker gives back what it had sent ahead by the larger one of before."""
    through, named = dataclasses.replace(address, port=proxy.port), Subscription(queue="audit")
    receiver = Receiver(through, spool, named)
    receiver.subscribe()
    emit(_numbers(0, 1000))
    proxy.refuse()
    break_at_ack()
    receiver.consume()
    eventually(lambda: spool.end, "something is spooled")  # nobody hurries it: it is much
    receiver.close()
    spooled = spool.end
    assert spooled > 10
    with Receiver(address, spool, named, prefetch_count=10) as receiver:
        _until(receiver, 1000)
        eventually(lambda: receiver.status().recognised == spooled, "all of it is recognised")
    assert _bodies(spool) == _numbers(0, 1000)


def test_a_queue_that_was_made_differently_is_refused(address, spool, queue):
    queue.channel.queue_declare("audit", durable=True)
    named = Subscription(queue="audit", queue_arguments={"x-max-length": 10})
    with pytest.raises(BrokerRefused, match=r"made differently \(x-max-length is none"):
        Receiver(address, spool, named).subscribe()


@pytest.mark.parametrize("declare", ["passive", "none"])
def test_a_queue_of_somebody_else_is_taken_as_it_is(address, spool, emit, queue, declare):
    named = Subscription(queue="audit", declare=declare)
    emit([b"the exchange is there"])
    with pytest.raises(BrokerRefused, match=r"no queue 'audit'.*only declare=auto creates it"):
        Receiver(address, spool, named).subscribe()
    queue.channel.queue_declare("audit", durable=True, arguments={"x-max-length": 1000})
    queue.channel.queue_bind("audit", "logs")
    with Receiver(address, spool, named) as receiver:
        emit([b"0"])
        _until(receiver, 1)
    assert _bodies(spool) == [b"0"]


@pytest.mark.parametrize("expire", [False, True])
def test_a_backlog_is_drained_and_acked(address, spool, emit, queue, expire, eventually):
    arguments = {"x-message-ttl": 1} if expire else {}
    named = Subscription(queue="audit", queue_arguments=arguments)
    receiver = Receiver(address, spool, named)
    receiver.subscribe()
    receiver.close()
    emit(_numbers(0, 500))
    receiver = Receiver(address, spool, named)
    receiver.subscribe()
    assert not receiver.is_drained()
    if expire:
        eventually(lambda: queue() == (0, 0), "all have expired")
    receiver.consume()
    eventually(receiver.is_drained, "the queue is drained")
    if not expire:
        assert spool.end == 500
        assert queue() == (0, 1)
    receiver.close()
