"""Parsing: anything that anyone publishes becomes a row."""

import datetime
import json

import pytest
from pyspark.sql import functions as f

from fanout_source import log_record, logs
from fanout_source.severity import SEVERITIES

SENT = datetime.datetime(2026, 1, 2, 3, 4, 5)
RECEIVED = datetime.datetime(2026, 1, 2, 3, 4, 6)
DEEP = b'{"message":' * 3000 + b"1" + b"}" * 3000


@pytest.fixture
def parse(spark):
    def parsed(body, headers=None, timestamp=SENT):
        schema = "body binary, headers map<string,string>, timestamp timestamp, "
        schema += "received_at timestamp, offset bigint"
        frame = spark.createDataFrame([(body, headers, timestamp, RECEIVED, 7)], schema)
        [row] = logs.parse(frame).collect()
        assert (bytes(row.body), row.offset) == (body, 7)
        return row

    return parsed


def test_a_record_of_the_emitter_is_read_back(parse):
    body, _ = log_record.encode(
        "stöck is low", severity="warning", host="web-1", logger="shop", extras={"n": 1}
    )
    row = parse(body)
    assert (row.severity, row.host, row.logger) == ("warning", "web-1", "shop")
    assert row.message == "stöck is low"
    assert abs(row.time.timestamp() - datetime.datetime.now().timestamp()) < 300


@pytest.mark.parametrize(
    ("body", "severity", "message"),
    [
        (b"info: Hello World!", "info", "Hello World!"),
        (b"ERROR: it is late", "error", "it is late"),
        (b"warn:no space", "warning", "no space"),
        (b"fatal : over\nand out", "critical", "over\nand out"),
        (b"Hello World!", "info", "Hello World!"),
        (b"information: none", "info", "information: none"),
        (b"http://x/y", "info", "http://x/y"),
        (b"", "info", ""),
        (b"\xff\xfe", "info", "\ufffd\ufffd"),
        (b"[1, 2]", "info", "[1, 2]"),
        (b"17", "info", "17"),
        (b"null", "info", "null"),
        (b'{"a": 1}', "info", '{"a": 1}'),
        (b'{"message": "cut off', "info", '{"message": "cut off'),
        (b'{"message": 5, "severity": "ERROR"}', "error", "5"),
        (b'{"message": "error: x", "severity": null}', "info", "error: x"),
        (b'{"message": "odd time", "time": "yesterday"}', "info", "odd time"),
        (b'{"message": "a number", "time": 12345}', "info", "a number"),
        (b'{"message": "empty", "severity": ""}', "info", "empty"),
        (b'{"message": "spaces", "severity": " Warning "}', "warning", "spaces"),
        (b"\xef\xbb\xbferror: with a byte order mark", "error", "with a byte order mark"),
        (b'{"message": "a", "message": "b"}', "info", None),
        (DEEP, "info", None),
        (b'{"message": {"a": [1]}}', "info", '{"a":[1]}'),
    ],
)
def test_anything_becomes_a_row(parse, body, severity, message):
    row = parse(body)
    assert row.severity == severity
    if message is not None:
        assert row.message == message
    assert row.time == SENT


def test_what_the_body_does_not_say_the_properties_do(parse):
    row = parse(b"plain", {"severity": "Error", "host": "db-2"})
    assert (row.severity, row.host, row.logger, row.time) == ("error", "db-2", None, SENT)
    assert parse(b"plain", {}, None).time == RECEIVED
    body = json.dumps({"message": "m", "host": "body", "severity": "debug"}).encode()
    row = parse(body, {"severity": "error", "host": "header"})
    assert (row.severity, row.host) == ("debug", "body")


def test_severities_have_an_order(spark):
    named = spark.createDataFrame([(s,) for s in (*SEVERITIES, "odd")], "severity string")
    ranks = [row[0] for row in named.select(logs.rank(f.col("severity"))).collect()]
    assert ranks == [0, 1, 2, 3, 4, 1]


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_parsing_is_the_same_in_ansi_mode_and_out_of_it(spark, parse, ansi):
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        assert parse(b'{"message": "m", "time": "no time"}').time == SENT
        assert parse(b"\xff").message == "\ufffd"
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
