"""Messages of a Failover topic that arrive before this consumer is active are not processed."""

from __future__ import annotations

from pulsar_encore.worker.standby import Standby


def test_messages_are_kept_until_the_broker_names_this_consumer() -> None:
    standby = Standby[int]()
    assert not standby.is_known("a")
    assert standby.keeps("a", 1)
    assert standby.keeps("a", 2)
    assert standby.became_active("b") == []
    assert standby.became_active("a") == [1, 2]
    assert not standby.keeps("a", 1)
    assert not standby.keeps("b", 1)


def test_messages_that_came_too_early_are_dropped_when_another_consumer_is_active() -> None:
    standby = Standby[int]()
    assert standby.keeps("a", 1)
    standby.became_inactive("a")
    assert standby.is_known("a")
    assert standby.keeps("a", 2)
    assert standby.became_active("a") == [2]
    standby.became_inactive("a")
    assert standby.keeps("a", 3)


def test_after_a_reconnect_the_broker_has_to_name_the_consumer_again() -> None:
    standby = Standby[int]()
    standby.became_active("a")
    standby.disconnected("a")
    assert not standby.is_known("a")
    assert standby.keeps("a", 1)
    standby.disconnected("a")
    assert standby.became_active("a") == [1], "it is still held, so it must be given back"
