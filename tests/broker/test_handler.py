import json
import logging
import os
import subprocess
import sys
import threading

import pytest

from fanout_source.emit import FanoutHandler, severity_of
from fanout_source.errors import OptionError
from proxy import Proxy


@pytest.fixture
def logger():
    logger = logging.Logger("shop.cart")  # not of the global tree: nothing to restore
    yield logger
    for handler in logger.handlers:
        handler.close()


@pytest.fixture
def proxy(address):
    with Proxy(address.host, address.port) as proxy:
        yield proxy


def _through(proxy, url):
    address = url.split("@")
    return f"{address[0]}@127.0.0.1:{proxy.port}/{url.rsplit('/', 1)[1]}"


def test_a_programs_logs_arrive_with_their_extras(logger, url, subscribe):
    subscriber = subscribe()
    handler = FanoutHandler(url, app_id="shop")
    logger.addHandler(handler)
    logger.warning("cart %d is full", 7, extra={"user": "ann"})
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        logger.exception("oops")
    handler.flush()
    (_, properties, first), (_, _, second) = subscriber.take(2)
    record = json.loads(first)
    assert (record["message"], record["severity"], record["user"]) == (
        "cart 7 is full",
        "warning",
        "ann",
    )
    assert record["logger"] == "shop.cart"
    assert properties.app_id == "shop"
    assert "ZeroDivisionError" in json.loads(second)["exception"]


@pytest.mark.parametrize(
    ("level", "severity"),
    [
        (0, "debug"),
        (10, "debug"),
        (25, "info"),
        (30, "warning"),
        (40, "error"),
        (50, "critical"),
        (99, "critical"),
    ],
)
def test_every_level_has_a_severity(level, severity):
    assert severity_of(level) == severity


def test_many_threads_log_and_nothing_is_lost_or_doubled(logger, url, subscribe):
    subscriber = subscribe()
    logger.addHandler(FanoutHandler(url, capacity=50_000))

    def work(name):
        for number in range(1000):
            logger.info("%s-%d", name, number)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = [json.loads(body)["message"] for body in subscriber.bodies(8000)]
    assert sorted(texts) == sorted(f"{name}-{n}" for name in "abcdefgh" for n in range(1000))


def test_without_a_broker_the_oldest_are_dropped_and_counted(logger, capsys):
    handler = FanoutHandler("amqp://127.0.0.1:1", capacity=10, flush_seconds=0.1)
    logger.addHandler(handler)
    for number in range(25):
        logger.info("%d", number)
    kept = 25 - handler.dropped
    assert 10 <= kept <= 11  # one beyond the capacity when all others are being sent
    handler.close()
    errors = capsys.readouterr().err
    assert errors.count("kept in memory") <= 1
    assert f"{kept} log records were not delivered" in errors


def test_records_wait_for_the_broker_and_the_dropped_are_reported(
    logger, url, proxy, subscribe, eventually
):
    subscriber = subscribe()
    proxy.refuse()
    handler = FanoutHandler(_through(proxy, url), capacity=10, flush_seconds=30)
    logger.addHandler(handler)
    for number in range(25):
        logger.info("%d", number)
    kept = 25 - handler.dropped
    assert 10 <= kept <= 11  # one beyond the capacity when all others are being sent
    proxy.accept()
    handler.flush()
    notice, *texts = [json.loads(body)["message"] for body in subscriber.bodies(1 + kept)]
    assert notice.startswith(f"{25 - kept} log records were dropped")
    numbers = [int(text) for text in texts]
    assert numbers == sorted(numbers)  # what was being sent when the rest came is kept, …
    assert numbers[-1] == 24  # … and what is dropped is older than what waits
    assert len(set(numbers)) == kept


def test_a_broken_connection_loses_nothing(logger, url, proxy, subscribe):
    subscriber = subscribe()
    handler = FanoutHandler(_through(proxy, url), flush_seconds=30)
    logger.addHandler(handler)
    for number in range(300):
        logger.info("%d", number)
        if number % 100 == 50:
            proxy.reset()
    handler.flush()
    logger.info("the end")
    seen, ids = [], set()
    while not seen or seen[-1] != "the end":
        [(_, properties, body)] = subscriber.take(1)
        if properties.message_id not in ids:  # a repeat has the id of the first
            ids.add(properties.message_id)
            seen.append(json.loads(body)["message"])
    assert seen == [*map(str, range(300)), "the end"]


