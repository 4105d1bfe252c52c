"""The limit of failed attempts."""

from __future__ import annotations


def used_up(failed_attempts: int, max_redeliver_count: int) -> bool:
    """Return True if a message with this many failed attempts is to be dead-lettered.

    For `reconsume_later` the count is `reconsume_attempt`, which the letter carries. For nacks and
    ack timeouts it is the redelivery count: a redelivered message has failed `redelivery_count`
    times.
    """
    return failed_attempts > max_redeliver_count
