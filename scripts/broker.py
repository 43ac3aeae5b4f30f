#!/usr/bin/env python3
"""Hands out a RabbitMQ: to the Makefile as a program, to the tests as a module.

In this order: `FANOUT_URL`, used as it is and never stopped; a private node of the machine's
`rabbitmq-server`; a Docker engine; `rabbitmq-server` from apt. What was started is written to
`broker.json` in the run folder, where every other program finds the URL.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import docker_broker
import private_node
from fanout_source.address import LOCAL_BROKER, BrokerAddress
from fanout_source.connection import open_connection
from fanout_source.errors import FanoutError
from machine import SetupError, apt_install, can_install
from program import run

PROJECT = Path(__file__).resolve().parent.parent
RUN = PROJECT / ".run"

CHOICES = (
    "no RabbitMQ to be had: set FANOUT_URL to a broker's amqp:// URL, install one "
    "(apt-get install rabbitmq-server), or start Docker"
)


_NEEDED_TO_STOP = {"private": {"home", "ports"}, "docker": {"container"}}


@dataclass(frozen=True)
class Broker:
    """A broker that answers. `kind` is external, private or docker; `process` is what stops it."""

    kind: str
    url: str
    management_url: str
    process: dict[str, Any]

    @property
    def address(self) -> BrokerAddress:
        return BrokerAddress.parse(self.url)


def start(run_dir: Path = RUN, *, url_variable: str = "FANOUT_URL", reap: bool = False) -> Broker:
    """A broker that has answered an AMQP handshake; the running one, if there is one.

    `reap` ties a container to this process's life (tests); otherwise it stays until `stop`.
    """
    if url := os.environ.get(url_variable):
        return external(url)
    run_dir.mkdir(parents=True, exist_ok=True)
    with _locked(run_dir):
        if (running := _running(run_dir)) is not None:
            return running
        broker = _start_new(run_dir, reap)
        _write_state(run_dir, broker)
        return broker


def stop(run_dir: Path = RUN) -> Broker | None:
    """End what `start` began in this run folder, and nothing else; tell what it was."""
    if not run_dir.exists():
        return None
    with _locked(run_dir):
        broker = _read_state(run_dir)
        if broker is None:
            private_node.end_all(run_dir / "node")  # one that was killed while it started
            return None
        _stopper(broker)(broker.process)
        _state_file(run_dir).unlink()
        return broker


def running(run_dir: Path = RUN) -> Broker | None:
    """The broker that `start` would hand out without starting one."""
    if url := os.environ.get("FANOUT_URL"):
        return external(url)
    return _running(run_dir)


def current_url() -> str:
    """What programs use: `FANOUT_URL`, the one that `make broker` started, or the local one."""
    state = _read_state(RUN)
    return os.environ.get("FANOUT_URL") or (state.url if state else LOCAL_BROKER)


def external(url: str) -> Broker:
    """Somebody else's broker: checked, never stopped."""
    address = BrokerAddress.parse(url)
    open_connection(address).close()
    management = os.environ.get("FANOUT_MANAGEMENT_URL") or f"http://{address.host}:15672"
    return Broker("external", url, management, {})


def _start_new(run_dir: Path, reap: bool) -> Broker:
    if private_node.installed():
        return Broker("private", *private_node.start(run_dir / "node"))
    if docker_broker.available():
        return Broker("docker", *docker_broker.start(reap=reap))
    if can_install():
        print("installing rabbitmq-server with apt …", file=sys.stderr)
        apt_install("rabbitmq-server")
        return Broker("private", *private_node.start(run_dir / "node"))
    raise SetupError(CHOICES)


def _stopper(broker: Broker) -> Any:
    return {"private": private_node.stop, "docker": docker_broker.stop}[broker.kind]


def _running(run_dir: Path) -> Broker | None:
    broker = _read_state(run_dir)
    if broker is None:
        return None
    if broker.kind == "private" and not private_node.alive(broker.process):
        return None  # whoever answers at its port now is somebody else's
    try:
        open_connection(broker.address).close()
    except FanoutError:
        return None
    return broker


def _state_file(run_dir: Path) -> Path:
    return run_dir / "broker.json"


def _read_state(run_dir: Path) -> Broker | None:
    try:
        broker = Broker(**json.loads(_state_file(run_dir).read_text()))
        if broker.kind not in _NEEDED_TO_STOP or _NEEDED_TO_STOP[broker.kind] - set(broker.process):
            raise ValueError("it does not say what was started")
        _ = broker.address
        return broker
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError) as error:
        raise SetupError(f"{_state_file(run_dir)} is damaged ({error}): delete it") from error


def _write_state(run_dir: Path, broker: Broker) -> None:
    temporary = _state_file(run_dir).with_suffix(".tmp")
    temporary.touch(mode=0o600)
    temporary.write_text(json.dumps(asdict(broker), indent=2) + "\n")
    temporary.replace(_state_file(run_dir))


@contextlib.contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Two `make broker` at the same time start one broker."""
    with open(run_dir / "broker.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _describe(broker: Broker) -> str:
    origin = {
        "external": "from FANOUT_URL",
        "private": "private node",
        "docker": "Docker container",
    }[broker.kind]
    return f"broker at {broker.address} ({origin}), management at {broker.management_url}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["start", "stop", "status", "url"])
    action = parser.parse_args().action
    if action == "start":
        print(_describe(start()))
    elif action == "stop":
        stopped = stop()
        print(f"stopped the {_describe(stopped)}" if stopped else "no broker of ours is running")
    elif action == "url":
        print(current_url())
    else:
        broker = running()
        print(_describe(broker) if broker else "not running (make broker starts one)")
        return 0 if broker else 3
    return 0


if __name__ == "__main__":
    run("broker", main)
