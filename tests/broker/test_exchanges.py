"""Every type of exchange: a subscription gets exactly what its bindings say."""

import pika
import pytest

from fanout_source import message
from fanout_source.connection import open_connection
from fanout_source.errors import BrokerRefused, OptionError
from fanout_source.receiver import Receiver
from fanout_source.source_options import SourceOptions
from fanout_source.spool import read_slice
from fanout_source.subscription import Subscription


@pytest.fixture
def channel(address):
    with open_connection(address) as connection:
        yield connection.channel()


@pytest.fixture
def receive(address, spool):
    """`receive(publish, **options)`: the bodies that a subscription gets of what is published."""

    def received(publish, **options):
        subscription = SourceOptions.parse(options).subscription
        with Receiver(address, spool, subscription) as receiver:
            count = publish()
            end = 0
            while end < count:
                end = receiver.wait_for_more(end, timeout_seconds=30)
        assert receiver.wait_for_more(0) == count, "no more than that"
        batches = [read_slice(spool.location, spool.id, piece) for piece in spool.slices(0, end)]
        return [b for batch in batches for b in message.decode(batch, 0, ["body"])[0].to_pylist()]

    return received


@pytest.fixture
def send(channel):
    """Publishes texts under their own routing keys; `expected` of them are to come."""

    def publish(exchange, keys, expected):
        for key in keys:
            channel.basic_publish(exchange, key, key.encode())
        return expected

    return publish


KEYS = ["shop.error", "shop.info", "db.error", "db.info.slow", ""]


@pytest.mark.parametrize(
    ("kind", "keys", "expected"),
    [
        ("topic", None, KEYS),
        ("topic", "*.error", ["shop.error", "db.error"]),
        ("topic", "db.#,shop.info", ["shop.info", "db.error", "db.info.slow"]),
        ("topic", "db.#,*.error", ["shop.error", "db.error", "db.info.slow"]),
        ("direct", "shop.error,db.error", ["shop.error", "db.error"]),
        ("fanout", None, KEYS),
        ("fanout", "ignored", KEYS),
    ],
)
@pytest.mark.parametrize("own", [True, False])
def test_keys_select(receive, send, kind, keys, expected, own):
    exchange = f"amq.{kind}" if own else f"my {kind}"
    options = {"exchange": exchange} | ({} if own else {"exchangeType": kind})
    if keys is not None:
        options["routingKeys"] = keys
    got = receive(lambda: send(exchange, KEYS, len(expected)), **options)
    assert [body.decode() for body in got] == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"x-match": "all", "severity": "error", "host": "a"}', [b"error a"]),
        (
            '{"x-match": "any", "severity": "error", "host": "a"}',
            [b"error a", b"error b", b"info a"],
        ),
        ('{"x-match": "any", "severity": "none"}', []),
        (None, [b"error a", b"error b", b"info a", b"info b"]),
    ],
)
def test_headers_select(receive, channel, arguments, expected):
    def publish():
        for severity in ("error", "info"):
            for host in ("a", "b"):
                properties = pika.BasicProperties(headers={"severity": severity, "host": host})
                body = f"{severity} {host}".encode()
                channel.basic_publish("amq.headers", "", body, properties)
        channel.basic_publish("amq.headers", "", b"end", pika.BasicProperties(headers=END))
        return len(expected) + (arguments is None or "any" in arguments)

    END = {"host": "a", "severity": "none"}
    given = {} if arguments is None else {"bindingArguments": arguments}
    got = receive(publish, exchange="amq.headers", **given)
    assert [body for body in got if body != b"end"] == expected


def test_several_exchanges_in_one_subscription(receive, send, channel):
    channel.exchange_declare("one", "fanout")

    def publish():
        return sum(send(exchange, [exchange], 1) for exchange in ("one", "two", "amq.fanout"))

    got = receive(publish, exchange="one, two,amq.fanout")
    assert sorted(got) == [b"amq.fanout", b"one", b"two"]


def test_an_exchange_of_a_plugin(receive, send):
    """Consistent hashing: the routing key of a binding is a weight; one queue gets all."""
    options = {"exchange": "hashed", "exchangeType": "x-consistent-hash", "routingKeys": "1"}
    got = receive(lambda: send("hashed", KEYS, len(KEYS)), **options)
    assert [body.decode() for body in got] == KEYS


def test_a_type_that_the_broker_does_not_know_is_refused(receive):
    with pytest.raises(OptionError, match="knows no exchangeType 'x-no-such'"):
        receive(lambda: 0, exchange="x", exchangeType="x-no-such")


def test_an_exchange_of_another_type_is_refused(receive, channel):
    channel.exchange_declare("logs", "topic")
    with pytest.raises(BrokerRefused, match=r"is of type 'topic', not 'fanout': .* say that type"):
        receive(lambda: 0, exchange="logs")


def test_a_subscription_that_is_refused_leaves_no_queue(address, spool, management, vhost):
    arguments = {"x-match": "some", "severity": "error"}
    refused = Subscription(("amq.headers",), "headers", queue="made", binding_arguments=arguments)
    with pytest.raises(BrokerRefused, match="x-match"):
        Receiver(address, spool, refused).subscribe()
    assert management.get("queues", vhost) == []
