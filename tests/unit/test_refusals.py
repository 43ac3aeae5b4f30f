"""What a broker's refusal means: trying again, or not."""

import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from fanout_source.address import BrokerAddress
from fanout_source.connection import _explain_failed_open, explain
from fanout_source.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ConnectionLost,
    NodeDown,
    NotFound,
    NotPermitted,
)

ADDRESS = BrokerAddress("host", 5672)


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (404, "NOT_FOUND - no queue 'audit' in vhost '/'", NotFound),
        (404, "NOT_FOUND - no exchange 'logs' in vhost '/'", NotFound),
        (
            404,
            "NOT_FOUND - home node 'rabbit@b' of durable queue 'audit' in vhost '/' is down or "
            "inaccessible",
            NodeDown,
        ),
        (
            404,
            "NOT_FOUND - failed to perform operation on queue 'audit' in vhost '/' due to timeout",
            ConnectionLost,
        ),
        (403, "ACCESS_REFUSED - configure access to queue 'audit' refused", NotPermitted),
        (405, "RESOURCE_LOCKED - cannot obtain exclusive access to queue 'audit'", BrokerRefused),
        (406, "PRECONDITION_FAILED - inequivalent arg 'durable'", BrokerRefused),
    ],
)
def test_a_closed_channel_says_whether_to_try_again(code, text, kind):
    error = explain(ChannelClosedByBroker(code, text), ADDRESS, "looking for queue 'audit'")
    assert type(error) is kind
    assert text in str(error)


def test_a_broker_that_takes_no_more_connections_may_do_so_later():
    limit = ConnectionClosedByBroker(
        530, "NOT_ALLOWED - access to vhost '/' refused for user 'guest': connection limit (1) "
        "is reached",
    )  # fmt: skip
    error = _explain_failed_open(limit, ADDRESS)
    assert type(error) is BrokerUnreachable
    assert "connection limit (1) is reached" in str(error)
    assert "set_permissions" not in str(error)
