"""TLS, with certificates made here: whom we trust, and who trusts us."""

import dataclasses
import datetime
import ssl

import pytest
import trustme

import private_node
from fanout_source.address import BrokerAddress
from fanout_source.connection import open_connection
from fanout_source.errors import BrokerRefused, OptionError
from fanout_source.receiver import Receiver
from fanout_source.source_options import SourceOptions
from private_node import control
from proxy import Proxy
from waiting import wait_until

PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def files(authority, tmp_path):
    """PEM files: `files(certificate)` has the certificate with its key."""
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def write(certificate, name="certificate"):
        path = tmp_path / f"{name}.pem"
        certificate.private_key_and_cert_chain_pem.write_to_path(str(path))
        return str(path)

    write.authority = str(tmp_path / "ca.pem")
    return write


@pytest.fixture
def listen(broker, authority, files, vhost):
    """Opens a TLS listener on the broker; `listen(certificate, wants=True)` is its URL."""
    ports = []

    def begin(certificate, *, wants_certificate=False):
        path = files(certificate, f"server-{len(ports)}")  # read at each handshake
        wants = "true" if wants_certificate else "false"
        options = (
            f'[{{cacertfile, "{files.authority}"}}, {{certfile, "{path}"}}, {{keyfile, "{path}"}}, '
            f"{{verify, verify_peer}}, {{fail_if_no_peer_cert, {wants}}}]"
        )
        port = private_node.free_port()
        start = (
            f'rabbit_networking:start_ssl_listener({{"127.0.0.1", {port}, auto}}, {options}, 2).'
        )
        assert "ok" in control(broker.process, "eval", start)
        ports.append(port)
        return f"amqps://guest:guest@localhost:{port}/{vhost}"

    yield begin
    for port in ports:
        stop = f'rabbit_networking:stop_tcp_listener({{"127.0.0.1", {port}, auto}}).'
        control(broker.process, "eval", stop)


def _address(url, **options):
    [address] = SourceOptions.parse({"url": url, **options}).addresses
    return address


def _refusal(url, **options):
    with pytest.raises(BrokerRefused) as refused:
        open_connection(_address(url, **options))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_subscription_over_tls(listen, authority, files, spool, publish, address):
    url = listen(authority.issue_cert("localhost"))
    with Receiver(_address(url, **{"tls.caFile": files.authority}), spool) as receiver:
        publish([b"%d" % n for n in range(20_000)])
        wait_until(lambda: receiver.wait_for_more(0, 1) == 20_000, "all have come")
    assert spool.end == 20_000


def test_an_authority_that_we_do_not_know_is_refused(listen, authority, files):
    url = listen(authority.issue_cert("localhost"))
    assert "set tls.caFile to the authority that has signed it" in _refusal(url)
    stranger = trustme.CA()
    stranger.cert_pem.write_to_path(files.authority)
    assert "set tls.caFile" in _refusal(url, **{"tls.caFile": files.authority})


def test_another_host_name_is_refused_unless_told_otherwise(listen, authority, files):
    url = listen(authority.issue_cert("elsewhere.example"))
    trust = {"tls.caFile": files.authority}
    text = _refusal(url, **trust)
    assert "not valid for 'localhost'" in text
    assert "use a name that it has, or tls.verifyHostname=false" in text
    open_connection(_address(url, **trust, **{"tls.verifyHostname": "false"})).close()


def test_a_certificate_that_has_expired_is_refused(listen, authority, files):
    url = listen(authority.issue_cert("localhost", not_before=PAST, not_after=PAST))
    text = _refusal(url, **{"tls.caFile": files.authority})
    assert "has expired; the broker needs a new one" in text


class _Listening(Proxy):
    """Keeps what clients send."""

    def __init__(self, *place):
        self.said, self._clients = bytearray(), set()
        super().__init__(*place)

    def _connected(self, client, server):
        self._clients.add(client)

    def _passing(self, source, data):
        if source in self._clients:
            self.said += data


