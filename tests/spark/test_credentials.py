"""The password is in the planner, and nowhere else that one could look."""

import base64
import os
import pickle
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest
from pyspark import cloudpickle

from fanout_source import FanoutDataSource
from fanout_source.partition_reader import SpoolPartition
from fanout_source.spool import Segment, Slice

PASSWORD = "Ge#heim/42"


@pytest.fixture
def secret_url(management, vhost, broker):
    """An account with a password that is found wherever it appears."""
    user = f"user-{vhost}"
    management.put("users", user, body={"password": PASSWORD, "tags": ""})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    management.put("permissions", vhost, user, body=everything)
    address = broker.address
    encoded = urllib.parse.quote(PASSWORD, safe="")
    yield f"amqp://{user}:{encoded}@{address.host}:{address.port}/{vhost}"
    management.delete("users", user)


def _assert_no_password_in(content: bytes, where: object) -> None:
    for form in (PASSWORD, urllib.parse.quote(PASSWORD, safe="")):
        assert form.encode() not in content, where
        assert base64.b64encode(form.encode()).rstrip(b"=")[:-1] not in content, where


def test_what_goes_to_executors_has_no_password(secret_url):
    """Spark pickles the reader, and the source itself, into the function that tasks run."""
    source = FanoutDataSource({"url": secret_url, "password": PASSWORD})
    assert PASSWORD.encode() in pickle.dumps(source)  # on its way to the planner
    reader = source.streamReader(source.schema())
    partition = SpoolPartition("/spool", "0" * 32, [Slice(Segment(0, 1, 0), 0, 1)])
    for dump in (pickle.dumps, cloudpickle.dumps):
        for thing in (source, reader, partition):
            _assert_no_password_in(dump(thing), thing)
    assert PASSWORD not in repr(reader)


def test_a_query_shows_its_password_nowhere(
    spark, read, start, rows, publish, secret_url, tmp_path, capfd
):
    frame = read(url=secret_url)
    query = start(frame)
    publish([b"x"])
    query.processAllAvailable()
    assert len(rows()) == 1
    frame.explain(extended=True)
    query.explain(extended=True)
    plans = [
        frame._jdf.queryExecution().toString(),
        frame._jdf.queryExecution().analyzed().toJSON(),
    ]
    shown = [*plans, *(p.json for p in query.recentProgress), str(query.status)]
    query.stop()
    refused = read(url=secret_url, exchange="amq.direct", exchangeType="fanout")
    query = start(refused, "refused", subscribed=False)
    with pytest.raises(Exception, match="is of type 'direct'") as failure:
        query.awaitTermination(60)
    out, err = capfd.readouterr()
    for text in (*shown, str(failure.value), out, err):
        _assert_no_password_in(text.encode(), text[:500])
    events = Path(urllib.parse.urlsplit(spark.conf.get("spark.eventLog.dir")).path)
    files = [file for folder in (tmp_path, events) for file in folder.rglob("*") if file.is_file()]
    assert {"offsets", "commits"} <= {file.parent.name for file in files}
    assert any(events in file.parents for file in files)
    for file in files:
        _assert_no_password_in(file.read_bytes(), file)
    arguments = Path(f"/proc/{os.getpid()}/cmdline").read_bytes()
    _assert_no_password_in(arguments, "the command line")


def test_a_query_that_writes_shows_its_password_nowhere(spark, secret_url, tmp_path, capfd):
    """Its tasks know it; plans, checkpoint, events and errors do not."""
    spark.range(10).selectExpr("string(id) body").write.parquet(str(tmp_path / "in"))
    rows = spark.readStream.schema("body string").parquet(str(tmp_path / "in"))
    shown = []
    for exchange in ("out", "amq.direct"):
        options = {"url": secret_url, "exchange": exchange, "exchangeType": "fanout"}
        query = (
            rows.writeStream.format("fanout").options(**options)
            .option("checkpointLocation", str(tmp_path / f"checkpoint-{exchange}")).start()
        )  # fmt: skip
        if exchange == "out":
            query.processAllAvailable()
            query.explain(extended=True)
            shown += [p.json for p in query.recentProgress]
        else:
            with pytest.raises(Exception, match="is of type 'direct'") as failure:
                query.awaitTermination(60)
            shown.append(str(failure.value))
        query.stop()
    for text in (*shown, *capfd.readouterr()):
        _assert_no_password_in(text.encode(), text[:500])
    events = Path(urllib.parse.urlsplit(spark.conf.get("spark.eventLog.dir")).path)
    for folder in (tmp_path, events):
        for file in filter(Path.is_file, folder.rglob("*")):
            _assert_no_password_in(file.read_bytes(), file)


def test_what_runs_in_tasks_loads_no_broker_code():
    """A task unpickles the source and the reader, and has neither connection nor options."""
    program = "import sys, fanout_source.datasource, fanout_source.partition_reader as reader\n"
    program += "print(sorted(m for m in sys.modules if m.startswith(('pika', 'fanout_source'))))"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "fanout_source.message" in shown.stdout
    assert "pika" not in shown.stdout
    assert "fanout_source.options" not in shown.stdout
