"""The console sink: every record in order, and nothing that anyone publishes ends it."""

import pytest

from fanout_source import console, logs
from waiting import until


@pytest.fixture
def show(read):
    """Starts a query that prints; `show(severity, option=value)`."""
    started = []

    def begin(severity="debug", **options):
        records = logs.at_least(severity, logs.parse(read(**options)))
        started.append(console.show(records).start())
        until(started[-1], lambda: started[-1].lastProgress is not None, "it is subscribed")
        return started[-1]

    yield begin
    for query in started:
        query.stop()


def test_records_are_shown_in_the_order_of_receipt(show, publish, capsys):
    query = show("warning", minPartitions=4)
    publish([b"%s: %d" % (word, n) for n in range(500) for word in (b"info", b"error")])
    query.processAllAvailable()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == [str(n) for n in range(500)]


def test_nothing_that_is_published_ends_the_query(show, publish, capsys):
    query = show()
    poison = [
        b'{"message": "far", "time": "+99999-01-01T00:00:00Z"}',
        b'{"message": "ancient", "time": "-9999-01-01T00:00:00Z"}',
        b'{"message": "\\ud800 half", "severity": "\\u001b[2J", "host": "\\u0007"}',
        b"\xff\xfe\x00",
        b"\x1b]0;title\x07",
        b"",
        b"x" * 3_000_000,
    ]
    publish(poison)
    publish([b"the end"])
    query.processAllAvailable()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(poison) + 1
    assert all(line.isprintable() and len(line) < 11_000 for line in lines)
    assert lines[0].endswith("far")
    assert lines[-2].endswith("xxx…")
    assert lines[-1].endswith("the end")
