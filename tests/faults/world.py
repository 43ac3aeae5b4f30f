"""A subscriber under Spark, steady emitters, and a witness between subscriber and broker.

Faults happen to the real thing: the broker, the processes, the connection. The witness reads what
passes, so that it is known of each message whether it was acked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import pika
from accounting import Account, recorded_gaps, settle, written

import broker as brokers
from fanout_source.errors import BrokerError
from fanout_source.publisher import Publisher
from machine import SetupError
from management import Management
from processes import descendants, planners
from spark_processes import kept_in, kill_family
from witness import Witness

APPLICATION = Path(__file__).with_name("application.py")
HEARTBEAT_SECONDS = 2
Found = TypeVar("Found")
_PAD = b" " + b"x" * 180


class Stuck(Exception):
    """Something did not happen in time."""


@contextlib.contextmanager
def own_vhost(broker: brokers.Broker, management: Management) -> Iterator[str]:
    """A virtual host that goes with the block."""
    name = f"faults-{uuid4().hex[:8]}"
    management.put("vhosts", name)
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    management.put("permissions", name, broker.address.username, body=rights)
    try:
        yield name
    finally:
        management.delete("vhosts", name)


class World:
    """`with World(broker, management, vhost, folder) as world: …` has a subscriber, subscribed,
    and an emitter; several worlds may share that one."""

    def __init__(
        self, broker: brokers.Broker, management: Management, vhost: str, folder: Path,
        *, queue_type: str | None = None, per_second: int = 2000, emitter: Emitter | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        self.broker, self.management, self.vhost = broker, management, vhost
        self.queue_type = queue_type
        self.folder, self.sink = folder, folder / "sink"
        folder.mkdir(exist_ok=True)
        self.failpoints = folder / "failpoints"
        self.failpoints.write_text("")
        self.witness = _Witness(broker.address.host, broker.address.port)
        self._options = {"heartbeat": HEARTBEAT_SECONDS, "failOnDataLoss": "false", **options}
        self.queue = None if queue_type is None else f"audit-{queue_type}"
        if queue_type is not None:
            self._options |= {"queue": self.queue, "queueType": queue_type}
            self._options |= {"exchangeDurable": "true"}
            self._options.setdefault("minPartitions", 2)
        # Other small batches Spark gets with their plan.
        self.reads_in_tasks = "minPartitions" in self._options
        self._gaps: dict[int, str] = {}
        self.emitter = emitter or Emitter(broker, vhost, per_second, durable=queue_type is not None)
        self.application: subprocess.Popen[bytes] | None = None
        self.stuck: str | None = None

    def __enter__(self) -> World:
        try:
            self.start_application()
            self.wait(lambda: self.witness.subscriptions, "the application is subscribed", 120)
            self.emitter.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.emitter.stop()
        if self.application is not None and self.application.poll() is None:
            kill_family(self.application)
        self.witness.__exit__()

    def start_application(self) -> None:
        url = self.broker.url
        through = url.replace(f":{urlsplit(url).port}/", f":{self.witness.port}/")
        through = through[: through.rindex("/") + 1] + self.vhost
        command = [sys.executable, str(APPLICATION), str(self.sink)]
        command += [f"{name}={value}" for name, value in self._options.items()]
        environment = {
            **os.environ, **kept_in(self.folder), "PYSPARK_PYTHON": sys.executable,
            "FANOUT_URL": through, "FANOUT_FAILPOINTS": f"@{self.failpoints}",
        }  # fmt: skip
        with open(self.folder / "application.log", "ab") as log:
            self.application = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True, cwd=self.folder,
            )  # fmt: skip

    def restart_query(self) -> None:
        """Politely, as `query.stop()` does it."""
        assert self.application is not None
        assert self.application.stdin is not None
        self.application.stdin.write(b"restart\n")
        self.application.stdin.flush()

    @property
    def planner(self) -> int:
        """The process that holds the connection."""
        assert self.application is not None
        pid = self.application.pid
        return self.wait(lambda: planners(pid)[-1:], "there is a planner")[0]

    def processes(self, of: str) -> list[int]:
        """Those of the application that have this in their command line."""
        assert self.application is not None
        return [pid for pid, line in descendants(self.application.pid).items() if of in line]

    def queues(self) -> list[str]:
        """That of the subscriber."""
        names = [queue["name"] for queue in self.management.get("queues", self.vhost)]
        return [n for n in names if n == self.queue or (not self.queue and n.startswith("amq."))]

    def connections(self) -> list[str]:
        """That of the subscriber."""
        found, end = self.management.get("vhosts", self.vhost, "connections"), f":{self.planner}"
        names = {c["name"]: c.get("client_properties", {}).get("connection_name") for c in found}
        return [name for name, known_as in names.items() if str(known_as).endswith(end)]

    def wait(self, condition: Callable[[], Found], what: str, seconds: float = 90) -> Found:
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise Stuck(f"waited {seconds:g} s, but not: {what}; see {self.folder}")
            time.sleep(0.02)
        return found

    def await_recovery(self, subscriptions: int = 0) -> float:
        """Until somebody has subscribed more often than this, and something that is published
        after that is acked; how many seconds that took."""
        began = time.monotonic()
        self.wait(lambda: self.witness.subscriptions > subscriptions, "subscribed anew", 120)
        mark = self.emitter.next_number
        self.wait(lambda: self.witness.last_acked >= mark, "new messages are acked", 120)
        self.note_gaps()
        return time.monotonic() - began

    def note_gaps(self) -> None:
        """The spool keeps the latest hundred."""
        with contextlib.suppress(ValueError, OSError):
            self._gaps |= recorded_gaps(Path(f"{self.sink}.spool"))[1]

    @property
    def gap_count(self) -> int:
        return recorded_gaps(Path(f"{self.sink}.spool"))[0]

    def settle(self) -> Account:
        """Stop emitting, let everything through, account for each message; `stuck` says what did
        not get through."""
        self.emitter.stop()

        def is_acked() -> bool:
            held = self.management.get("queues", self.vhost, self.queue or "")
            return bool(held.get("messages") == 0)

        if self.queue is not None:
            try:
                self.wait(is_acked, "all is acked", 300)
            except (Stuck, SetupError) as error:
                self.stuck = str(error)
        return self.account(180)

    def account(self, seconds: float = 60) -> Account:
        """What became of the messages that have been acked so far."""
        acked = bytes(self.witness.acked)

        def is_written() -> bool:
            present = {number for _, number in written(self.sink)}
            return all(number in present for number, count in enumerate(acked) if count)

        with contextlib.suppress(Stuck):  # the account says what is missing
            self.wait(is_written, "all that was acked is written", seconds)
        rows = written(self.sink)  # its gaps are recorded
        self.note_gaps()
        return settle([*self.emitter.confirmed], acked, rows, self._gaps.keys())


class Emitter:
    """Publishes numbered messages at a steady rate. Each number once: what became of those that
    were under way when a connection broke, nobody knows."""

    def __init__(
        self, broker: brokers.Broker, vhost: str, per_second: int, *, durable: bool
    ) -> None:
        self._address = dataclasses.replace(broker.address, vhost=vhost)
        self._per_second, self._durable = per_second, durable
        self.confirmed: list[range] = []
        self.next_number = 0
        self._ending = threading.Event()
        self._publishing = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Once, however often it is said."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        with self._publishing:
            yield

    def _run(self) -> None:
        properties = pika.BasicProperties(delivery_mode=2)
        chunk = max(1, self._per_second // 20)
        publisher: Publisher | None = None
        while not self._ending.is_set():
            began = time.monotonic()
            try:
                with self._publishing:
                    publisher = publisher or Publisher(
                        self._address, exchange_durable=self._durable
                    )
                    start, self.next_number = self.next_number, self.next_number + chunk
                    for number in range(start, start + chunk):
                        properties.message_id = str(number)
                        publisher.publish(b"%012d" % number + _PAD, properties)
                    publisher.flush()
                self.confirmed.append(range(start, start + chunk))
            except BrokerError:
                if publisher is not None:
                    publisher.close()
                    publisher = None
            self._ending.wait(max(0.0, 0.05 - (time.monotonic() - began)))
        if publisher is not None:
            publisher.close()


class _Witness(Witness):
    """Keeps a byte for each message."""

    def __init__(self, host: str, port: int) -> None:
        self.last_acked = -1
        super().__init__(host, port)
        self.acked = bytearray()  # type: ignore[assignment]

    def on_acked(self, bodies: list[bytes]) -> None:
        numbers = [int(body[:12]) for body in bodies]
        if numbers:
            missing = max(numbers) + 1 - len(self.acked)
            self.acked.extend(bytes(max(0, missing)))  # type: ignore[attr-defined]
            for number in numbers:
                self.acked[number] = 1  # type: ignore[index]
            self.last_acked = max(self.last_acked, *numbers)
