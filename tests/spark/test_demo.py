"""The first thing that people run."""

import subprocess
from collections import Counter

import pytest

import demo
import local_spark
from spark_processes import kept_in


@pytest.mark.long
def test_both_subscribers_get_every_record(script, url, broker, tmp_path, bound_queues):
    environment = local_spark.environment(
        FANOUT_URL=url, FANOUT_MANAGEMENT_URL=broker.management_url, **kept_in(tmp_path)
    )
    command = [*script("demo.py"), "--count", "200", "--rate", "100", "--folder", tmp_path / "demo"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert ran.returncode == 0, ran
    assert "parquet   got 200 of 200: complete" in ran.stdout
    assert "console   got 200 of 200: complete" in ran.stdout
    assert ran.stdout.count("► amq.gen-") == 2
    assert bound_queues() == []


@pytest.mark.parametrize(
    ("got", "verdict"),
    [
        (["a", "a", "b", "of somebody else"], "got 3 of 3: complete"),
        (["a", "b"], "got 2 of 3: 1 missing, 0 doubled"),
        (["a", "a", "b", "b"], "got 3 of 3: 0 missing, 1 doubled"),
    ],
)
def test_what_is_missing_or_doubled_is_told(got, verdict, capsys):
    complete = demo._compare("parquet", Counter({"a": 2, "b": 1}), got)
    assert complete == ("complete" in verdict)
    assert verdict in capsys.readouterr().out
