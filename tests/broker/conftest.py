from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pika
import pytest

from fanout_source import failpoints
from fanout_source.address import BrokerAddress
from fanout_source.connection import open_connection
from fanout_source.spool import Spool


class Subscriber:
    """What anyone's program sees: its own exclusive queue, bound to the exchange, by plain pika."""

    def __init__(self, address: BrokerAddress, exchange: str = "logs") -> None:
        self.connection = open_connection(address)
        self.channel = self.connection.channel()
        self.channel.exchange_declare(exchange, "fanout")
        self.queue = self.channel.queue_declare("", exclusive=True).method.queue
        self.channel.queue_bind(self.queue, exchange)

    def take(self, count: int) -> list[tuple[pika.spec.Basic.Deliver, pika.BasicProperties, bytes]]:
        """Exactly `count` messages; fails when they do not come within 30 s."""
        messages = []
        for method, properties, body in self.channel.consume(self.queue, inactivity_timeout=30):
            if method is None:
                pytest.fail(f"only {len(messages)} of {count} messages arrived within 30 s")
            messages.append((method, properties, body))
            if len(messages) == count:
                break
        self.channel.basic_ack(messages[-1][0].delivery_tag, multiple=True)
        self.channel.cancel()  # what came beyond goes back to the queue
        return messages

    def bodies(self, count: int) -> list[bytes]:
        return [body for _, _, body in self.take(count)]

    @property
    def waiting(self) -> int:
        return self.channel.queue_declare(self.queue, passive=True).method.message_count


@pytest.fixture(autouse=True)
def no_failpoints() -> Iterator[None]:
    yield
    failpoints.arm("")


@pytest.fixture
def subscribe(address: BrokerAddress) -> Iterator[Callable[..., Subscriber]]:
    with ExitStack() as stack:

        def begin(exchange: str = "logs") -> Subscriber:
            subscriber = Subscriber(address, exchange)
            stack.callback(subscriber.connection.close)
            return subscriber

        yield begin


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with Spool.create(str(tmp_path / "spool")) as spool:
        yield spool
