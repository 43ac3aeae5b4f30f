"""Whatever ends a subscription: it is taken up again, and what was missed is recorded."""

import dataclasses
import logging
import time

import pytest
from pika import frame, spec

from fanout_source import failpoints, subscription
from fanout_source.connection import open_connection
from fanout_source.errors import BrokerRefused, BrokerUnreachable, SpoolError
from fanout_source.publisher import Publisher
from fanout_source.receiver import Receiver
from fanout_source.spool import Spool
from private_node import control
from proxy import Proxy
from receiving import bodies_of, numbers, wait_for, wait_for_status


def _through(proxy, address):
    return dataclasses.replace(address, host="127.0.0.1", port=proxy.port)


def test_a_cut_connection_is_a_recorded_gap_and_nothing_comes_twice(
    address, spool, publish, proxy, eventually
):
    with Receiver(_through(proxy, address), spool) as receiver:
        publish(numbers(0, 1000))
        wait_for(receiver, 1000)
        before = time.time()
        proxy.refuse()
        proxy.reset()
        eventually(lambda: receiver.status().queue is None, "the loss is noticed")
        publish(numbers(1000, 2000))  # into nobody's queue
        proxy.accept()
        eventually(lambda: receiver.status().queue, "subscribed again")
        publish(numbers(2000, 3000))
        wait_for(receiver, 2000)
        [gap] = spool.latest_gaps
        assert (gap.offset, spool.gap_count, receiver.status().resubscriptions) == (1000, 1, 1)
        assert before - 60 < gap.since <= gap.until <= time.time()
        assert gap.until >= before
        assert "was lost" in gap.reason
    assert bodies_of(spool) == numbers(0, 1000) + numbers(2000, 3000)


def test_what_had_been_received_when_the_connection_went_is_kept(
    address, spool, publish, proxy, eventually
):
    with Receiver(_through(proxy, address), spool) as receiver:
        publish(numbers(0, 10))
        eventually(lambda: receiver.status().next_offset == 10, "received, not yet written")
        assert spool.end == 0
        proxy.reset()
        eventually(lambda: receiver.status().resubscriptions == 1, "subscribed again")
        publish(numbers(10, 20))
        wait_for(receiver, 20)
        assert spool.latest_gaps[-1].offset == 10
    assert bodies_of(spool) == numbers(0, 20)


def test_an_operator_who_closes_the_connection_is_survived(
    address, spool, broker, vhost, eventually
):
    with Receiver(address, spool) as receiver:
        control(broker.process, "close_all_connections", "--vhost", vhost, "maintenance")
        eventually(lambda: receiver.status().resubscriptions == 1, "subscribed again")
        assert "maintenance" in spool.latest_gaps[-1].reason
        with Publisher(address) as publisher:
            publisher.publish(b"0")
        assert wait_for(receiver, 1) == 1


def test_a_deleted_queue_is_noticed(address, spool, publish, broker, vhost, eventually):
    with Receiver(address, spool) as receiver:
        queue = receiver.status().queue
        publish([b"0"])
        wait_for(receiver, 1)
        control(broker.process, "delete_queue", "-p", vhost, queue)
        eventually(lambda: receiver.status().resubscriptions == 1, "subscribed again")
        assert "queue deleted?" in spool.latest_gaps[-1].reason
        publish([b"1"])
        wait_for(receiver, 2)
    assert bodies_of(spool) == [b"0", b"1"]


def test_a_restart_is_a_recorded_gap(address, publish, tmp_path):
    with Spool.create(str(tmp_path)) as spool, Receiver(address, spool) as receiver:
        publish([b"0"])
        wait_for(receiver, 1)
    publish([b"lost"])
    with Spool.open(str(tmp_path), spool.id) as spool, Receiver(address, spool) as receiver:
        publish([b"1"])
        wait_for(receiver, 2)
        [gap] = spool.latest_gaps
        assert (gap.offset, gap.reason) == (1, "the subscriber was not running")
        assert gap.since <= gap.until
        assert bodies_of(spool) == [b"0", b"1"]


def test_starts_that_fail_do_not_shorten_the_gap(address, spool, publish):
    with Receiver(address, spool) as receiver:
        publish([b"0"])
        wait_for(receiver, 1)
    ended = time.time()
    nowhere = dataclasses.replace(address, port=1)
    for _ in range(2):
        spool.close()
        spool = Spool.open(spool.location, spool.id)
        with pytest.raises(BrokerUnreachable):
            Receiver(nowhere, spool).subscribe()
    with Receiver(address, spool):
        [gap] = spool.latest_gaps
    assert gap.since <= ended <= gap.until
    spool.close()


