from fanout_source.flow import Flow

LIMIT = 1000


def _flow(prefetch=100, limit=LIMIT, buffered=10**6):
    return Flow(prefetch, limit, buffered)


def test_a_consumer_starts_below_half_of_the_limit_only():
    flow = _flow()
    assert flow.start(499) == 100
    assert flow.start(500) is None


def test_it_stops_at_three_quarters_and_refuses_at_the_limit():
    flow = _flow()
    flow.start(0)
    assert not flow.should_stop(700, 49)
    assert flow.should_stop(700, 50)
    assert not flow.must_refuse(700, 299)
    assert flow.must_refuse(700, 300)


def test_memory_is_bounded_whatever_the_spool_allows():
    flow = _flow(limit=10**9, buffered=100)
    flow.start(0)
    assert not flow.should_stop(0, 49)
    assert flow.should_stop(0, 50)
    assert not flow.must_refuse(0, 99)
    assert flow.must_refuse(0, 100)


def test_a_reader_that_has_seen_everything_gets_one_sip_until_it_lets_go():
    flow = _flow()
    assert flow.start(900) is None
    assert flow.want_sip()
    assert flow.start(900) == 100
    assert flow.should_stop(900, 1)
    assert not flow.must_refuse(900, 249)
    assert flow.must_refuse(900, 250)
    assert not flow.want_sip()
    assert flow.start(1100) is None
    flow.let_go()
    assert flow.want_sip()
    assert flow.start(1100) == 100


def test_large_messages_shrink_the_window_and_small_ones_widen_it():
    flow = _flow(prefetch=100, limit=8000, buffered=10**6)  # a window of 1,000 bytes
    assert flow.start(0) == 100
    flow.take(rows=10, size=5000)
    assert flow.start(0) == 2
    flow.take(rows=7, size=70)
    assert not flow.should_stop(0, 0)  # too few to tell
    flow.take(rows=1, size=10)
    assert flow.should_stop(0, 0)
    assert flow.start(0) == 100
    assert not flow.should_stop(0, 0)


def test_a_message_larger_than_the_window_still_comes_one_at_a_time():
    flow = _flow(limit=8000)
    flow.start(0)
    flow.take(rows=1, size=10**9)
    assert flow.start(0) == 1
