import pytest

from fanout_source.address import BrokerAddress
from fanout_source.errors import OptionError
from fanout_source.tls import Tls


def test_a_full_url_is_taken_apart():
    address = BrokerAddress.parse("amqp://ann:s3cret@broker.example:5673/sales")
    assert address == BrokerAddress("broker.example", 5673, "sales", "ann", "s3cret")


@pytest.mark.parametrize("url", ["amqp://h", "amqp://h/", "amqp://h:5672/%2F", " amqp://h\n"])
def test_what_is_left_out_has_the_defaults_of_rabbitmq(url):
    assert BrokerAddress.parse(url) == BrokerAddress("h", 5672, "/", "guest", "guest")


def test_percent_encoded_parts_are_decoded():
    address = BrokerAddress.parse("amqp://a%40b:p%2Fw%3F%25@h/v%2Fw")
    assert (address.username, address.password, address.vhost) == ("a@b", "p/w?%", "v/w")


def test_amqps_means_tls_on_its_own_port():
    address = BrokerAddress.parse("amqps://h")
    assert (address.tls, address.port) == (Tls(), 5671)


def test_an_ipv6_host_is_shown_in_brackets():
    assert BrokerAddress.parse("amqp://[::1]:5672").endpoint == "[::1]:5672"


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("http://h", "begins with 'http://'"),
        ("broker:5672", "no scheme"),
        ("", "no scheme"),
        ("amqp://", "names no host"),
        ("amqp://h:port", "no valid host and port"),
        ("amqp://h:99999", "no valid host and port"),
        ("amqp://h:0", "port 0"),
        ("amqp://h/%ff", "virtual host in the broker's URL is not UTF-8"),
        ("amqp://ann:12/34secret@h", "the virtual host in the broker's URL contains '@'"),
        ("amqp://u:%ff@h", "password in the broker's URL is not UTF-8"),
        ("amqp://h/" + "v" * 256, "longer than 255 bytes"),
        ("amqp://h/a/b", "write it as %2F"),
        ("amqp://h?heartbeat=3", "as options"),
    ],
)
def test_a_wrong_url_is_told_in_one_line(url, part):
    with pytest.raises(OptionError) as caught:
        BrokerAddress.parse(url)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("character", "/?#@:[]% ")
def test_no_error_shows_a_password_that_was_not_percent_encoded(character):
    password = f"s3{character}cr3t"
    try:
        shown = str(BrokerAddress.parse(f"amqp://ann:{password}@h/v"))
    except OptionError as error:
        shown = str(error)
    assert "cr3t" not in shown
    assert "s3" not in shown


def test_neither_repr_nor_str_shows_the_password():
    address = BrokerAddress.parse("amqp://ann:s3cret@h")
    assert "s3cret" not in repr(address) + str(address)


def test_the_environment_names_the_broker(monkeypatch):
    monkeypatch.setenv("FANOUT_URL", "amqp://elsewhere")
    assert BrokerAddress.from_environment().host == "elsewhere"
    monkeypatch.delenv("FANOUT_URL")
    assert BrokerAddress.from_environment().endpoint == "127.0.0.1:5672"
