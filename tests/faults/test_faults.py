"""Each fault, once, while messages flow: nothing acked is lost or doubled, each gap is recorded."""

import dataclasses
import random

import pytest
from injections import FAULTS
from world import World, own_vhost

# The steps of the receiver and the disk are killed without Spark, too: tests/broker, tests/unit.
SLOW = ("driver_killed", "jvm_killed", "broker_stopped_for_half_a_minute")
QUICK = [fault for fault in FAULTS if "_at_" not in fault.name and fault.name not in SLOW]


@pytest.fixture(scope="module")
def world(request, broker, management, tmp_path_factory):
    """A world for all tests of a kind of queue."""
    queue_type = None if request.param == "exclusive" else request.param
    folder = tmp_path_factory.mktemp("faults")
    with (
        own_vhost(broker, management) as vhost,
        World(broker, management, vhost, folder, queue_type=queue_type, minPartitions=2) as world,
    ):
        yield world


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[] if fault in QUICK else [pytest.mark.faults], id=fault.name)
        for fault in FAULTS
    ],
)
@pytest.mark.parametrize(
    "world",
    [
        pytest.param(kind, marks=[] if kind == "exclusive" else [pytest.mark.faults])
        for kind in ("exclusive", "classic", "quorum")
    ],
    indirect=True,
    scope="module",
)
def test_nothing_is_lost_or_doubled_through(world, fault):
    gaps, subscriptions = world.gap_count, world.witness.subscriptions
    fault.happen(world, random.Random())
    account = world.account()
    if world.queue_type == "quorum":  # what it gives back twice may come in another order
        account = dataclasses.replace(account, disordered=0)
    assert account.is_clean, account
    assert account.messages > 0
    recorded = world.gap_count - gaps
    if world.queue_type is None:
        assert recorded == world.witness.subscriptions - subscriptions
    elif fault.name not in ("queue_deleted", "exchange_deleted"):
        assert recorded == 0
    else:
        assert recorded >= 1
