"""Accounts with few rights: the least that is needed, and what is said of less."""

import dataclasses
import re

import pytest

from fanout_source.connection import open_connection
from fanout_source.errors import BrokerRefused, PublishFailed
from fanout_source.publisher import Publisher
from fanout_source.receiver import Receiver
from fanout_source.subscription import Subscription

OWN, NAMED = None, "audit"


@pytest.fixture
def account(management, vhost, address):
    """An account; `account(configure, write, read)` gives it these rights."""
    name = f"few-{vhost}"
    management.put("users", name, body={"password": "secret", "tags": ""})

    def allow(configure, write, read):
        rights = {"configure": configure, "write": write, "read": read}
        management.put("permissions", vhost, name, body=rights)
        return dataclasses.replace(address, username=name, password="secret")

    yield allow
    management.delete("users", name)


@pytest.fixture
def channel(address):
    with open_connection(address) as connection:
        yield connection.channel()


@pytest.fixture(autouse=True)
def made_by_somebody_else(address):
    with open_connection(address) as connection:
        channel = connection.channel()
        channel.exchange_declare("logs", "fanout")
        channel.queue_declare("audit", durable=True)
        channel.queue_bind("audit", "logs")


@pytest.mark.parametrize("queue", [OWN, NAMED])
@pytest.mark.parametrize("declare", ["auto", "passive", "none"])
def test_the_least_rights_are_enough_and_less_is_explained(account, spool, publish, queue, declare):
    subscription = Subscription(queue=queue, declare=declare)
    least = subscription.rights
    with Receiver(account(*least), spool, subscription) as receiver:
        publish([b"hello"])
        assert receiver.wait_for_more(0, timeout_seconds=30) == 1
    needed = [number for number, pattern in enumerate(least) if pattern != "^$"]
    for number in needed:
        less = [*least]
        less[number] = "^$"
        if queue == NAMED and number == 0:
            continue  # the queue is there already, and is taken as it is
        line = "rabbitmqctl set_permissions .* " + re.escape(" ".join(f"'{r}'" for r in least))
        with pytest.raises(BrokerRefused, match=line):
            _receive(account(*less), spool, subscription)


def _receive(address, spool, subscription):
    with Receiver(address, spool, subscription) as receiver:
        while True:
            receiver.wait_for_more(spool.end, timeout_seconds=30)


def test_no_access_to_the_virtual_host_is_explained(account, spool, management, vhost):
    stranger = account("", "", "")
    management.delete("permissions", vhost, stranger.username)
    with pytest.raises(
        BrokerRefused, match=f"no access to virtual host '{vhost}'.*set_permissions"
    ):
        Receiver(stranger, spool).subscribe()


def test_the_line_that_is_shown_grants_what_is_needed(account, spool, publish, management, vhost):
    subscription = Subscription(queue="new one", declare="auto")
    poor = account("^$", "^$", "^$")
    with pytest.raises(BrokerRefused) as refused:
        Receiver(poor, spool, subscription).subscribe()
    rights = re.findall(r"'([^']*)'", str(refused.value).split("set_permissions")[1])[2:5]
    with Receiver(account(*rights), spool, subscription) as receiver:
        publish([b"hello"])
        assert receiver.wait_for_more(0, timeout_seconds=30) == 1


@pytest.mark.parametrize("queue", [OWN, NAMED])
def test_the_line_for_an_exchange_that_is_missing_is_enough_as_well(
    account, spool, publish, address, queue
):
    subscription = Subscription(("new",), queue=queue)
    with pytest.raises(BrokerRefused, match="there is no exchange 'new'") as refused:
        Receiver(account("^$", "^$", "^$"), spool, subscription).subscribe()
    said = str(refused.value)
    rights = re.findall(r"'([^']*)'", said.split("set_permissions")[1])[2:5]
    with Receiver(account(*rights), spool, subscription) as receiver:
        with Publisher(address, "new") as publisher:
            publisher.publish(b"hello")
        assert receiver.wait_for_more(0, timeout_seconds=30) == 1
    assert "in place of the rights that it has" in said


def test_an_exchange_that_is_the_brokers_own_business_is_no_matter_of_rights(address, channel):
    channel.exchange_declare("inside", "fanout", internal=True)
    with (
        pytest.raises(
            PublishFailed, match=r"internal exchange.*: choose another exchange"
        ) as error,
        Publisher(address, "inside", declare="none") as publisher,
    ):
        publisher.publish(b"hello")
    assert "set_permissions" not in str(error.value)
