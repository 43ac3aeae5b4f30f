"""The private node: starts once, keeps to itself, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import broker as brokers
import private_node
from conftest import SCRIPTS, wait_until
from fanout_source.connection import open_connection
from fanout_source.errors import BrokerUnreachable
from machine import SetupError
from proxy import Proxy


@pytest.fixture
def without_urls(monkeypatch):
    monkeypatch.delenv("FANOUT_URL", raising=False)
    monkeypatch.delenv("FANOUT_TEST_URL", raising=False)


def _processes(home):
    mine = f"HOME={home}\0".encode()

    def environ(entry):
        try:
            return (entry / "environ").read_bytes()
        except OSError:
            return b""

    return [e.name for e in Path("/proc").iterdir() if e.name.isdigit() and mine in environ(e)]


def _listeners_beyond_loopback(ports):
    """The ports of ours that listen on an address other than 127.0.0.1 (0100007F here) or ::1."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            host, port = local.split(":")
            if (
                state == "0A"
                and int(port, 16) in ports
                and not host.endswith(("0100007F", "01000000"))
            ):
                found.add(int(port, 16))
    return found


@pytest.mark.long
@pytest.mark.usefixtures("without_urls", "broker")  # the run's own broker makes it a second one
def test_a_second_node_runs_beside_the_first_and_leaves_no_process(tmp_path):
    assert private_node.installed(), "this test needs rabbitmq-server on the machine"
    run_dir = tmp_path / "with a space"
    first = brokers.start(run_dir)
    try:
        assert brokers.start(run_dir) == first
        assert (run_dir / "broker.json").stat().st_mode & 0o077 == 0
        open_connection(first.address).close()
        assert _listeners_beyond_loopback(set(first.process["ports"].values())) == set()
        plugins = private_node.control(first.process, "list_exchanges", "name", "type")
        assert "amq.rabbitmq.event" in plugins
        assert _processes(run_dir / "node")
    finally:
        brokers.stop(run_dir)
    assert _processes(run_dir / "node") == []
    assert brokers.stop(run_dir) is None
    with pytest.raises(BrokerUnreachable):
        open_connection(first.address)


def test_the_given_url_is_used_and_never_stopped(broker, monkeypatch, tmp_path):
    monkeypatch.setenv("FANOUT_URL", broker.url)
    given = brokers.start(tmp_path)
    assert (given.kind, given.url) == ("external", broker.url)
    assert brokers.stop(tmp_path) is None
    open_connection(given.address).close()


@pytest.mark.usefixtures("without_urls")
def test_a_damaged_state_file_is_named(tmp_path):
    (tmp_path / "broker.json").write_text("{")
    with pytest.raises(SetupError, match=r"broker.json is damaged .* delete it"):
        brokers.start(tmp_path)


@pytest.mark.usefixtures("without_urls")
@pytest.mark.parametrize(
    "state",
    [
        {"kind": "private", "url": "amqp://h", "management_url": "", "process": {}},
        {"kind": "odd", "url": "amqp://h", "management_url": "", "process": {}},
        {"kind": "docker", "url": 5, "management_url": "", "process": {"container": "x"}},
    ],
)
def test_a_state_file_that_says_too_little_is_named(tmp_path, state):
    (tmp_path / "broker.json").write_text(json.dumps(state))
    for action in (brokers.start, brokers.stop, brokers.running):
        with pytest.raises(SetupError, match=r"broker.json is damaged .* delete it"):
            action(tmp_path)


def _refused(address):
    try:
        open_connection(address).close()
    except BrokerUnreachable as error:
        return "no broker listens" in str(error)


def _node(run_dir):
    return int((run_dir / "node" / "node.pid").read_text())


@pytest.mark.long
@pytest.mark.usefixtures("without_urls")
def test_a_node_that_was_killed_is_replaced_without_a_trace(tmp_path, broker):
    first = brokers.start(tmp_path)
    try:
        os.kill(_node(tmp_path), signal.SIGKILL)
        wait_until(lambda: _refused(first.address), "the node has died")
        left_over = set(_processes(tmp_path / "node"))
        with Proxy(broker.address.host, broker.address.port, at=first.address.port):
            open_connection(first.address).close()
            assert brokers.running(tmp_path) is None  # who answers there is somebody else
        second = brokers.start(tmp_path)
        assert not left_over & set(_processes(tmp_path / "node"))
        open_connection(second.address).close()
        assert first.process["home"] == second.process["home"]
    finally:
        brokers.stop(tmp_path)
    assert _processes(tmp_path / "node") == []


@pytest.mark.usefixtures("without_urls")
def test_a_start_that_is_ended_leaves_no_process(script, tmp_path):
    program = f"""
import sys; sys.path.insert(0, {str(SCRIPTS)!r})
import pathlib, broker, program
program.run("broker", lambda: broker.start(pathlib.Path({str(tmp_path)!r})))
"""
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) as starting:
        wait_until(lambda: _processes(tmp_path / "node"), "the node begins to start")
        starting.terminate()
        assert starting.wait(60) == 143
        assert starting.stderr.read() == b""
    assert _processes(tmp_path / "node") == []


@pytest.mark.usefixtures("without_urls")
def test_no_way_to_a_broker_is_one_line_with_the_choices(tmp_path):
    """A machine without rabbitmq-server, Docker and apt, as far as this process can see."""
    program = f"""
import sys; sys.path.insert(0, {str(SCRIPTS)!r})
import pathlib, broker, private_node
private_node._DEBIAN_BIN = pathlib.Path("/nowhere")
try:
    broker.start(pathlib.Path({str(tmp_path)!r}))
except broker.SetupError as error:
    print(error)
"""
    environment = {**os.environ, "PATH": "/nowhere", "DOCKER_HOST": "unix:///nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == brokers.CHOICES, done.stderr


def test_a_url_that_does_not_answer_is_one_line(script):
    done = subprocess.run(
        script("broker.py", "start"),
        env={**os.environ, "FANOUT_URL": "amqp://u:s3cret@127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("broker: no broker listens at 127.0.0.1:1")
    assert "s3cret" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_bindings_show_each_subscriber(script, broker, url, subscribe):
    where = {"FANOUT_URL": url, "FANOUT_MANAGEMENT_URL": broker.management_url}
    first, second = subscribe(), subscribe()
    done = subprocess.run(
        script("bindings.py"), env=os.environ | where, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "logs  (fanout, transient)" in done.stdout
    assert first.queue in done.stdout
    assert second.queue in done.stdout
