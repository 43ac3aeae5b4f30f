"""Arguments of the jobs: a mistake is one line that says what was meant."""

import pytest

from fanout_source import job, parquet


@pytest.fixture
def parse():
    parser = job.arguments("what it does")
    parquet.add_arguments(parser)
    return parser.parse_args


def test_what_is_left_out_has_a_default(parse):
    given = parse(["--path", "logs/"])
    assert (given.path, given.checkpoint, given.trigger) == ("logs", None, "30 seconds")
    assert (given.url, given.exchange, given.option, given.files) == (None, "logs", [], 1)


def test_options_of_the_source_are_passed_on(parse):
    given = parse(["--path", "x", "--option", "queue=audit", "--option", "url=amqp://h/?a=b"])
    assert given.option == [("queue", "audit"), ("url", "amqp://h/?a=b")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: --path"),
        (["--path", ""], "argument --path: '' is no folder for Parquet files"),
        (["--path", " "], "argument --path: ' ' is no folder for Parquet files"),
        (["--path", "/"], "argument --path: '/' is no folder for Parquet files"),
        (["--path", "x", "--files", "0"], "--files: '0' is not a whole number from 1 up"),
        (["--path", "x", "--files", "many"], "--files: 'many' is not a whole number"),
        (["--path", "x", "--trigger", "soon"], "--trigger: 'soon' is not a time such as '30 sec"),
        (["--path", "x", "--trigger", "-5 seconds"], "is not a time such as"),
        (["--path", "x", "--option", "queue"], "argument --option: 'queue' is not NAME=VALUE"),
    ],
)
def test_a_mistake_is_one_line(parse, arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    [line] = output.err.splitlines()
    assert message in line


@pytest.mark.parametrize("text", ["30 seconds", "1 minute 30 seconds", " 1 Hour "])
def test_times_are_written_as_spark_does(text):
    assert job.interval(text) == text.strip()
