import json

import pytest

from fanout_source.severity import SEVERITIES
from sample_logs import sample_logs


def _without_time(messages):
    return [json.loads(message.body) | {"time": None} for message in messages]


def test_the_same_seed_gives_the_same_logs():
    assert _without_time(sample_logs(50, seed=7)) == _without_time(sample_logs(50, seed=7))


def test_records_are_numbered_and_of_all_severities():
    records = [json.loads(message.body) for message in sample_logs(2000, seed=1)]
    assert [record["sequence"] for record in records] == list(range(2000))
    assert {record["severity"] for record in records} == set(SEVERITIES)


@pytest.mark.parametrize("size", [200, 2000])
def test_records_are_padded_to_the_size_asked_for(size):
    assert {len(message.body) for message in sample_logs(200, size=size, seed=1)} == {size}
