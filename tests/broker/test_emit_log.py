import json
import os
import shlex
import subprocess
import time

import pytest

from conftest import PROJECT
from fanout_source.connection import open_connection


@pytest.fixture
def emit(script, url):
    def run(*arguments, at=url, **options):
        command = script("emit_log.py", "--url", at, *arguments)
        return subprocess.run(command, capture_output=True, timeout=60, **options)

    return run


def test_a_text_becomes_one_record(emit, subscribe):
    subscriber = subscribe()
    done = emit("the printer is on fire", "--severity", "error")
    assert done.returncode == 0, done.stderr
    assert b"Sent 'the printer is on fire'" in done.stdout
    [(_, properties, body)] = subscriber.take(1)
    record = json.loads(body)
    assert (record["message"], record["severity"]) == ("the printer is on fire", "error")
    assert properties.headers["severity"] == "error"
    assert properties.message_id


def test_each_line_of_standard_input_is_sent_byte_for_byte(emit, subscribe):
    subscriber = subscribe()
    lines = [b"plain", b"", b"caf\xe9 \x00\xff", b"\r", b"x" * 200_000, b"no newline at the end"]
    assert emit("-", input=b"\n".join(lines)).returncode == 0
    assert subscriber.bodies(len(lines)) == lines


def test_a_line_is_sent_as_soon_as_it_is_there(script, url, subscribe):
    subscriber = subscribe()
    with subprocess.Popen(
        script("emit_log.py", "--url", url, "-"), stdin=subprocess.PIPE
    ) as process:
        process.stdin.write(b"first\n")
        process.stdin.flush()
        assert subscriber.bodies(1) == [b"first"]
        process.stdin.close()
        assert process.wait(timeout=30) == 0


def test_generated_records_arrive_numbered_and_sized(emit, subscribe):
    subscriber = subscribe()
    assert emit("--count", 300, "--size", 400, "--severity", "error").returncode == 0
    bodies = subscriber.bodies(300)
    assert [json.loads(body)["sequence"] for body in bodies] == list(range(300))
    assert {json.loads(body)["severity"] for body in bodies} == {"error"}
    assert {len(body) for body in bodies} == {400}


def test_a_rate_is_kept_from_above(emit):
    started = time.monotonic()
    assert emit("--count", 21, "--rate", 20, "--no-confirm").returncode == 0
    assert time.monotonic() - started >= 1.0


def _wrong_password(url):
    return url.replace("guest:guest", "guest:s3cret-pw")


def _missing_vhost(url):
    return url[: url.rindex("/")] + "/nowhere"


def _nobody_there(url):
    return "amqp://guest:s3cret-pw@127.0.0.1:1"


@pytest.mark.parametrize(
    ("change", "cause", "remedy"),
    [
        (_nobody_there, "no broker listens at 127.0.0.1:1", "make broker"),
        (_wrong_password, "refused the login of user 'guest'", "check the user name"),
        (_missing_vhost, "no virtual host 'nowhere'", "rabbitmqctl add_vhost 'nowhere'"),
        (lambda url: "http://h", "begins with 'http://'", "write amqp://"),
        (lambda url: "amqp://no-such-host.invalid", "cannot be found", "check its name"),
        (lambda url: "amqp://a..b", "cannot be found", "check its name"),
        (lambda url: url.replace("amqp:", "amqps:"), "no TLS connection", "5671"),
    ],
)
def test_a_broker_that_cannot_be_used_is_one_line(emit, url, change, cause, remedy):
    started = time.monotonic()
    done = emit("hello", at=change(url))
    error = done.stderr.decode()
    assert done.returncode == 1
    assert time.monotonic() - started < 10  # a promise of the program, not a measure of speed
    assert cause in error
    assert remedy in error
    assert error.count("\n") == 1
    assert "s3cret-pw" not in error


def test_an_exchange_of_another_type_is_one_line(emit, address):
    with open_connection(address) as connection:
        connection.channel().exchange_declare("logs", "direct")
    done = emit("hello")
    assert done.returncode == 1
    assert b"is of type 'direct', not 'fanout': choose another exchange" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_port_that_is_silent_is_given_up_in_time(emit):
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        done = emit("hello", at=f"amqp://127.0.0.1:{silent.getsockname()[1]}")
    assert done.returncode == 1
    assert b"answered as an AMQP broker in time" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["text", "--count", "3"], ["text", "--rate", "3"]])
def test_arguments_that_do_not_go_together_are_refused(emit, arguments):
    done = emit(*arguments)
    assert done.returncode == 2
    assert b"error:" in done.stderr


@pytest.mark.parametrize(
    ("command", "code", "complaint"),
    [
        ("{emit} - <&-", 1, "standard input is closed"),
        ("{emit} hello >/dev/full", 1, "No space left"),
        ("{emit} hello | true", 0, ""),
        ("{emit} hello --exchange $'\\xff'", 1, "not UTF-8"),
        ("{emit} hello --routing-key $'\\xff'", 1, "cannot be sent"),
        ("FANOUT_MANAGEMENT_URL=garbage {bindings}", 1, "FANOUT_MANAGEMENT_URL"),
        ("FANOUT_MANAGEMENT_URL='http://[::1' {bindings}", 1, "FANOUT_MANAGEMENT_URL"),
    ],
)
def test_odd_surroundings_are_one_line_at_most(script, url, command, code, complaint):
    done = subprocess.run(
        [
            "bash",
            "-o",
            "pipefail",
            "-c",
            command.format(
                emit=shlex.join(script("emit_log.py")), bindings=shlex.join(script("bindings.py"))
            ),
        ],
        env={**_environment(), "FANOUT_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr.count("\n")) == (code, code), done.stderr
    assert complaint in done.stderr


def test_make_emit_sends_its_message_untouched(url, subscribe):
    subscriber = subscribe()
    text = """it's "50%" $HOME $(shell echo no) $5 `date` \\ done"""
    done = subprocess.run(
        ["make", "-s", "emit", f"MSG={text}"],
        cwd=PROJECT,
        env={**_environment(), "FANOUT_URL": url},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(subscriber.bodies(1)[0])["message"] == text


def _environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
