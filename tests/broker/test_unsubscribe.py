"""Removing a queue that is no longer wanted."""

import subprocess

import pytest

from fanout_source.connection import open_connection
from fanout_source.receiver import Receiver
from fanout_source.spool import Spool
from fanout_source.subscription import Subscription


@pytest.fixture
def channel(address):
    with open_connection(address) as connection:
        channel = connection.channel()
        channel.queue_declare("audit", durable=True, arguments={"x-queue-type": "quorum"})
        yield channel


@pytest.fixture
def unsubscribe(script, url):
    def run(*arguments):
        command = script("unsubscribe.py", "--url", url, *arguments)
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    return run


def test_an_empty_queue_goes(unsubscribe, channel, management, vhost):
    ran = unsubscribe("audit")
    assert (ran.returncode, ran.stdout) == (0, "queue 'audit' is gone, with 0 messages\n")
    assert management.get("queues", vhost) == []


def test_messages_are_not_removed_without_a_word(unsubscribe, channel, management, vhost):
    channel.confirm_delivery()
    channel.basic_publish("", "audit", b"precious")
    ran = unsubscribe("audit")
    assert ran.returncode == 1
    assert "queue 'audit' holds 1 messages: --yes removes them too" in ran.stderr
    assert len(management.get("queues", vhost)) == 1
    assert unsubscribe("audit", "--yes").returncode == 0
    assert management.get("queues", vhost) == []


def test_a_queue_with_a_subscriber_or_without_existence_is_refused(unsubscribe, channel):
    channel.basic_consume("audit", lambda *_: None)
    assert "has a subscriber: stop it first" in unsubscribe("audit").stderr
    assert "there is no queue 'adit'" in unsubscribe("adit").stderr


def test_what_a_queue_has_left_that_went_by_itself_is_removed(
    unsubscribe, address, management, vhost, tmp_path
):
    subscription = Subscription(queue="mine")
    with Spool.create(str(tmp_path)) as spool, Receiver(address, spool, subscription):
        pass
    management.delete("queues", vhost, "mine")
    ran = unsubscribe("mine")
    assert (ran.returncode, ran.stdout) == (
        0,
        "queue 'mine' was gone already; what it had left is removed\n",
    )
    assert "mine.bound" not in [each["name"] for each in management.get("exchanges", vhost)]
    assert "there is no queue 'mine'" in unsubscribe("mine").stderr


def test_what_marks_the_subscription_goes_too_and_nothing_of_somebody_else(
    unsubscribe, channel, management, vhost, address, tmp_path
):
    for queue in ("audit", "mine"):
        subscription = Subscription(("logs", "others"), queue=queue, queue_type="quorum")
        with Spool.create(str(tmp_path / queue)) as spool, Receiver(address, spool, subscription):
            pass
    channel.exchange_delete("mine.bound")
    channel.exchange_declare("mine.bound", "topic", durable=True)
    assert unsubscribe("audit").returncode == unsubscribe("mine").returncode == 0
    names = {e["name"] for e in management.get("exchanges", vhost)}
    assert {name for name in names if "bound" in name} == {"mine.bound"}


def test_what_marks_it_beside_one_of_the_brokers_own_exchanges_goes_too(
    unsubscribe, channel, management, vhost, address, spool
):
    exchanges = ("amq.fanout", "logs")
    subscription = Subscription(exchanges, queue="audit", queue_type="quorum")
    with Receiver(address, spool, subscription):
        names = [e["name"] for e in management.get("exchanges", vhost)]
        assert [name for name in names if "bound" in name] == ["audit.bound"]
    assert unsubscribe("audit").returncode == 0
    names = [e["name"] for e in management.get("exchanges", vhost)]
    assert [name for name in names if "bound" in name] == []


def test_a_name_that_cannot_be_is_refused_at_once(unsubscribe):
    assert "has a line break" in unsubscribe("a\nb").stderr
    assert "AMQP allows 255" in unsubscribe("q" * 300).stderr
