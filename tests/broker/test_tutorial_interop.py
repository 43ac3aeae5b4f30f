"""The programs that everybody writes first talk to ours, whichever starts first."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def _run(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def _receive_while(url, emit):
    command = [sys.executable, HERE / "tutorial_receive_logs.py", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        assert "Waiting" in receiver.stdout.readline()
        emit()
        line = receiver.stdout.readline()
        receiver.terminate()
    return line


def test_the_tutorials_receiver_hears_us_when_it_starts_first(url, script):
    line = _receive_while(url, lambda: _run(script("emit_log.py", "--url", url, "hello")))
    assert '"message":"hello"' in line


def test_the_tutorials_receiver_hears_us_when_we_start_first(url, script):
    _run(script("emit_log.py", "--url", url, "nobody hears this"))
    line = _receive_while(url, lambda: _run(script("emit_log.py", "--url", url, "hello")))
    assert '"message":"hello"' in line


def test_the_tutorials_emitter_publishes_into_our_exchange(url, script, subscribe):
    _run(script("emit_log.py", "--url", url, "before anyone"))
    subscriber = subscribe()
    _run([sys.executable, HERE / "tutorial_emit_log.py", url, "warning: hot"])
    assert subscriber.bodies(1) == [b"warning: hot"]


def test_we_publish_into_the_exchange_of_the_tutorials_emitter(url, script, subscribe):
    _run([sys.executable, HERE / "tutorial_emit_log.py", url])
    subscriber = subscribe()
    _run(script("emit_log.py", "--url", url, "hello"))
    assert b'"message":"hello"' in subscriber.bodies(1)[0]
