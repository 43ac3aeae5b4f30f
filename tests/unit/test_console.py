"""Lines on a screen: one for each record, whatever it says."""

import pytest

from fanout_source.console import count_lines, on_a_terminal, record_line
from fanout_source.job import explain


def line(message="hello", severity="info", host="web-1", coloured=False):
    return record_line("12:00:00.000", severity, host, message, coloured=coloured)


def test_a_record_is_one_line():
    assert line() == "12:00:00.000 info     web-1      hello"
    assert line(host=None) == "12:00:00.000 info     -          hello"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("grüße ☃", "grüße ☃"),
        ("one\ntwo\r\n", r"one\ntwo\r\n"),
        ("\x1b[2Jgone", r"\x1b[2Jgone"),
        ("a\u2028b\u202ec", r"a\u2028b\u202ec"),
        ("\x9b31m", r"\x9b31m"),
    ],
)
def test_nothing_in_a_record_moves_the_cursor(message, shown):
    assert line(message).endswith(f" {shown}")
    assert line(severity=message).split(" ", 1)[1].startswith(shown[:3])
    assert line(host=message).isprintable()
    assert line(severity=message).isprintable()


def test_a_terminal_shows_the_severity_in_colour():
    assert line(severity="error", coloured=True).startswith("\x1b[31m")
    assert line(severity="error", coloured=True).endswith("\x1b[0m")
    assert "\x1b" not in line(severity="info", coloured=True)
    assert "\x1b" not in line(severity="unheard of", coloured=True)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_the_usual_variables_decide_about_colour(environment, expected, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert on_a_terminal() == expected


def test_counts_are_drawn_by_window_with_the_worst_first():
    rows = [
        ("2026-01-01 12:00:10", "12:00:20", "info", "web-1", 4000),
        ("2026-01-01 12:00:00", "12:00:10", "info", None, 1),
        ("2026-01-01 12:00:10", "12:00:20", "critical", "web-2", 1000),
        ("2026-01-01 12:00:10", "12:00:20", "critical", "web-1", 2000),
    ]
    assert list(count_lines(rows, coloured=False)) == [
        "2026-01-01 12:00:00 to 12:00:10",
        "  info     -                  1 █",
        "2026-01-01 12:00:10 to 12:00:20",
        "  critical web-1          2,000 " + "█" * 20,
        "  critical web-2          1,000 " + "█" * 10,
        "  info     web-1          4,000 " + "█" * 40,
    ]
    assert list(count_lines([], coloured=False)) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("the disk is full", "the disk is full"),
        ("\n\nfirst\nsecond", "first"),
        ("java.io.IOException: mkdir of /x failed\n\tat java.base/…", "mkdir of /x failed"),
        (
            "[SOME_ERROR] Failed to plan: Traceback (most recent call last):\n"
            '  File "x.py", line 1, in main\n    command()\n    ^^^^^\n'
            "ModuleNotFoundError: No module named 'pyarrow'\n SQLSTATE: 38000",
            "ModuleNotFoundError: No module named 'pyarrow'",
        ),
        (
            "[STREAM_FAILED] … org.apache.spark.api.python.PythonException: Traceback\n"
            "fanout_source.errors.BrokerUnreachable: no broker listens at h:1: start it\nat …",
            "no broker listens at h:1: start it",
        ),
    ],
)
def test_the_line_that_a_person_needs_is_found_in_an_error(text, line):
    assert explain(Exception(text)) == line
