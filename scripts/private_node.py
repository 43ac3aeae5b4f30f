"""A RabbitMQ node of the project's own: another name, other ports, other folders.

It runs the package's own scripts, as whoever calls, with every path and port of the node
pointing into one folder; nothing of a system-wide RabbitMQ is read, used or touched.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from fanout_source.address import BrokerAddress
from fanout_source.connection import open_connection
from fanout_source.errors import FanoutError
from machine import SetupError

CONF = Path(__file__).resolve().parent.parent / "conf" / "rabbitmq.conf"
START_TIMEOUT_SECONDS = 90
STOP_TIMEOUT_SECONDS = 30
PLUGINS = (
    "rabbitmq_management",
    "rabbitmq_consistent_hash_exchange",
    "rabbitmq_stream",
    "rabbitmq_auth_mechanism_ssl",
    "rabbitmq_event_exchange",
    "rabbitmq_prometheus",
)
# Debian's wrappers in sbin insist on the system's user and node; these do not.
_DEBIAN_BIN = Path("/usr/lib/rabbitmq/bin")
_OTHER_PORTS = range(20000, 32768)  # below where Linux takes ports for outgoing connections
_children: list[subprocess.Popen[bytes]] = []
_USUAL_PORTS = {"amqp": 5672, "management": 15672, "prometheus": 15692, "stream": 5552}


def installed() -> bool:
    return _script("rabbitmq-server") is not None and shutil.which("epmd") is not None


def start(home: Path) -> tuple[str, str, dict[str, Any]]:
    """Start the node that lives in `home`; returns its URL, its management URL, its process."""
    home.mkdir(parents=True, exist_ok=True)
    end_all(home)  # what is left of one that was killed, or does not answer
    ports = _choose_ports(home)
    environment = _environment(home, ports)
    _write_configuration(home, ports)
    # epmd first, in the foreground: Erlang would otherwise start one as a daemon of the machine.
    url = f"amqp://guest:guest@127.0.0.1:{ports['amqp']}/%2F"
    try:
        _spawn(["epmd", "-address", "127.0.0.1"], environment, home / "epmd.log")
        server = _spawn([str(_script("rabbitmq-server"))], environment, home / "server.log")
        _wait_for_handshake(url, server, home)
    except BaseException:
        end_all(home)
        raise
    process = {"home": str(home), "ports": ports}
    return url, f"http://127.0.0.1:{ports['management']}", process


def stop(process: dict[str, Any]) -> None:
    end_all(Path(process["home"]))


def alive(process: dict[str, Any]) -> bool:
    """Whether the node runs, whatever it answers."""
    home = Path(process["home"])
    return _read_pid(home / "node.pid") in _members(home)


def end_all(home: Path) -> None:
    """End the node in good order, then its epmd; by force what does not go."""
    node = _read_pid(home / "node.pid")
    if node in _members(home):
        _signal(node, signal.SIGTERM)
        _wait_for_end(STOP_TIMEOUT_SECONDS, lambda: node not in _members(home))
    _wait_for_end(STOP_TIMEOUT_SECONDS, lambda: not _kill(home))


def _kill(home: Path) -> list[int]:
    """By force, whoever is there. To be called until there is nobody: those who start something
    may have done so while we looked."""
    members = _members(home)
    for pid in members:
        _signal(pid, signal.SIGKILL)
    return members


def control(process: dict[str, Any], *arguments: str) -> str:
    """Run `rabbitmqctl` against this node; what it printed."""
    environment = _environment(Path(process["home"]), process["ports"])
    done = subprocess.run(
        [str(_script("rabbitmqctl")), "-q", *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise SetupError(f"rabbitmqctl {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout


def _script(name: str) -> Path | None:
    if (_DEBIAN_BIN / name).exists():
        return _DEBIAN_BIN / name
    found = shutil.which(name)
    return Path(found) if found else None


def _choose_ports(home: Path) -> dict[str, int]:
    """The port of last time, or the usual one, where it is free, any free one otherwise; all
    different. Whoever is subscribed finds a node again that was stopped and started."""
    kept, last = home / "ports.json", {}
    with contextlib.suppress(OSError, ValueError, TypeError):
        last = {str(name): int(port) for name, port in dict(json.loads(kept.read_text())).items()}
    ports: dict[str, int] = {}
    for name in ("amqp", "management", "prometheus", "stream", "distribution", "epmd"):
        wanted = last.get(name) or _USUAL_PORTS.get(name)
        ports[name] = wanted if wanted and _is_free(wanted) else free_port(ports.values())
    kept.write_text(json.dumps(ports))
    return ports


def free_port(taken: Collection[int] = ()) -> int:
    """Of those that no outgoing connection is given: a node takes seconds to listen."""
    ports = random.sample(_OTHER_PORTS, 1000)
    return next(port for port in ports if port not in taken and _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
        return True


def _environment(home: Path, ports: dict[str, int]) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RABBITMQ_", "ERL_"))}
    node = "fanout-" + hashlib.sha256(str(home).encode()).hexdigest()[:8] + "@localhost"
    return inherited | {
        "HOME": str(home),
        "RABBITMQ_NODENAME": node,
        "RABBITMQ_DIST_PORT": str(ports["distribution"]),
        "RABBITMQ_MNESIA_BASE": str(home / "data"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_PID_FILE": str(home / "node.pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(home / "rabbitmq-env.conf"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_PORT": str(ports["epmd"]),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }


def _write_configuration(home: Path, ports: dict[str, int]) -> None:
    listeners = [
        f"listeners.tcp.1 = 127.0.0.1:{ports['amqp']}",
        "management.tcp.ip = 127.0.0.1",
        f"management.tcp.port = {ports['management']}",
        "prometheus.tcp.ip = 127.0.0.1",
        f"prometheus.tcp.port = {ports['prometheus']}",
        f"stream.listeners.tcp.1 = 127.0.0.1:{ports['stream']}",
    ]
    (home / "rabbitmq.conf").write_text(CONF.read_text() + "\n" + "\n".join(listeners) + "\n")
    (home / "enabled_plugins").write_text(f"[{','.join(PLUGINS)}].\n")
    (home / "rabbitmq-env.conf").write_text("")  # instead of the system's
    (home / "node.pid").unlink(missing_ok=True)


def _spawn(command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _children.append(process)
    return process


def _wait_for_handshake(url: str, server: subprocess.Popen[bytes], home: Path) -> None:
    address = BrokerAddress.parse(url)
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    last: Exception | None = None
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SetupError(
                f"rabbitmq-server ended with code {server.returncode} while starting; "
                f"it said: {_tail(home / 'server.log')}"
            )
        try:
            open_connection(address).close()
            return
        except FanoutError as error:
            last = error
            time.sleep(0.2)
    raise SetupError(
        f"rabbitmq-server did not answer within {START_TIMEOUT_SECONDS} s ({last}); "
        f"see {home / 'log'}"
    )


def _tail(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-5:]) or f"nothing (see {log})"


def _read_pid(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _members(home: Path) -> list[int]:
    """The living processes of the node in `home`: they are known by their HOME, whereas a process
    number that was written down can be somebody else's by now."""
    ours = f"HOME={home}\0".encode()
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and b"\0" + ours in b"\0" + (entry / "environ").read_bytes():
                members.append(int(entry.name))
    return members


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait_for_end(timeout_seconds: float, ended: Callable[[], bool]) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not ended() and time.monotonic() < deadline:
        time.sleep(0.05)
        _reap_children()


def _reap_children() -> None:
    """Of those that this process started itself, none stays behind as a zombie."""
    for child in _children:
        child.poll()