def test_a_program_that_ends_at_once_still_delivers(url, subscribe):
    subscriber = subscribe()
    program = f"""
import logging
from fanout_source.emit import FanoutHandler
logging.basicConfig(handlers=[FanoutHandler({url!r})], level="DEBUG")
logging.info("short life")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(subscriber.bodies(1)[0])["message"] == "short life"


def test_a_program_without_a_broker_ends_in_time_and_says_what_was_lost():
    program = """
import logging
from fanout_source.emit import FanoutHandler
logging.basicConfig(handlers=[FanoutHandler("amqp://u:s3cret@127.0.0.1:1", flush_seconds=1)])
logging.error("lost")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0
    assert "1 log records were not delivered: no broker listens at 127.0.0.1:1" in done.stderr
    assert "s3cret" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_ships_its_own_records(logger, url, subscribe):
    subscriber = subscribe()
    handler = FanoutHandler(url)
    logger.addHandler(handler)
    logger.info("parent")
    handler.flush()
    if (child := os.fork()) == 0:
        logger.info("child")
        handler.flush()
        os._exit(0)
    os.waitpid(child, 0)
    texts = [json.loads(body)["message"] for body in subscriber.bodies(2)]
    assert texts == ["parent", "child"]


def _run(program, timeout=60):
    return subprocess.run(
        # Newer Pythons warn of any fork of a process with threads, which is what is tested.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_a_forked_child_that_logs_nothing_ends_at_once(url, subscribe):
    subscriber = subscribe()
    done = _run(f"""
import logging, os, sys
from fanout_source.emit import FanoutHandler
logging.basicConfig(handlers=[FanoutHandler({url!r}, flush_seconds=1000)], level="DEBUG")
for number in range(20):  # the parent's thread holds locks at some of these moments
    logging.info("%d", number)
    if (child := os.fork()) == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
""")
    assert (done.returncode, done.stderr) == (0, "")
    texts = [json.loads(body)["message"] for body in subscriber.bodies(20)]
    assert texts == [str(number) for number in range(20)]


def test_without_a_broker_the_exit_waits_only_once():
    done = _run("""
import logging, time
from fanout_source.emit import FanoutHandler

class Timed(FanoutHandler):
    def flush(self):
        before = time.monotonic()
        super().flush()
        print(time.monotonic() - before)

logging.basicConfig(handlers=[Timed("amqp://127.0.0.1:1", flush_seconds=2)])
logging.error("lost")
""")
    waits = [float(line) for line in done.stdout.split()]
    assert len(waits) >= 2, done.stderr
    assert sum(wait > 0.5 for wait in waits) == 1


def test_what_is_logged_while_the_program_exits_arrives(url, subscribe):
    subscriber = subscribe()
    done = _run(f"""
import atexit, logging
from fanout_source.emit import FanoutHandler
logging.basicConfig(handlers=[FanoutHandler({url!r})], level="DEBUG")
atexit.register(logging.info, "late")
logging.info("early")
""")
    assert (done.returncode, done.stderr) == (0, "")
    texts = [json.loads(body)["message"] for body in subscriber.bodies(2)]
    assert texts == ["early", "late"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"app_id": "é" * 200}, "app_id"),
        ({"exchange": ""}, "empty name"),
        ({"exchange": "\udcff"}, "not UTF-8"),
    ],
)
def test_what_could_never_be_sent_is_refused_at_once(options, complaint):
    with pytest.raises(OptionError, match=complaint):
        FanoutHandler("amqp://127.0.0.1:1", **options)


class _Unshowable:
    def __repr__(self):
        raise RuntimeError("no")


def test_extras_that_cannot_be_shown_do_not_cost_the_record(logger, url, subscribe):
    subscriber = subscribe()
    logger.addHandler(FanoutHandler(url))
    logger.info("odd", extra={"unshowable": _Unshowable(), "huge": 10**5000, "fine": 1})
    record = json.loads(subscriber.bodies(1)[0])
    assert record["message"] == "odd"
    assert "cannot be shown" in record["unshowable"]


def test_a_record_that_no_broker_takes_is_dropped_and_the_next_one_arrives(logger, url, subscribe):
    subscriber = subscribe()
    handler = FanoutHandler(url)
    logger.addHandler(handler)
    logger.info("x" * 17_000_000)
    logger.info("fine")
    notice, text = [json.loads(body)["message"] for body in subscriber.bodies(2)]
    assert notice.startswith("1 log records were dropped")
    assert (text, handler.dropped) == ("fine", 1)


def test_a_record_that_cannot_be_formatted_breaks_nothing(logger, url, subscribe, capsys):
    subscriber = subscribe()
    logger.addHandler(FanoutHandler(url))
    logger.info("%d", "not a number")
    logger.info("fine")
    assert json.loads(subscriber.bodies(1)[0])["message"] == "fine"