def test_a_refusal_after_an_interruption_ends_the_receiver(
    address, spool, proxy, management, vhost
):
    management.put("users", vhost, body={"password": "p", "tags": ""})
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    management.put("permissions", vhost, vhost, body=rights)
    try:
        account = dataclasses.replace(_through(proxy, address), username=vhost, password="p")
        with Receiver(account, spool) as receiver:
            assert receiver.wait_for_more(0) == 0
            management.put("users", vhost, body={"password": "other", "tags": ""})
            proxy.reset()
            with pytest.raises(BrokerRefused, match="refused the login"):
                receiver.wait_for_more(0, timeout_seconds=60)
    finally:
        management.delete("users", vhost)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("spool.write", "ENOSPC"), ("spool.write", "EROFS"), ("spool.fsync", "EIO"),
        ("spool.fsync", "ENOSPC"), ("spool.rename", "ENOSPC"), ("spool.sync_folder", "EIO"),
    ],
)  # fmt: skip
def test_after_an_error_of_the_disk_nothing_is_acked_and_the_reader_is_told(
    address, spool, publish, step, error, eventually, management, vhost, monkeypatch
):
    acked = []
    ack = subscription.Session.ack
    monkeypatch.setattr(
        subscription.Session, "ack", lambda session, tag: (acked.append(tag), ack(session, tag))
    )
    with Receiver(address, spool) as receiver:
        publish([b"0"])
        wait_for(receiver, 1)
        failpoints.arm(f"{step}={error}")
        publish([b"1"])
        with pytest.raises(SpoolError, match="cannot write"):
            receiver.wait_for_more(1, timeout_seconds=60)
        eventually(lambda: management.get("queues", vhost) == [], "the queue is gone")
    assert bodies_of(spool) == [b"0"]
    assert acked == [1]


@pytest.mark.parametrize(
    ("alarm", "all_clear"),
    [
        (("set_vm_memory_high_watermark", "0"), ("set_vm_memory_high_watermark", "0.4")),
        (("set_disk_free_limit", "1000000GB"), ("set_disk_free_limit", "50MB")),
    ],
    ids=["memory", "disk"],
)
def test_an_alarm_does_not_stop_consuming(
    address, spool, publish, broker, management, eventually, alarm, all_clear
):
    receiver = Receiver(address, spool)
    receiver.subscribe()
    publish(numbers(0, 5000))
    control(broker.process, *alarm)
    try:
        eventually(lambda: _has_alarm(management), "there is an alarm")
        receiver.consume()
        assert wait_for(receiver, 5000) == 5000
    finally:
        control(broker.process, *all_clear)
        receiver.close()
    eventually(lambda: not _has_alarm(management), "all is clear")


def _has_alarm(management):
    [node] = management.get("nodes")
    return node.get("mem_alarm") or node.get("disk_free_alarm")


@pytest.mark.parametrize("client_bytes", [1, 9, 100, 400, 430])
def test_a_connection_that_ends_during_the_login_is_tried_again(
    address, spool, proxy, publish, client_bytes
):
    through = dataclasses.replace(address, host="127.0.0.1", port=proxy.port)
    with Receiver(through, spool) as receiver:
        proxy.reset_next_after(client_bytes)
        proxy.reset()
        wait_for_status(receiver, lambda status: status.resubscriptions == 1)
        publish([b"after"])
        wait_for(receiver, 1)
    assert spool.gap_count == 1


def test_a_second_receiver_on_a_spool_records_the_time_between(address, spool, publish):
    with Receiver(address, spool) as receiver:
        publish([b"0"])
        wait_for(receiver, 1)
    between = time.time()
    publish([b"missed"])
    with Receiver(address, spool) as receiver:
        publish([b"1"])
        wait_for(receiver, 2)
    [gap] = spool.latest_gaps
    assert gap.offset == 1
    assert gap.since <= between <= gap.until
    assert bodies_of(spool) == [b"0", b"1"]


def test_a_gap_that_cannot_be_recorded_leaves_no_queue(
    address, tmp_path, management, vhost, eventually
):
    with Spool.create(str(tmp_path)) as spool:
        pass
    with Spool.open(str(tmp_path), spool.id) as spool:
        failpoints.arm("spool.fsync=ENOSPC")
        with pytest.raises(SpoolError, match="No space left"):
            Receiver(address, spool).subscribe()
        eventually(lambda: management.get("queues", vhost) == [], "the queue is gone")


def test_an_exchange_that_is_deleted_is_missed_and_bound_again(
    address, spool, publish, eventually, bound_queues
):
    with Receiver(address, spool, heartbeat_seconds=1) as receiver:
        publish([b"0"])
        wait_for(receiver, 1)
        connection = open_connection(address)
        connection.channel().exchange_delete("logs")
        wait_for_status(receiver, lambda status: status.gaps == 1)
        connection.channel().exchange_delete("logs")
        connection.channel().exchange_declare("logs", "fanout")
        connection.close()
        eventually(bound_queues, "the queue is bound again")
        publish([b"1"])
        wait_for(receiver, 2)
    assert bodies_of(spool) == [b"0", b"1"]


