"""What the jobs have in common: arguments, a session, an end at a signal, errors in one line."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from .datasource import FanoutDataSource
from .errors import FanoutError, OptionError
from .options import BrokerOptions
from .sink_options import SinkOptions

_POLL_SECONDS = 0.2
_BEGIN_SECONDS = 10.0
_OF_JAVA = re.compile(r"(?:Caused by: )?(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error): ")
_UNIT = "(?:microsecond|millisecond|second|minute|hour|day|week)s?"
_INTERVAL = re.compile(rf"(?:[0-9]+ {_UNIT})(?: [0-9]+ {_UNIT})*", re.IGNORECASE)
# What a traceback ends with.
_OF_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)")
_OURS = re.compile(r"fanout_source\.errors\.\w+: (.*)")


class JobFailed(Exception):
    """What a person reads when a job could not go on."""


def run(main: Callable[[], None]) -> None:
    """Run a job: exit code 0 when it was stopped or has ended, 1 with one line when it failed."""
    name = os.path.basename(sys.argv[0]).removesuffix(".py")
    try:
        main()
    except (JobFailed, FanoutError, PySparkException, Py4JError, OSError) as error:
        if _stopping.is_set():
            return  # a signal to all of its processes has ended one that it was waiting for
        _complain(f"{name}: {explain(error)}")
        sys.exit(1)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with what every subscriber needs to know."""
    parser = _Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="amqp://user:password@host:port/vhost (default: FANOUT_URL)")
    parser.add_argument("--exchange", default="logs", help="default: logs")
    parser.add_argument(
        "--option", metavar="NAME=VALUE", type=_option, action="append", default=[],
        help="any other option of the source, as often as you like",
    )  # fmt: skip
    return parser