def test_nothing_is_said_in_plain_text_to_a_broker_that_is_not_trusted(
    listen, authority, files, spool
):
    """Not at the start, nor when the certificate has become a wrong one."""
    good, bad = (listen(authority.issue_cert(name)) for name in ("localhost", "elsewhere.example"))
    trusted, stranger = (_address(u, **{"tls.caFile": files.authority}) for u in (good, bad))
    with _Listening("localhost", stranger.port) as proxy:
        through = dataclasses.replace(trusted, port=proxy.port)
        with pytest.raises(BrokerRefused, match="was not accepted"):
            Receiver(through, spool).subscribe()
        assert proxy.said
        assert proxy.said[0] == 0x16  # a TLS handshake
        proxy._target = ("localhost", trusted.port)
        with Receiver(through, spool) as receiver:
            assert receiver.wait_for_more(0) == 0
            proxy._target = ("localhost", stranger.port)
            proxy.reset()
            with pytest.raises(BrokerRefused, match="was not accepted"):
                receiver.wait_for_more(0, timeout_seconds=60)
        for secret in (b"AMQP", b"guest", b"PLAIN"):
            assert secret not in proxy.said


def test_a_broker_that_wants_a_certificate_gets_ours(listen, authority, files):
    url = listen(authority.issue_cert("localhost"), wants_certificate=True)
    trust = {"tls.caFile": files.authority}
    assert "wants one: set tls.certFile and tls.keyFile" in _refusal(url, **trust)
    stranger = files(trustme.CA().issue_cert("ann@example.org"), "stranger")
    assert "set tls.certFile" in _refusal(url, **trust, **{"tls.certFile": stranger})
    ours = files(authority.issue_cert("ann@example.org"), "ours")
    open_connection(_address(url, **trust, **{"tls.certFile": ours})).close()


def test_our_certificate_is_our_login(listen, authority, files, broker, management, vhost):
    url = listen(authority.issue_cert("localhost"), wants_certificate=True)
    ours = files(authority.issue_cert("ann@example.org", common_name="ann"), "ours")
    given = {"tls.caFile": files.authority, "tls.certFile": ours}
    anonymous = url.replace("guest:guest@", "")
    assert "refused the login with our certificate" in _refusal(anonymous, **given)

    def set_up(mechanisms, name, options):
        settings = {
            "auth_mechanisms": mechanisms, "ssl_cert_login_from": name, "ssl_options": options
        }  # fmt: skip
        calls = (f"application:set_env(rabbit, {k}, {v})" for k, v in settings.items())
        control(broker.process, "eval", ", ".join(calls) + ".")

    set_up("['PLAIN', 'AMQPLAIN', 'EXTERNAL']", "common_name", "[{verify, verify_peer}]")
    management.put("users", "ann", body={"password_hash": "", "tags": ""})
    try:
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        management.put("permissions", vhost, "ann", body=everything)
        open_connection(_address(anonymous, **given)).close()
    finally:
        management.delete("users", "ann")
        set_up("['PLAIN', 'AMQPLAIN']", "distinguished_name", "[]")


@pytest.mark.parametrize("option", ["tls.caFile", "tls.certFile"])
def test_a_file_that_is_no_certificate_is_named(option, tmp_path):
    missing = _address("amqps://h", **{option: str(tmp_path / "missing.pem")})
    with pytest.raises(OptionError, match=rf"{option}=.*missing.pem: cannot be read: No such file"):
        open_connection(missing)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(OptionError, match=rf"{option}=.*text: not a certificate"):
        open_connection(_address("amqps://h", **{option: str(tmp_path / "text")}))


def test_a_key_that_belongs_to_another_certificate_is_named(authority, tmp_path):
    one, other = authority.issue_cert("a.example"), authority.issue_cert("b.example")
    one.cert_chain_pems[0].write_to_path(str(tmp_path / "certificate"))
    other.private_key_pem.write_to_path(str(tmp_path / "key"))
    given = {"tls.certFile": str(tmp_path / "certificate"), "tls.keyFile": str(tmp_path / "key")}
    with pytest.raises(OptionError, match="the key is not that of the certificate"):
        open_connection(_address("amqps://h", **given))


def test_a_context_can_be_made_of_nothing():
    address = BrokerAddress.parse("amqps://h")
    assert address.tls is not None
    assert address.tls.context().verify_mode == ssl.CERT_REQUIRED
