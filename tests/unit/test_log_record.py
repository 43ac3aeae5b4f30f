import json
import os
from datetime import datetime, timedelta, timezone

import pytest

from fanout_source import log_record


def test_a_record_holds_its_five_fields_in_order():
    time = datetime(2026, 11, 18, 9, 5, 1, 42, timezone(timedelta(hours=2)))
    body, _ = log_record.encode("hi", severity="error", host="h", logger="l", time=time)
    assert list(json.loads(body).items()) == [
        ("time", "2026-11-18T07:05:01.000042Z"),
        ("severity", "error"),
        ("host", "h"),
        ("logger", "l"),
        ("message", "hi"),
    ]


def test_the_properties_repeat_the_essentials():
    time = datetime(2026, 11, 18, tzinfo=timezone.utc)
    _, properties = log_record.encode("hi", severity="error", host="h", app_id="a", time=time)
    assert properties.content_type == "application/json"
    assert properties.headers == {"severity": "error", "host": "h"}
    assert (properties.app_id, properties.timestamp) == ("a", int(time.timestamp()))
    assert properties.delivery_mode == 2


def test_an_extra_never_displaces_a_field():
    fields = json.loads(log_record.encode("hi", host="h", extras={"host": "other", "n": 1}).body)
    assert (fields["host"], fields["extra.host"], fields["n"]) == ("h", "other", 1)


def _a_cycle():
    cycle = {}
    cycle["self"] = cycle
    return cycle


@pytest.mark.parametrize(
    "value", [float("nan"), object(), {1, 2}, {(1, 2): 3}, _a_cycle(), b"\xff", datetime.now()]
)
def test_extras_that_json_does_not_know_become_text(value):
    fields = json.loads(
        log_record.encode("hi", extras={"odd": value}).body, parse_constant=pytest.fail
    )
    assert isinstance(fields["odd"], str)


def test_text_that_is_not_unicode_goes_out_escaped():
    assert b"caf\\udce9" in log_record.encode("caf\udce9").body


def test_message_ids_are_unique_and_differ_in_a_forked_child():
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, log_record.properties().message_id.encode())
        os._exit(0)
    os.waitpid(child, 0)
    childs = os.read(read, 100).decode()
    os.close(read)
    os.close(write)
    ids = [log_record.properties().message_id for _ in range(1000)]
    assert len({*ids, childs}) == 1001
    assert childs.split("-")[0] != ids[0].split("-")[0]
