import threading

import pika
import pytest

from fanout_source.connection import open_connection
from fanout_source.errors import BrokerRefused, OptionError, PublishFailed
from fanout_source.publisher import Publisher


def test_every_message_arrives_once_and_in_order(address, subscribe):
    subscriber = subscribe()
    bodies = [b"%d" % number for number in range(30_000)]
    with Publisher(address) as publisher:
        for body in bodies:
            publisher.publish(body)
        publisher.flush()
        assert publisher.confirmed == len(bodies)
    assert subscriber.bodies(len(bodies)) == bodies


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 1_000_000, 16 * 1024 * 1024])
def test_a_body_of_any_size_arrives_whole(address, subscribe, size):
    subscriber = subscribe()
    body = bytes(range(256)) * (size // 256 + 1)
    with Publisher(address) as publisher:
        publisher.publish(body[:size])
        publisher.publish(b"after")
    assert subscriber.bodies(2) == [body[:size], b"after"]


def test_properties_and_routing_key_arrive(address, subscribe):
    subscriber = subscribe()
    sent = pika.BasicProperties(
        content_type="text/plain", headers={"k": "v"}, priority=3, message_id="m", timestamp=9
    )
    with Publisher(address) as publisher:
        publisher.publish(b"x", sent, "some.key")
    [(method, received, _)] = subscriber.take(1)
    assert received == sent
    assert method.routing_key == "some.key"


def test_without_confirms_everything_is_written_before_the_block_ends(address, subscribe):
    subscriber = subscribe()
    with Publisher(address, confirm=False) as publisher:
        for _ in range(5000):
            publisher.publish(b"x" * 2000)
    assert len(subscriber.bodies(5000)) == 5000


def test_one_message_does_not_wait_for_more(address, subscribe):
    subscriber = subscribe()
    with Publisher(address) as publisher:
        publisher.publish(b"alone")
        assert subscriber.bodies(1) == [b"alone"]


def test_an_exchange_that_is_durable_is_taken_as_it_is(address, subscribe):
    with Publisher(address, "kept", exchange_durable=True) as publisher:
        publisher.publish(b"x")
    with Publisher(address, "kept") as publisher:
        publisher.publish(b"x")


def test_an_exchange_of_another_type_is_refused(address):
    with open_connection(address) as connection:
        connection.channel().exchange_declare("logs", "topic")
    with pytest.raises(BrokerRefused, match="is of type 'topic', not 'fanout'"):
        Publisher(address)


def test_a_passive_declaration_creates_nothing(address):
    with pytest.raises(BrokerRefused, match="declare=passive never creates it"):
        Publisher(address, declare="passive")


def test_publishing_to_a_missing_exchange_is_an_error(address):
    publisher = Publisher(address, "nowhere", declare="none")
    publisher.publish(b"x")
    with pytest.raises(PublishFailed, match=r"no exchange 'nowhere'.*; 1 messages were not"):
        publisher.flush()
    with pytest.raises(PublishFailed):
        publisher.publish(b"y")
    publisher.close()


def test_an_account_that_may_not_configure_uses_an_exchange_that_is_there(
    address, management, subscribe
):
    subscriber = subscribe()
    management.put("users", address.vhost, body={"password": "pw", "tags": ""})
    try:
        rights = {"configure": "^$", "write": ".*", "read": "^$"}
        management.put("permissions", address.vhost, address.vhost, body=rights)
        few = type(address)(address.host, address.port, address.vhost, address.vhost, "pw")
        with Publisher(few) as publisher:
            publisher.publish(b"x")
        assert subscriber.bodies(1) == [b"x"]
        with pytest.raises(BrokerRefused, match="rabbitmqctl set_permissions"):
            Publisher(few, "absent")
    finally:
        management.delete("users", address.vhost)


def test_a_closed_connection_is_reported_with_what_was_not_confirmed(
    address, management, eventually
):
    with open_connection(address) as connection:
        connection.channel().exchange_declare("logs", "fanout")
    publisher = Publisher(address)

    def ours():
        return [c for c in management.get("connections") if c.get("vhost") == address.vhost]

    for connection in eventually(ours, "the broker lists the connection"):
        management.delete("connections", connection["name"])

    def publish_until_it_fails():
        for _ in range(100_000):
            publisher.publish(b"x")
            publisher.flush()

    with pytest.raises(PublishFailed, match="messages were not confirmed"):
        publish_until_it_fails()
    publisher.close()


def test_a_broker_that_blocks_publishers_is_named_and_the_publisher_still_closes(
    address, broker, management, subscribe
):
    if broker.kind != "private":
        pytest.fail("this test sets an alarm, so it needs the private node: unset FANOUT_TEST_URL")
    import private_node

    private_node.control(broker.process, "set_vm_memory_high_watermark", "0.000001")
    try:
        publisher = Publisher(address, confirm_timeout_seconds=2)
        with pytest.raises(PublishFailed, match=r"confirmed nothing for 2 s.*blocks publ"):  # noqa: PT012
            for _ in range(10_000):
                publisher.publish(b"x" * 10_000)
            publisher.flush()
        publisher.close()
    finally:
        private_node.control(broker.process, "set_vm_memory_high_watermark", "0.4")


def test_a_property_that_amqp_cannot_carry_is_refused_and_the_connection_lives(address, subscribe):
    subscriber = subscribe()
    with Publisher(address) as publisher:
        with pytest.raises(OptionError, match="255 bytes"):
            publisher.publish(b"x", pika.BasicProperties(message_id="m" * 256))
        with pytest.raises(OptionError, match="255 bytes"):
            publisher.publish(b"x", routing_key="k" * 256)
        with pytest.raises(OptionError, match="limit"):
            publisher.publish(b"x", pika.BasicProperties(headers={"h": "v" * 200_000}))
        publisher.publish(b"good")
    assert subscriber.bodies(1) == [b"good"]


def test_no_thread_is_left_behind(address):
    before = threading.active_count()
    with Publisher(address) as publisher:
        publisher.publish(b"x")
    assert threading.active_count() == before
