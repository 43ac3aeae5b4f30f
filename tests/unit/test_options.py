"""Options: read once, refused all at once, documented as they are."""

import dataclasses
from pathlib import Path

import pytest

from fanout_source import receiver
from fanout_source.connection import CONNECTION_TIMEOUT_SECONDS, HEARTBEAT_SECONDS
from fanout_source.errors import OptionError
from fanout_source.options import BrokerOptions
from fanout_source.sink_options import SinkOptions
from fanout_source.source_options import SourceOptions

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("options", [BrokerOptions, SourceOptions, SinkOptions])
def test_the_readme_has_the_options_as_they_are(options):
    rows = ["| option | default | |", "|---|---|---|"]
    for field in dataclasses.fields(options):
        about = field.metadata
        if options is not BrokerOptions and about["name"] in BrokerOptions.names():
            continue
        default = "" if about["default"] is None else f"`{about['default']}`"
        rows.append(f"| `{about['name']}` | {default} | {about['meaning']} |")
    table = "\n".join(rows)
    assert table in README.read_text(), f"README.md should have:\n{table}"


def test_the_defaults_are_those_of_the_receiver():
    options = SourceOptions.parse({})
    assert options.prefetch_count == receiver.PREFETCH_COUNT
    assert options.max_spool_bytes == receiver.MAX_SPOOL_BYTES
    assert options.heartbeat_seconds == HEARTBEAT_SECONDS
    assert options.connection_timeout_ms == 1000 * CONNECTION_TIMEOUT_SECONDS