@contextmanager
def session(name: str) -> Iterator[SparkSession]:
    """A Spark session that ends with the job, whose Python workers are of this same Python."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    say_errors_once()
    _stop_at_signals()
    SparkContext._ensure_initialized()
    _stop_at_signals_to_the_jvm()
    with ThreadPoolExecutor(1) as thread:
        # In the main thread Spark would set a handler for SIGINT, which shows a traceback.
        spark = thread.submit(SparkSession.builder.appName(name).getOrCreate).result()
    try:
        _activate(spark)
        _register(spark)
        yield spark
    finally:
        _silence_spark()
        for query in spark.streams.active:
            with suppress(PySparkException, Py4JError):
                query.stop()
        spark.stop()


def _silence_spark() -> None:
    """From here on everything is given up by intent, with a page of Java for each."""
    gateway: Any = SparkContext._gateway
    log4j = gateway.jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setAllLevels("", log4j.Level.OFF)


def say_errors_once() -> None:
    """Let pyspark not log an error that it raises as well, as a page of JSON."""
    for logger in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(logger).disabled = True


def _activate(spark: SparkSession) -> None:
    """In this thread: the data source of a sink is looked up in the session that is active."""
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def _register(spark: SparkSession) -> None:
    """Spark finds the source by itself, but with the Python that its JVM knows of."""
    package = os.path.dirname(os.path.dirname(__file__))
    if not os.path.isdir(package):  # a zip of --py-files, into which Spark's planner does not look
        spark.sparkContext.environment["PYTHONPATH"] = package
    spark.dataSource.register(FanoutDataSource)


def temporary_spool() -> tempfile.TemporaryDirectory[str]:
    """A spool for a query without a lasting checkpoint: nobody could go on with it."""
    return tempfile.TemporaryDirectory(prefix="fanout-", ignore_cleanup_errors=True)


def subscribe(spark: SparkSession, given: argparse.Namespace, **defaults: str) -> DataFrame:
    """The stream that the arguments ask for."""
    options = {**defaults, "exchange": given.exchange, **dict(given.option)}
    if given.url is not None:
        options["url"] = given.url
    return spark.readStream.format("fanout").options(**options).load()


def publish(messages: DataFrame, given: argparse.Namespace, exchange: str) -> DataStreamWriter:
    """A writer to an exchange of the same broker."""
    of_connection = {name.lower() for name in BrokerOptions.of_connection()}
    options = {name: value for name, value in given.option if name.lower() in of_connection}
    if given.url is not None:
        options["url"] = given.url
    return messages.writeStream.format("fanout").options(**options, exchange=exchange)


def await_end(queries: Sequence[StreamingQuery], *, may_end: bool = False) -> None:
    """Until someone stops the job, a query fails, or, where they may, all have ended."""
    while not _stopping.is_set():
        for query in queries:
            if not query.isActive and not _stopping.is_set():
                _let_begin(queries)
                _require_success(query, may_end)
        if not any(query.isActive for query in queries):
            return
        _stopping.wait(_POLL_SECONDS)


def explain(error: BaseException) -> str:
    """The line in an error that a person needs: ours, where Spark has wrapped it in its own."""
    text = str(getattr(error, "java_exception", error))
    if ours := _OURS.search(text):
        return ours[1].strip()
    if raised := _OF_PYTHON.search(text):
        return raised[1]
    first = next((line.strip() for line in text.splitlines() if line.strip()), repr(error))
    return _OF_JAVA.sub("", first)


def _let_begin(queries: Sequence[StreamingQuery]) -> None:
    """Wait for those that have just been started: one that is stopped then shows a traceback."""
    deadline = time.monotonic() + _BEGIN_SECONDS
    for query in queries:
        while query.isActive and query.lastProgress is None and time.monotonic() < deadline:
            _stopping.wait(_POLL_SECONDS)


def _require_success(query: StreamingQuery, may_end: bool) -> None:
    failure = query.exception()
    if failure is not None:
        raise JobFailed(f"query {query.name} failed: {explain(failure)}")
    if not may_end:
        raise JobFailed(f"query {query.name} ended, and nobody stopped it")


def whole_number(least: int) -> Callable[[str], int]:
    """The type of an argument that is a whole number, and no less than this."""

    def convert(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} up")
        return int(text)

    return convert


def share(text: str) -> float:
    """The type of an argument that is a part of a whole."""
    with suppress(ValueError):
        if 0 < float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, up to 1")


def interval(text: str) -> str:
    """The type of an argument that is a time, as Spark writes it."""
    if not _INTERVAL.fullmatch(text.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as '30 seconds'")
    return text.strip()


def window(text: str) -> str:
    """The type of an argument that is a time of some length."""
    if not re.search("[1-9]", interval(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no time at all")
    return text.strip()


def exchange(text: str) -> str:
    """The type of an argument that names an exchange to publish to."""
    try:
        return SinkOptions.parse({"exchange": text}).exchanges[0]
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _complain(f"{self.prog.removesuffix('.py')}: {message} (--help tells more)")
        sys.exit(2)


def _option(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _complain(line: str) -> None:
    """Say it on stderr: under `spark-submit` that of the JVM, which sends ours to its stdout."""
    if under_spark_submit():
        SparkContext._ensure_initialized()
        gateway: Any = SparkContext._gateway
        gateway.jvm.System.err.println(line)
    else:
        print(line, file=sys.stderr)


def stop() -> None:
    """End the job, as a signal does."""
    _stopping.set()


def is_stdout_closed() -> bool:
    """Whether nobody reads what the JVM writes for us under `spark-submit`."""
    gateway: Any = SparkContext._gateway
    return under_spark_submit() and bool(gateway.jvm.System.out.checkError())


def under_spark_submit() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _stop_at_signals() -> None:
    """Let Ctrl-C and SIGTERM end the job well."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _stopping.set())


def _stop_at_signals_to_the_jvm() -> None:
    """Under `spark-submit` the JVM is the parent: it would die of a signal, and Python with it."""
    gateway: Any = SparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    java_signal = gateway.jvm.sun.misc.Signal
    for name in ("INT", "TERM"):
        java_signal.handle(java_signal(name), _handler)


class _Handler:
    def handle(self, _signal: Any) -> None:
        _stopping.set()

    class Java:
        implements = ["sun.misc.SignalHandler"]  # noqa: RUF012


_handler = _Handler()
_stopping = threading.Event()
