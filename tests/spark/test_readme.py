"""What the first page shows does what it says."""

import re

from local_spark import PROJECT
from waiting import until


def test_the_ten_lines_are_two_subscribers(spark, url, publish, bound_queues, tmp_path):
    page = (PROJECT / "README.md").read_text()
    [code] = re.findall(r"## In your own job.*?```python\n(.*?)```", page, re.DOTALL)
    for shown, here in {
        "amqp://guest:guest@localhost/": url,
        '"logs"': repr(str(tmp_path / "logs")),
        '"logs.checkpoint"': repr(str(tmp_path / "logs.checkpoint")),
        ".load()": f".option('spoolDir', {str(tmp_path / 'spool')!r}).load()",
        "spark.streams.awaitAnyTermination()": "",
    }.items():
        assert shown in code
        code = code.replace(shown, here)
    exec(code, {})
    queries = spark.streams.active
    assert len(queries) == 2
    try:
        for query in queries:
            until(query, lambda query=query: query.lastProgress is not None, "it is subscribed")
        assert len(bound_queues()) == 2
        publish([b"error: the printer is on fire"])
        for query in queries:
            query.processAllAvailable()
            assert query.recentProgress[-1].numInputRows == 1
    finally:
        for query in queries:
            query.stop()
    [row] = spark.read.parquet(str(tmp_path / "logs")).collect()
    assert (row.severity, row.message) == ("error", "the printer is on fire")
