"""A real broker for every test that asks, and a virtual host of its own for each."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import hypothesis
import pika
import pytest

import broker as brokers
from fanout_source.address import BrokerAddress
from fanout_source.errors import FanoutError
from fanout_source.publisher import Publisher
from machine import SetupError
from management import Management
from proxy import Proxy
from waiting import wait_until

hypothesis.settings.register_profile("default", deadline=None)  # a shared machine stutters
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=5000)
hypothesis.settings.load_profile("default")

PROJECT = Path(__file__).resolve().parent.parent
SCRIPTS = PROJECT / "scripts"


@pytest.fixture(scope="session")
def broker() -> Iterator[brokers.Broker]:
    """`FANOUT_TEST_URL`, or a broker that lives as long as the run. None to be had ends the run."""
    with _free_folder() as run_dir:
        try:
            running = brokers.start(run_dir, url_variable="FANOUT_TEST_URL", reap=True)
        except (SetupError, FanoutError) as error:
            pytest.exit(f"the tests need a broker: {error}", returncode=1)
        yield running
        brokers.stop(run_dir)


@contextlib.contextmanager
def _free_folder() -> Iterator[Path]:
    """One that no other run of the tests uses; what a killed run has left there is taken up."""
    for number in itertools.count(1):
        folder = brokers.RUN / f"test-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "in-use.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield folder
            return


@pytest.fixture(scope="session")
def management(broker: brokers.Broker) -> Management:
    return Management(broker)


@pytest.fixture
def vhost(management: Management, broker: brokers.Broker) -> Iterator[str]:
    """A virtual host that exists for one test."""
    name = f"test-{uuid4().hex[:12]}"
    management.put("vhosts", name)
    user = broker.address.username
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    management.put("permissions", name, user, body=everything)
    yield name
    management.delete("vhosts", name)


@pytest.fixture
def bound_queues(management: Management, vhost: str) -> Callable[..., list[str]]:
    """The queues bound to an exchange: a queue that merely exists receives nothing yet."""

    def bound(exchange: str = "logs") -> list[str]:
        bindings = management.get("bindings", vhost)
        return [b["destination"] for b in bindings if b["source"] == exchange]

    return bound


@pytest.fixture
def url(broker: brokers.Broker, vhost: str) -> str:
    return broker.url[: broker.url.rindex("/") + 1] + quote(vhost, safe="")


@pytest.fixture
def address(broker: brokers.Broker, vhost: str) -> BrokerAddress:
    return dataclasses.replace(broker.address, vhost=vhost)


@pytest.fixture
def script() -> Callable[..., list[str]]:
    """The command line of one of the project's scripts."""
    return lambda name, *arguments: [sys.executable, str(SCRIPTS / name), *map(str, arguments)]


@pytest.fixture
def eventually() -> Callable[..., Any]:
    return wait_until


@pytest.fixture
def proxy(address: BrokerAddress) -> Iterator[Proxy]:
    with Proxy(address.host, address.port) as proxy:
        yield proxy


@pytest.fixture
def publish(address: BrokerAddress) -> Iterator[Callable[..., None]]:
    """Publishes bodies, confirmed."""
    with Publisher(address) as publisher:

        def send(bodies: list[bytes], **properties: Any) -> None:
            for body in bodies:
                publisher.publish(body, pika.BasicProperties(**properties))
            publisher.flush()

        yield send
