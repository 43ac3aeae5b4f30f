"""The receiver against a real broker: what was acked is on disk, once, and gaps are recorded."""

import dataclasses
import json
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
import time

import pika
import pytest
from pika import frame, spec

from fanout_source import failpoints, message, subscription
from fanout_source.connection import open_connection
from fanout_source.errors import (
    BrokerRefused,
    BrokerUnreachable,
    FanoutError,
    OptionError,
    SpoolError,
)
from fanout_source.publisher import Publisher
from fanout_source.receiver import Receiver
from fanout_source.spool import Spool, read_slice
from private_node import control
from proxy import Proxy
from waiting import wait_until


@pytest.fixture(autouse=True)
def no_failpoints():
    yield
    failpoints.arm("")


def _numbers(start, end):
    return [b"%d" % number for number in range(start, end)]


def _read(spool, start=None, end=None):
    start, end = spool.start if start is None else start, spool.end if end is None else end
    rows = []
    for piece in spool.slices(start, end):
        batch = read_slice(spool.location, spool.id, piece)
        rows += message.decode(batch, piece.start).to_pylist()
    return rows


def _bodies(spool, start=None, end=None):
    return [row["body"] for row in _read(spool, start, end)]


def _wait_for(receiver, offset):
    """Until this many are durable."""
    deadline, end = time.monotonic() + 60, 0
    while end < offset:
        end = receiver.wait_for_more(end, timeout_seconds=1)
        if time.monotonic() > deadline:
            pytest.fail(f"only {end} of {offset} messages came: {receiver.status()}")
    return end


def _wait_for_status(receiver, condition):
    wait_until(lambda: condition(receiver.status()), f"the status is so; it is {receiver.status()}")


def test_every_subscriber_spools_every_message(address, publish, tmp_path):
    with (
        Spool.create(str(tmp_path)) as one,
        Spool.create(str(tmp_path)) as two,
        Receiver(address, one) as first,
        Receiver(address, two) as second,
    ):
        publish(_numbers(0, 20_000), message_id="m", headers={"host": "web-1"}, timestamp=17)
        for receiver, spool in ((first, one), (second, two)):
            assert _wait_for(receiver, 20_000) == 20_000
            rows = _read(spool)
            assert [row["body"] for row in rows] == _numbers(0, 20_000)
            assert [row["offset"] for row in rows] == list(range(20_000))
            assert rows[7]["headers"] == [("host", "web-1")]
            assert rows[7]["exchange"] == "logs"
            assert rows[7]["decode_error"] is None
        assert first.status().queue != second.status().queue


def test_the_offset_never_runs_ahead_of_what_was_received(address, spool, publish, monkeypatch):
    """Seen from any thread, also between the moment a segment is there and the one it counts."""
    offsets = []
    append = spool.append

    def watched(batch):
        segment = append(batch)
        offsets.append((receiver.status().next_offset, segment.end))
        return segment

    monkeypatch.setattr(spool, "append", watched)
    with Receiver(address, spool) as receiver:
        publish([b"0"])
        _wait_for(receiver, 1)
    assert offsets == [(1, 1)]