def test_the_log_tells_each_event_once(address, spool, proxy, publish, caplog):
    caplog.set_level(logging.INFO, "fanout_source")
    through = dataclasses.replace(address, host="127.0.0.1", port=proxy.port)
    with Receiver(through, spool) as receiver:
        publish([b"0"])
        wait_for(receiver, 1)
        proxy.reset()
        wait_for_status(receiver, lambda status: status.resubscriptions == 1)
    told = [record.getMessage() for record in caplog.records if record.name != "pika"]
    source = f"exchange 'logs' on the broker at 127.0.0.1:{proxy.port}"
    assert [line.partition(",")[0] for line in told if source in line] == [
        f"subscribed to {source}",
        f"the subscription to {source}",
        f"subscribed again to {source}",
    ]
    [gap] = [line for line in told if line.startswith("gap of ")]
    assert "before offset 1: receiving: the connection to the broker at" in gap


class _Counting(Proxy):
    heartbeats = 0

    def _passing(self, source, data):
        self.heartbeats += data.startswith(b"\x08\x00\x00")


def test_a_connection_that_is_quiet_is_left_alone(address, spool, eventually):
    with _Counting(address.host, address.port) as proxy:
        through = dataclasses.replace(address, port=proxy.port)
        with Receiver(through, spool, heartbeat_seconds=1) as receiver:
            eventually(lambda: proxy.heartbeats >= 12, "heartbeats have passed")
            assert receiver.status().resubscriptions == 0


def test_a_clock_that_is_set_ends_no_connection(address, spool, publish, monkeypatch, eventually):
    with (
        _Counting(address.host, address.port) as proxy,
        Receiver(_through(proxy, address), spool, heartbeat_seconds=1) as receiver,
    ):
        clock = time.time
        monkeypatch.setattr("fanout_source.subscription.time.time", lambda: clock() + 3600)
        eventually(lambda: proxy.heartbeats >= 8, "heartbeats have passed")
        assert receiver.status().resubscriptions == 0


def test_a_connection_that_is_half_open_is_given_up(address, spool, proxy, publish):
    through = dataclasses.replace(address, port=proxy.port)
    with Receiver(through, spool, heartbeat_seconds=1) as receiver:
        proxy.stall()
        wait_for_status(receiver, lambda status: status.resubscriptions == 1)
        publish([b"0"])
        wait_for(receiver, 1)
    [gap] = spool.latest_gaps
    assert "stopped answering heartbeats" in gap.reason


class _Refusing(Proxy):
    """Counts who comes."""

    tries = 0

    def refuse(self):
        super().refuse()
        self.began = time.monotonic()

    def _refused(self):
        self.tries += 1


def test_a_broker_that_is_away_is_not_stormed(address, spool, eventually, publish):
    """Tries are at most two seconds apart, and at least half a pause that doubles."""
    with _Refusing(address.host, address.port) as proxy:
        with Receiver(_through(proxy, address), spool) as receiver:
            proxy.refuse()
            proxy.reset()
            eventually(lambda: proxy.tries >= 7, "it tries again")
            seconds = time.monotonic() - proxy.began
            proxy.accept()
            wait_for_status(receiver, lambda status: status.resubscriptions == 1)
            publish([b"0"])
            wait_for(receiver, 1)
        assert seconds > (0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 2) / 2
    assert spool.gap_count == 1


def test_a_login_that_is_refused_is_tried_once(address, spool, proxy):
    stranger = dataclasses.replace(_through(proxy, address), password="s3cret")
    with pytest.raises(BrokerRefused, match="refused the login"):
        Receiver(stranger, spool).subscribe()
    assert proxy.connections == 1


class _Cancelling(Proxy):
    """Says in the broker's place that a consumer is cancelled."""

    def _connected(self, client, server):
        self._server = server

    def cancel(self, channel, consumer_tag):
        notice = frame.Method(channel, spec.Basic.Cancel(consumer_tag, nowait=True)).marshal()
        [client] = self._open - {self._server}
        client.sendall(notice)  # nothing else is under way


def test_a_consumer_that_is_cancelled_with_its_queue_alive_is_replaced(address, spool, publish):
    with (
        _Cancelling(address.host, address.port) as proxy,
        Receiver(_through(proxy, address), spool) as receiver,
    ):
        publish([b"0"])
        wait_for(receiver, 1)
        proxy.cancel(receiver._session.channel_number, "fanout")
        wait_for_status(receiver, lambda status: status.resubscriptions == 1)
        publish([b"1"])
        wait_for(receiver, 2)
    assert bodies_of(spool) == [b"0", b"1"]
    assert "ended the consumer" in spool.latest_gaps[-1].reason