def test_names_are_read_without_regard_to_case():
    options = SourceOptions.parse({"MAXOFFSETSPERTRIGGER": "5", "maxbytespertrigger": "2m"})
    assert (options.max_rows, options.max_bytes) == (5, 2 * 1024**2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"exchnage": "logs"}, "option exchnage is not known: did you mean exchange?"),
        ({"path": "/tmp"}, "option path is not known: there are: url, username,"),
        ({"maxOffsets": "5"}, "did you mean maxOffsetsPerTrigger?"),
        ({"exchange": ""}, "option exchange=: the exchange has an empty name"),
        ({"exchange": "x" * 256}, "256 bytes; AMQP allows 255"),
        ({"exchange": "logs,,x"}, "option exchange=logs,,x: the exchange has an empty name"),
        ({"exchangeType": "direct"}, "exchangeType=direct: needs routingKeys"),
        ({"exchange": "amq.direct"}, "exchangeType=direct: needs routingKeys"),
        ({"routingKeys": "x" * 256}, "routing key's name has 256 bytes; AMQP allows 255"),
        ({"bindingArguments": "x-match"}, "bindingArguments=x-match: must be a JSON object"),
        ({"queueArguments": "[1]"}, "queueArguments=[1]: must be a JSON object"),
        ({"queue": ""}, "option queue=: must not be empty"),
        ({"queue": "amq.mine"}, "option queue=amq.mine: names that begin with 'amq.'"),
        ({"queue": "audit.owner"}, "option queue=audit.owner: a name that ends so is made for"),
        ({"queue": "q", "queueType": "lazy"}, "queueType=lazy: must be one of classic, quorum"),
        ({"queue": "a\nb"}, "has a line break"),
        ({"queue": "q" * 241}, "must have no more than 240 bytes"),
        ({"queueArguments": '{"x-queue-type": "stream"}'}, "that is the option queueType"),
        ({"queueArguments": '{"x-single-active-consumer": true}'}, "belongs to one query anyway"),
        ({"queueArguments": '{"x-message-ttl": 1.5}'}, "the number 1.5: it must be a whole one"),
        ({"bindingArguments": '{"a": [9223372036854775808]}'}, "does not fit into 64 bits"),
        ({"bindingArguments": '{"a": {"b": "\\ud800"}}'}, "which is not UTF-8"),
        ({"queueType": "quorum"}, "queueType, queueArguments: are for a named queue"),
        ({"tls.caFile": "/ca", "url": "amqp://h"}, "URL must begin with amqps://"),
        ({"tls.keyFile": "/k", "url": "amqps://h"}, "tls.keyFile: is the key of no certificate"),
        ({"url": "amqp://a/x,amqp://b/y"}, "name different virtual hosts"),
        ({"exchangeDurable": "yes"}, "option exchangeDurable=yes: must be true or false"),
        ({"declare": "never"}, "option declare=never: must be one of auto, passive, none"),
        ({"prefetchCount": "0"}, "option prefetchCount=0: must be a number from 1 to 65535"),
        ({"prefetchCount": "many"}, "option prefetchCount=many: must be a number"),
        ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger=0: must be a number from 1"),
        ({"maxBytesPerTrigger": "big"}, "maxBytesPerTrigger=big: must be a size above 0"),
        ({"maxBytesPerTrigger": "0k"}, "maxBytesPerTrigger=0k: must be a size above 0"),
        ({"minOffsetsPerTrigger": "-1"}, "option minOffsetsPerTrigger=-1: must be a number from 1"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is above"),
        ({"maxTriggerDelay": "5"}, "option maxTriggerDelay=5: must be a time above 0, such as"),
        ({"minPartitions": "1.5"}, "option minPartitions=1.5: must be a number from 1"),
        ({"maxSpoolBytes": "-1"}, "option maxSpoolBytes=-1: must be a size above 0"),
        ({"failOnDataLoss": ""}, "option failOnDataLoss=: must be true or false"),
        ({"heartbeat": "0"}, "option heartbeat=0: must be a number from 1 to 65535"),
        ({"connectionTimeoutMs": "5s"}, "option connectionTimeoutMs=5s: must be a number"),
        ({"startingOffsets": "earliest"}, "startingOffsets=earliest: must be latest: a broker"),
        ({"url": "http://h/"}, "the broker's URL begins with 'http://'"),
        ({"password": "p", "passwordFile": "/f"}, "options password and passwordFile: give one"),
        ({"passwordFile": "/no/such"}, "passwordFile=/no/such: cannot be read: No such file"),
        ({"url": ""}, "option url: must not be empty"),
        ({"spoolDir": " "}, "option spoolDir= : must not be empty"),
        ({"maxSpoolBytes": "9" * 5000}, "must be a size above 0"),
        ({"maxOffsetsPerTrigger": "9" * 5000}, "must be a number from 1"),
        ({"spoolDir": "nowhere://x"}, "option spoolDir=nowhere://x"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(given, message):
    with pytest.raises(OptionError) as refused:
        SourceOptions.parse(given)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_all_that_is_wrong_is_said_together():
    with pytest.raises(OptionError) as refused:
        SourceOptions.parse(
            {"prefetchCount": "0", "exchnage": "x", "url": "amqp://u:geheim@h:99999"}
        )
    assert str(refused.value).startswith("3 options cannot be used: ")
    assert "geheim" not in str(refused.value)


def test_user_name_and_password_come_from_where_they_are_given(tmp_path, monkeypatch):
    monkeypatch.setenv("FANOUT_URL", "amqp://env:one@h/v")
    assert SourceOptions.parse({}).addresses[0].username == "env"
    [given] = SourceOptions.parse(
        {"url": "amqp://u:p@h", "username": "x", "password": "y"}
    ).addresses
    assert (given.username, given.password) == ("x", "y")
    file = tmp_path / "password"
    file.write_text("from a file\n")
    [given] = SourceOptions.parse({"url": "amqp://u:p@h", "passwordFile": str(file)}).addresses
    assert (given.username, given.password) == ("u", "from a file")
    file.write_text("")
    with pytest.raises(OptionError, match="the file is empty"):
        SourceOptions.parse({"passwordFile": str(file)})


def test_several_nodes_have_urls_with_commas_between_them():
    options = SourceOptions.parse({"url": "amqp://u:p,q@a/v, amqps://b:5/v", "password": "x"})
    first, second = options.addresses
    assert (first.host, first.username, first.password, first.tls) == ("a", "u", "x", None)
    assert (second.endpoint, second.username, second.password) == ("b:5", "guest", "x")


@pytest.mark.parametrize(
    ("given", "external"),
    [
        ({"url": "amqps://h"}, False),
        ({"url": "amqps://h", "tls.certFile": "/c"}, True),
        ({"url": "amqps://u:p@h", "tls.certFile": "/c"}, False),
        ({"url": "amqps://h", "tls.certFile": "/c", "username": "u"}, False),
    ],
)
def test_a_certificate_is_the_login_when_nobody_names_a_user(given, external):
    assert SourceOptions.parse(given).addresses[0].by_certificate == external


@pytest.mark.parametrize(
    ("given", "kind", "keys"),
    [
        ({}, "fanout", ("",)),
        ({"exchangeType": "topic"}, "topic", ("#",)),
        ({"exchange": "amq.topic"}, "topic", ("#",)),
        ({"exchange": "amq.match"}, "headers", ("",)),
        ({"exchangeType": "direct", "routingKeys": "a, b,a"}, "direct", ("a", "b")),
        ({"exchangeType": "x-consistent-hash", "routingKeys": "1"}, "x-consistent-hash", ("1",)),
    ],
)
def test_a_subscription_has_the_keys_that_its_type_needs(given, kind, keys):
    subscription = SourceOptions.parse(given).subscription
    assert (subscription.exchange_type, subscription.routing_keys) == (kind, keys)


def test_a_gap_ends_a_query_on_a_named_queue_unless_told_otherwise():
    assert not SourceOptions.parse({}).fails_at_a_gap
    assert SourceOptions.parse({"queue": "audit"}).fails_at_a_gap
    assert not SourceOptions.parse({"queue": "audit", "failOnDataLoss": "false"}).fails_at_a_gap


def test_no_secret_is_shown():
    options = SourceOptions.parse({"url": "amqp://u:geheim@h", "password": "geheim"})
    assert "geheim" not in repr(options)
    assert "geheim" not in str(options)


SINK = {"exchange": "out"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option exchange: say which one to publish to"),
        ({"exchange": "a,b"}, "option exchange=a,b: a sink publishes to one exchange"),
        ({**SINK, "mandatory": "yes"}, "option mandatory=yes: must be true or false"),
        ({**SINK, "confirmTimeoutMs": "5s"}, "option confirmTimeoutMs=5s: must be a number"),
        ({**SINK, "mandatry": "true"}, "option mandatry is not known: did you mean mandatory?"),
        ({**SINK, "routingKeys": "a"}, "option routingKeys is one of the source, not of the sink"),
        ({**SINK, "url": "http://h/"}, "the broker's URL begins with 'http://'"),
    ],
)
def test_what_a_sink_cannot_use_is_said(given, message):
    with pytest.raises(OptionError) as refused:
        SinkOptions.parse(given)
    assert message in str(refused.value)


def test_a_sink_takes_along_what_only_the_driver_knows(monkeypatch):
    """Except for a password in a file, which is read where it is needed."""
    monkeypatch.setenv("FANOUT_URL", "amqp://env:geheim@h/v")
    given = {**SINK, "passwordFile": "/on/executors", "queryName": "q", "CHECKPOINTLOCATION": "/c"}
    options = SinkOptions.parse(given).for_tasks()
    monkeypatch.delenv("FANOUT_URL")
    assert options.url == "amqp://env:geheim@h/v"
    with pytest.raises(OptionError, match="passwordFile=/on/executors: cannot be read"):
        _ = options.addresses
    assert "geheim" not in repr(options)