def test_ten_lines_subscribe_and_spool(url, tmp_path, publish, eventually, bound_queues):
    program = f"""
from fanout_source import BrokerAddress, Receiver, Spool
end = 0
with Spool.create({str(tmp_path)!r}) as spool:
    with Receiver(BrokerAddress.parse({url!r}), spool) as receiver:
        while end < 3:
            end = receiver.wait_for_more(end, timeout_seconds=60)
print(spool.id)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as subscriber:
        eventually(bound_queues, "the program is subscribed")
        publish(_numbers(0, 3))
        output, _ = subscriber.communicate(timeout=60)
    with Spool.open(str(tmp_path), output.decode().strip()) as spool:
        assert _bodies(spool) == _numbers(0, 3)


def test_the_queue_is_exclusive_named_by_the_server_and_goes_with_the_receiver(
    address, spool, management, vhost, eventually
):
    with Receiver(address, spool) as receiver:
        [queue] = eventually(
            lambda: [q for q in management.get("queues", vhost) if "exclusive" in q],
            "the management API lists the queue",
        )
        assert queue["name"] == receiver.status().queue
        assert queue["name"].startswith("amq.gen-")
        assert queue["exclusive"]
        assert not queue["durable"]
        [binding] = [b for b in management.get("bindings", vhost) if b["source"] == "logs"]
        assert (binding["destination"], binding["routing_key"]) == (queue["name"], "")
    eventually(lambda: management.get("queues", vhost) == [], "the queue went with its subscriber")


def test_nothing_is_taken_before_consume_and_nothing_is_missed(address, spool, publish):
    receiver = Receiver(address, spool)
    receiver.subscribe()
    publish(_numbers(0, 100))
    assert receiver.wait_for_more(0, timeout_seconds=0.5) == 0
    receiver.consume()
    assert _wait_for(receiver, 100) == 100
    receiver.close()
    assert _bodies(spool) == _numbers(0, 100)


def test_what_was_received_is_durable_after_close(address, spool, publish, eventually):
    receiver = Receiver(address, spool)
    receiver.subscribe()
    receiver.consume()
    publish(_numbers(0, 50))
    eventually(lambda: receiver.status().next_offset == 50, "all have been received")
    receiver.close()
    assert _bodies(spool) == _numbers(0, 50)


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 2**20, 16 * 2**20])
def test_bodies_of_any_size_arrive_whole(address, spool, publish, size):
    with Receiver(address, spool) as receiver:
        bodies = [b"a", os.urandom(size), b"b"]
        publish(bodies)
        _wait_for(receiver, 3)
        assert _bodies(spool) == bodies
        assert receiver.status().resubscriptions == 0


def _publish_raw(address, flags_and_properties):
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


def test_poison_passes_with_the_connection_untouched(address, spool, publish):
    with Receiver(address, spool) as receiver:
        for raw in POISON.values():
            _publish_raw(address, raw)
        publish([b"after"], message_id="fine")
        _wait_for(receiver, len(POISON) + 1)
        assert receiver.status().resubscriptions == 0
    rows = dict(zip([*POISON, "after"], _read(spool), strict=True))
    assert [row["body"] for row in rows.values()] == [b"body"] * len(POISON) + [b"after"]
    assert rows["after"]["message_id"] == "fine"
    assert rows["milliseconds in a header"]["headers"] == [("t", "1700000000000")]
    assert rows["a float"]["headers"] == [("f", "1.5"), ("d", "0.1")]
    assert rows["2,000 nested tables"]["headers"][0][1].count("{") == 2000
    assert rows["broken UTF-8"]["headers"] == [("s", "\\xff\\xfe")]
    assert rows["broken UTF-8 as message id"]["message_id"] == "\\xff\\xfe"
    assert rows["a name that comes twice"]["headers"] == [("k", "false")]
    assert {name for name, row in rows.items() if row["decode_error"]} == {
        "the last timestamp there is",
        "milliseconds as timestamp",
        "broken UTF-8",
        "broken UTF-8 as message id",
        "a name that comes twice",
    }


# ── interruptions ───────────────────────────────────────────────────────────────────────────────


def _through(proxy, address):
    return dataclasses.replace(address, host="127.0.0.1", port=proxy.port)


def test_a_cut_connection_is_a_recorded_gap_and_nothing_comes_twice(
    address, spool, publish, proxy, eventually
):
    with Receiver(_through(proxy, address), spool) as receiver:
        publish(_numbers(0, 1000))
        _wait_for(receiver, 1000)
        before = time.time()
        proxy.refuse()
        proxy.reset()
        eventually(lambda: receiver.status().queue is None, "the loss is noticed")
        publish(_numbers(1000, 2000))  # into nobody's queue
        proxy.accept()
        eventually(lambda: receiver.status().queue, "subscribed again")
        publish(_numbers(2000, 3000))
        _wait_for(receiver, 2000)
        [gap] = spool.latest_gaps
        assert (gap.offset, spool.gap_count, receiver.status().resubscriptions) == (1000, 1, 1)
        assert before - 60 < gap.since <= gap.until <= time.time()
        assert gap.until >= before
        assert "was lost" in gap.reason
    assert _bodies(spool) == _numbers(0, 1000) + _numbers(2000, 3000)


def test_what_had_been_received_when_the_connection_went_is_kept(
    address, spool, publish, proxy, eventually
):
    with Receiver(_through(proxy, address), spool) as receiver:
        publish(_numbers(0, 10))
        eventually(lambda: receiver.status().next_offset == 10, "received, not yet written")
        assert spool.end == 0
        proxy.reset()
        eventually(lambda: receiver.status().resubscriptions == 1, "subscribed again")
        publish(_numbers(10, 20))
        _wait_for(receiver, 20)
        assert spool.latest_gaps[-1].offset == 10
    assert _bodies(spool) == _numbers(0, 20)


def test_an_operator_who_closes_the_connection_is_survived(
    address, spool, broker, vhost, eventually
):
    with Receiver(address, spool) as receiver:
        control(broker.process, "close_all_connections", "--vhost", vhost, "maintenance")
        eventually(lambda: receiver.status().resubscriptions == 1, "subscribed again")
        assert "maintenance" in spool.latest_gaps[-1].reason
        with Publisher(address) as publisher:
            publisher.publish(b"0")
        assert _wait_for(receiver, 1) == 1


def test_a_deleted_queue_is_noticed(address, spool, publish, broker, vhost, eventually):
    with Receiver(address, spool) as receiver:
        queue = receiver.status().queue
        publish([b"0"])
        _wait_for(receiver, 1)
        control(broker.process, "delete_queue", "-p", vhost, queue)
        eventually(lambda: receiver.status().resubscriptions == 1, "subscribed again")
        assert "queue deleted?" in spool.latest_gaps[-1].reason
        publish([b"1"])
        _wait_for(receiver, 2)
    assert _bodies(spool) == [b"0", b"1"]


def test_a_restart_is_a_recorded_gap(address, publish, tmp_path):
    with Spool.create(str(tmp_path)) as spool, Receiver(address, spool) as receiver:
        publish([b"0"])
        _wait_for(receiver, 1)
    publish([b"lost"])
    with Spool.open(str(tmp_path), spool.id) as spool, Receiver(address, spool) as receiver:
        publish([b"1"])
        _wait_for(receiver, 2)
        [gap] = spool.latest_gaps
        assert (gap.offset, gap.reason) == (1, "the subscriber was not running")
        assert gap.since <= gap.until
        assert _bodies(spool) == [b"0", b"1"]


def test_a_broker_that_refuses_is_an_error_at_once(address, spool):
    stranger = dataclasses.replace(address, password="s3cret")
    with pytest.raises(BrokerRefused, match="refused the login"):
        Receiver(stranger, spool).subscribe()


def test_a_broker_that_is_not_there_is_an_error_at_the_start(address, spool):
    nowhere = dataclasses.replace(address, port=1)
    with pytest.raises(BrokerUnreachable, match="no broker listens"):
        Receiver(nowhere, spool).subscribe()


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


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_after_a_failed_sync_nothing_is_acked_and_the_reader_is_told(
    address, spool, publish, error, eventually, management, vhost, monkeypatch
):
    acked = []
    ack = subscription.Session.ack
    monkeypatch.setattr(
        subscription.Session, "ack", lambda session, tag: (acked.append(tag), ack(session, tag))
    )
    with Receiver(address, spool) as receiver:
        publish([b"0"])
        _wait_for(receiver, 1)
        failpoints.arm(f"spool.fsync={error}")
        publish([b"1"])
        with pytest.raises(SpoolError, match="cannot write"):
            receiver.wait_for_more(1, timeout_seconds=60)
        eventually(lambda: management.get("queues", vhost) == [], "the queue is gone")
    assert _bodies(spool) == [b"0"]
    assert acked == [1]


def test_a_memory_alarm_does_not_stop_consuming(address, spool, publish, broker):
    receiver = Receiver(address, spool)
    receiver.subscribe()
    publish(_numbers(0, 5000))
    control(broker.process, "set_vm_memory_high_watermark", "0")
    try:
        receiver.consume()
        assert _wait_for(receiver, 5000) == 5000
    finally:
        control(broker.process, "set_vm_memory_high_watermark", "0.4")
        receiver.close()


# ── limits ──────────────────────────────────────────────────────────────────────────────────────


def _queued(management, vhost):
    return sum(queue.get("messages", 0) for queue in management.get("queues", vhost))


def test_at_its_limit_the_rest_waits_in_the_broker(
    address, spool, publish, eventually, management, vhost
):
    limit, count = 2_000_000, 60_000  # a limit that small pieces do not overshoot
    with Receiver(address, spool, max_spool_bytes=limit, prefetch_count=500) as receiver:
        publish(_numbers(0, count))
        eventually(lambda: receiver.status().paused, "it pauses")
        eventually(lambda: _queued(management, vhost) > count // 2, "the broker keeps the rest")
        assert spool.bytes <= limit
        seen = []
        while len(seen) < count:
            end = receiver.wait_for_more(len(seen), timeout_seconds=1)
            assert spool.bytes <= limit * 5 // 4
            seen += _bodies(spool, len(seen), end)
            receiver.drop_below(end)
        assert receiver.status().resubscriptions == 0
    assert seen == _numbers(0, count)


def test_a_reader_that_lets_go_one_batch_late_is_never_starved(address, spool, publish):
    """As Spark does: a batch is committed after the next one is planned."""
    limit, count = 100_000, 20_000
    with Receiver(address, spool, max_spool_bytes=limit, prefetch_count=500) as receiver:
        publish(_numbers(0, count))
        seen, planned = [], 0
        while planned < count:
            end = receiver.wait_for_more(planned, timeout_seconds=1)
            if end > planned:
                seen += _bodies(spool, planned, end)
                receiver.drop_below(planned)
                planned = end
                assert spool.bytes <= limit * 3 // 2
    assert seen == _numbers(0, count)


def test_messages_larger_than_the_limit_come_one_by_one(address, spool, publish):
    bodies = [bytes([number]) * 3_000_000 for number in range(20)]
    with Receiver(address, spool, max_spool_bytes=1_000_000) as receiver:
        publish(bodies)
        seen, most = [], 0
        while len(seen) < len(bodies):
            end = receiver.wait_for_more(len(seen), timeout_seconds=1)
            seen += _bodies(spool, len(seen), end)
            most = max(most, spool.bytes)
            receiver.drop_below(end)
        assert seen == bodies
        assert most < 4 * 3_000_000


def test_large_messages_then_small_ones_arrive_in_order_and_once(address, spool, publish):
    bodies = [b"x" * 500_000] * 60 + _numbers(0, 5000)
    with Receiver(address, spool, max_spool_bytes=8_000_000) as receiver:
        publish(bodies)
        seen = []
        while len(seen) < len(bodies):
            end = receiver.wait_for_more(len(seen), timeout_seconds=1)
            seen += _bodies(spool, len(seen), end)
            receiver.drop_below(end)
            assert spool.bytes <= 10_000_000
    assert seen == bodies


# ── where pika has no place for a tap ───────────────────────────────────────────────────────────


class _OtherPika(pika.SelectConnection):
    tap = None
    is_tapped = False


def test_without_a_tap_pikas_callback_is_used_and_it_is_said_once(
    address, publish, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(subscription, "_TappedConnection", _OtherPika)
    monkeypatch.setattr(subscription, "_warned", False)
    bodies = [b"", b"x" * 300_000, *_numbers(0, 1000)]
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with Spool.create(str(tmp_path)) as spool, Receiver(address, spool) as receiver:
                publish(bodies, message_id="m", headers={"a": 1})
                _wait_for(receiver, len(bodies))
                rows = _read(spool)
                assert [row["body"] for row in rows] == bodies
                assert rows[5]["message_id"] == "m"
                assert rows[5]["headers"] == [("a", "1")]
    assert caplog.text.count("no place for a tap") == 1


# ── kills ───────────────────────────────────────────────────────────────────────────────────────

KILLABLE = """
import sys
from fanout_source import BrokerAddress, Receiver, Spool
url, location, spool_id = sys.argv[1:]
end = 0
with Spool.open(location, spool_id) as spool:
    with Receiver(BrokerAddress.parse(url), spool) as receiver:
        while True:
            end = receiver.wait_for_more(end, timeout_seconds=60)
            print(end, flush=True)
