"""The receiver against a real broker: what was acked is on disk, once, and gaps are recorded."""

import dataclasses
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pika
import pytest

from fanout_source import subscription
from fanout_source.errors import (
    BrokerRefused,
    BrokerUnreachable,
    FanoutError,
    OptionError,
)
from fanout_source.receiver import Receiver
from fanout_source.spool import Spool
from poison import POISON, publish_raw
from receiving import bodies_of, numbers, rows_of, wait_for


def test_every_subscriber_spools_every_message(address, publish, tmp_path):
    with (
        Spool.create(str(tmp_path)) as one,
        Spool.create(str(tmp_path)) as two,
        Receiver(address, one) as first,
        Receiver(address, two) as second,
    ):
        publish(numbers(0, 20_000), message_id="m", headers={"host": "web-1"}, timestamp=17)
        for receiver, spool in ((first, one), (second, two)):
            assert wait_for(receiver, 20_000) == 20_000
            rows = rows_of(spool)
            assert [row["body"] for row in rows] == numbers(0, 20_000)
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
        wait_for(receiver, 1)
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
        publish(numbers(0, 3))
        output, _ = subscriber.communicate(timeout=60)
    with Spool.open(str(tmp_path), output.decode().strip()) as spool:
        assert bodies_of(spool) == numbers(0, 3)


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
    publish(numbers(0, 100))
    assert receiver.wait_for_more(0, timeout_seconds=0.5) == 0
    receiver.consume()
    assert wait_for(receiver, 100) == 100
    receiver.close()
    assert bodies_of(spool) == numbers(0, 100)


def test_what_was_received_is_durable_after_close(address, spool, publish, eventually):
    receiver = Receiver(address, spool)
    receiver.subscribe()
    receiver.consume()
    publish(numbers(0, 50))
    eventually(lambda: receiver.status().next_offset == 50, "all have been received")
    receiver.close()
    assert bodies_of(spool) == numbers(0, 50)


# The last is the most that RabbitMQ takes by default.
@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 2**20, 16 * 2**20, 128 * 2**20])
def test_bodies_of_any_size_arrive_whole(address, spool, publish, size):
    with Receiver(address, spool) as receiver:
        bodies = [b"a", os.urandom(size), b"b"]
        publish(bodies)
        wait_for(receiver, 3)
        assert bodies_of(spool) == bodies
        assert receiver.status().resubscriptions == 0


def test_poison_passes_with_the_connection_untouched(address, spool, publish):
    with Receiver(address, spool) as receiver:
        for raw in POISON.values():
            publish_raw(address, raw)
        publish([b"after"], message_id="fine")
        wait_for(receiver, len(POISON) + 1)
        assert receiver.status().resubscriptions == 0
    rows = dict(zip([*POISON, "after"], rows_of(spool), strict=True))
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


def test_a_broker_that_refuses_is_an_error_at_once(address, spool):
    stranger = dataclasses.replace(address, password="s3cret")
    with pytest.raises(BrokerRefused, match="refused the login"):
        Receiver(stranger, spool).subscribe()


def test_a_broker_that_is_not_there_is_an_error_at_the_start(address, spool):
    nowhere = dataclasses.replace(address, port=1)
    with pytest.raises(BrokerUnreachable, match="no broker listens"):
        Receiver(nowhere, spool).subscribe()


def test_a_broker_that_says_nothing_is_an_error_after_the_stated_time(address, spool):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        nobody = dataclasses.replace(address, port=port, password="s3cret")
        with pytest.raises(BrokerUnreachable, match=rf"127\.0\.0\.1:{port}") as failure:
            Receiver(nobody, spool, connection_timeout_seconds=0.5).subscribe()
    assert "s3cret" not in str(failure.value)


class _OtherPika(pika.SelectConnection):
    tap = None
    is_tapped = False


def test_without_a_tap_pikas_callback_is_used_and_it_is_said_once(
    address, publish, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(subscription, "_TappedConnection", _OtherPika)
    monkeypatch.setattr(subscription, "_warned", False)
    bodies = [b"", b"x" * 300_000, *numbers(0, 1000)]
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with Spool.create(str(tmp_path)) as spool, Receiver(address, spool) as receiver:
                publish(bodies, message_id="m", headers={"a": 1})
                wait_for(receiver, len(bodies))
                rows = rows_of(spool)
                assert [row["body"] for row in rows] == bodies
                assert rows[5]["message_id"] == "m"
                assert rows[5]["headers"] == [("a", "1")]
    assert caplog.text.count("no place for a tap") == 1


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
            publish(numbers(start, start + 100))
            if process.poll() is not None:
                break
            time.sleep(0.02)
        assert process.wait(60) == -signal.SIGKILL
        told = [int(line) for line in process.stdout]
    eventually(lambda: management.get("queues", vhost) == [], "the queue went with its subscriber")
    with Spool.open(location, spool.id) as spool:
        before = spool.end
        assert bodies_of(spool) == numbers(0, before)
        assert before >= max(told, default=0)
        with Receiver(address, spool) as receiver:
            publish([b"after"])
            wait_for(receiver, before + 1)
            assert spool.latest_gaps[-1].offset == before
        assert bodies_of(spool) == [*numbers(0, before), b"after"]


def test_the_status_is_plain_data(address, spool):
    with Receiver(address, spool) as receiver:
        status = dataclasses.asdict(receiver.status())
    assert json.loads(json.dumps(status)) == status


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1])
def test_close_returns_while_messages_keep_coming(address, publish, tmp_path, delay):
    publish([b"the exchange is there"])
    for attempt in range(3):
        with Spool.create(str(tmp_path / str(attempt))) as spool:
            receiver = Receiver(address, spool)
            receiver.subscribe()
            publish(numbers(0, 10_000))
            receiver.consume()
            time.sleep(delay)
            closing = threading.Thread(target=receiver.close, daemon=True)
            closing.start()
            closing.join(30)
            assert not closing.is_alive()
            assert bodies_of(spool) == numbers(0, spool.end)


def test_a_wait_ends_when_the_receiver_is_closed(address, spool):
    with Receiver(address, spool) as receiver:
        waiting = threading.Thread(target=receiver.wait_for_more, args=(0, 600), daemon=True)
        waiting.start()
    waiting.join(30)
    assert not waiting.is_alive()


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


def test_what_nobody_waits_for_is_made_durable_all_the_same(address, spool, publish, eventually):
    with Receiver(address, spool):
        publish([b"0"])
        eventually(lambda: spool.end == 1, "the message is on disk", 10)