"""


@pytest.mark.parametrize(
    "step",
    [
        "receiver.write",
        "spool.write",
        "spool.fsync",
        "spool.rename",
        "spool.sync_folder",
        "spool.published",
        "receiver.ack",
        "receiver.acked",
    ],
)
def test_a_kill_at_any_step_loses_nothing_that_was_durable_and_doubles_nothing(
    address, url, tmp_path, publish, eventually, bound_queues, management, vhost, step
):
    location = str(tmp_path)
    with Spool.create(location) as spool:
        pass
    turn = 4 if step.startswith("spool") else 3  # the spool's steps are also those of its state
    with subprocess.Popen(
        [sys.executable, "-c", KILLABLE, url, location, spool.id],
        env={**os.environ, "FANOUT_FAILPOINTS": f"{step}=kill@{turn}"},
        stdout=subprocess.PIPE,
    ) as process:
        eventually(bound_queues, "the queue is bound")
        for start in range(0, 100_000, 100):
            publish(_numbers(start, start + 100))
            if process.poll() is not None:
                break
            time.sleep(0.02)
        assert process.wait(60) == -signal.SIGKILL
        told = [int(line) for line in process.stdout]
    eventually(lambda: management.get("queues", vhost) == [], "the queue went with its subscriber")
    with Spool.open(location, spool.id) as spool:
        before = spool.end
        assert _bodies(spool) == _numbers(0, before)
        assert before >= max(told, default=0)
        with Receiver(address, spool) as receiver:
            publish([b"after"])
            _wait_for(receiver, before + 1)
            assert spool.latest_gaps[-1].offset == before
        assert _bodies(spool) == [*_numbers(0, before), b"after"]


def test_the_status_is_plain_data(address, spool):
    with Receiver(address, spool) as receiver:
        status = dataclasses.asdict(receiver.status())
    assert json.loads(json.dumps(status)) == status


# ── what a careful reader of the code has tried ─────────────────────────────────────────────────


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1])
def test_close_returns_while_messages_keep_coming(address, publish, tmp_path, delay):
    publish([b"the exchange is there"])
    for attempt in range(3):
        with Spool.create(str(tmp_path / str(attempt))) as spool:
            receiver = Receiver(address, spool)
            receiver.subscribe()
            publish(_numbers(0, 10_000))
            receiver.consume()
            time.sleep(delay)
            closing = threading.Thread(target=receiver.close, daemon=True)
            closing.start()
            closing.join(30)
            assert not closing.is_alive()
            assert _bodies(spool) == _numbers(0, spool.end)


@pytest.mark.parametrize("client_bytes", [1, 9, 100, 400, 430])
def test_a_connection_that_ends_during_the_login_is_tried_again(
    address, spool, proxy, publish, client_bytes
):
    through = dataclasses.replace(address, host="127.0.0.1", port=proxy.port)
    with Receiver(through, spool) as receiver:
        proxy.reset_next_after(client_bytes)
        proxy.reset()
        _wait_for_status(receiver, lambda status: status.resubscriptions == 1)
        publish([b"after"])
        _wait_for(receiver, 1)
    assert spool.gap_count == 1


def test_a_second_receiver_on_a_spool_records_the_time_between(address, spool, publish):
    with Receiver(address, spool) as receiver:
        publish([b"0"])
        _wait_for(receiver, 1)
    between = time.time()
    publish([b"missed"])
    with Receiver(address, spool) as receiver:
        publish([b"1"])
        _wait_for(receiver, 2)
    [gap] = spool.latest_gaps
    assert gap.offset == 1
    assert gap.since <= between <= gap.until
    assert _bodies(spool) == [b"0", b"1"]


def test_a_gap_while_paused_began_with_the_pause(address, spool, proxy, publish):
    through = dataclasses.replace(address, host="127.0.0.1", port=proxy.port)
    with Receiver(through, spool, max_spool_bytes=100_000, heartbeat_seconds=1) as receiver:
        publish([b"x" * 1000] * 500)
        _wait_for_status(receiver, lambda status: status.paused)
        paused = time.time()
        time.sleep(2.5)  # heartbeats go on
        proxy.reset()
        _wait_for_status(receiver, lambda status: status.resubscriptions == 1)
    assert spool.latest_gaps[-1].since < paused + 0.5


def test_letting_go_of_nothing_does_not_lift_the_limit(address, spool, publish):
    with Receiver(address, spool, max_spool_bytes=1_000_000) as receiver:
        publish([b"x" * 1000] * 5000)
        end = 0
        for _ in range(30):
            end = receiver.wait_for_more(end, timeout_seconds=0.05)
            receiver.drop_below(0)
        assert spool.bytes < 2_000_000


def test_a_wait_ends_when_the_receiver_is_closed(address, spool):
    with Receiver(address, spool) as receiver:
        waiting = threading.Thread(target=receiver.wait_for_more, args=(0, 600), daemon=True)
        waiting.start()
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_wait_for_room_ends_when_another_thread_makes_room(address, spool, publish):
    with Receiver(address, spool, max_spool_bytes=1_000_000) as receiver:
        publish([b"%d" % n * 900_000 for n in range(4)])
        end = receiver.wait_for_more(0, timeout_seconds=60)
        while (more := receiver.wait_for_more(end, timeout_seconds=1)) > end:
            end = more  # the sip that a full spool allows
        threading.Timer(0.5, receiver.drop_below, args=(end,)).start()
        assert receiver.wait_for_more(end, timeout_seconds=600) > end


@pytest.mark.parametrize(
    "setting",
    [
        {"prefetch_count": 0},
        {"prefetch_count": 100_000},
        {"max_spool_bytes": 0},
        {"heartbeat_seconds": -1},
        {"heartbeat_seconds": 70_000},
        {"connection_timeout_seconds": 0},
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(address, spool, setting):
    [name] = setting
    with pytest.raises(OptionError, match=name):
        Receiver(address, spool, **setting)


def test_subscribing_twice_is_refused(address, spool):
    with Receiver(address, spool) as receiver, pytest.raises(FanoutError, match="already"):
        receiver.subscribe()


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
        _wait_for(receiver, 1)
        connection = open_connection(address)
        connection.channel().exchange_delete("logs")
        _wait_for_status(receiver, lambda status: status.gaps == 1)
        connection.channel().exchange_delete("logs")
        connection.channel().exchange_declare("logs", "fanout")
        connection.close()
        eventually(bound_queues, "the queue is bound again")
        publish([b"1"])
        _wait_for(receiver, 2)
    assert _bodies(spool) == [b"0", b"1"]


def test_the_log_tells_each_event_once(address, spool, proxy, publish, caplog):
    caplog.set_level(logging.INFO, "fanout_source")
    through = dataclasses.replace(address, host="127.0.0.1", port=proxy.port)
    with Receiver(through, spool) as receiver:
        publish([b"0"])
        _wait_for(receiver, 1)
        proxy.reset()
        _wait_for_status(receiver, lambda status: status.resubscriptions == 1)
    told = [record.getMessage() for record in caplog.records if record.name != "pika"]
    source = f"exchange 'logs' on the broker at 127.0.0.1:{proxy.port}"
    assert [line.partition(",")[0] for line in told if source in line] == [
        f"subscribed to {source}",
        f"the subscription to {source}",
        f"subscribed again to {source}",
    ]
    [gap] = [line for line in told if line.startswith("gap of ")]
    assert "before offset 1: receiving: the connection to the broker at" in gap


def test_what_nobody_waits_for_is_made_durable_all_the_same(address, spool, publish, eventually):
    with Receiver(address, spool):
        publish([b"0"])
        eventually(lambda: spool.end == 1, "the message is on disk", 10)


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


def test_a_connection_that_is_half_open_is_given_up(address, spool, proxy, publish):
    through = dataclasses.replace(address, port=proxy.port)
    with Receiver(through, spool, heartbeat_seconds=1) as receiver:
        proxy.stall()
        _wait_for_status(receiver, lambda status: status.resubscriptions == 1)
        publish([b"0"])
        _wait_for(receiver, 1)
    [gap] = spool.latest_gaps
    assert "stopped answering heartbeats" in gap.reason
